// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"strings"
	"time"
)

// Written is a condition as read from the API server.
type Written struct {
	// Status is True, False or Unknown.
	Status, Reason, Message string
	// Generation is the generation of the policy that was judged.
	Generation int64
	// Since is when the status last changed.
	Since time.Time
}

// Action is what a node does about a condition.
type Action uint8

// The actions.
const (
	Leave Action = iota
	Write        // create or replace it
	Clear        // remove it
)

// String returns the name of the action.
func (a Action) String() string { return [...]string{"leave", "write", "clear"}[a] }

// Decide returns what one node does about a condition. want is the condition that the node wants, is the
// one in the API server; either may be nil. The first node to detect a problem owns the condition and
// clears it. Other nodes leave it alone, even if their message differs. They replace it if it is about an
// older generation of the policy, or if its reporter's node no longer exists.
func Decide(want *Condition, is *Written, self string, generation int64, exists func(node string) bool) Action {
	if is == nil {
		if want == nil {
			return Leave
		}
		return Write
	}
	reporter := reporterOf(is.Message)
	if want == nil {
		if reporter == self || !exists(reporter) {
			return Clear
		}
		return Leave
	}
	switch {
	case is.Generation < generation, is.Status != "False", !exists(reporter):
		return Write
	case reporter == self && (is.Reason != want.Reason || is.Message != want.Signed(self)):
		return Write
	}
	return Leave
}

const (
	signed    = " (reported by node "
	signedEnd = ")"
)

// Signed returns the message with the name of the reporting node.
func (c Condition) Signed(node string) string {
	return fmt.Sprintf("%s%s%s%s", c.Message, signed, node, signedEnd)
}

// reporterOf returns the node name that Signed wrote, or "".
func reporterOf(message string) string {
	i := strings.LastIndex(message, signed)
	if i < 0 || !strings.HasSuffix(message, signedEnd) {
		return ""
	}
	return strings.TrimSuffix(message[i+len(signed):], signedEnd)
}

// Delay bounds how long a node waits before it writes a condition that other nodes may write too. nodes is
// the size of the cluster. After the delay the node has seen the writes of others.
func Delay(nodes int) time.Duration {
	return min(time.Duration(nodes)*10*time.Millisecond, 30*time.Second)
}

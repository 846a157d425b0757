// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"strings"
	"time"
)

// Written is a condition as the API server has it.
type Written struct {
	// Status is True, False or Unknown.
	Status, Reason, Message string
	// Generation is that of the policy that was judged.
	Generation int64
	// Since is when the status changed last.
	Since time.Time
}

// Action is what to do about a condition.
type Action uint8

// The actions.
const (
	Leave Action = iota
	Write        // make it what is wanted
	Clear        // take it back
)

// String returns the name of the action.
func (a Action) String() string { return [...]string{"leave", "write", "clear"}[a] }

// Decide says what one node does about a condition that it wants, or nil, when
// the API server has another, or nil. Whoever finds something wrong first
// reports it, and is who takes it back; others leave it, even if they would say
// it with other words, until it is about an older generation of the policy, or
// its reporter's node is gone.
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

// Signed is the message with its reporter.
func (c Condition) Signed(node string) string {
	return fmt.Sprintf("%s%s%s%s", c.Message, signed, node, signedEnd)
}

// reporterOf reads the node's name that Signed wrote; empty if nobody signed.
func reporterOf(message string) string {
	i := strings.LastIndex(message, signed)
	if i < 0 || !strings.HasSuffix(message, signedEnd) {
		return ""
	}
	return strings.TrimSuffix(message[i+len(signed):], signedEnd)
}

// Delay bounds how long a node of so many waits before it writes what others
// may write, too: by then it has seen that they did.
func Delay(nodes int) time.Duration {
	return min(time.Duration(nodes)*10*time.Millisecond, 30*time.Second)
}

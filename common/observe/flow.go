// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"fmt"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
)

// Outcome is what happened to the packet of a flow event.
type Outcome uint8

// Allowed and Denied are verdicts of policy. Dropped means that the packet was dropped for another reason.
// Observed means that the packet passed, although policy denies it or there is another reason to drop it: its pod is
// observed.
const (
	Allowed Outcome = iota
	Denied
	Dropped
	Observed
)

// outcomes are the names of all outcomes, as in requests, metrics and output.
var outcomes = []string{Allowed: "allow", Denied: "deny", Dropped: "drop", Observed: "observe"}

// Outcomes returns all outcomes.
func Outcomes() []Outcome { return []Outcome{Allowed, Denied, Dropped, Observed} }

// String returns "allow", "deny", "drop" or "observe".
func (o Outcome) String() string { return outcomes[o] }

// ParseOutcome parses the result of Outcome.String.
func ParseOutcome(text string) (Outcome, error) {
	i := slices.Index(outcomes, text)
	if i < 0 {
		return 0, fmt.Errorf("verdict %q: give %s", shorten(text), strings.Join(outcomes, ", "))
	}
	return Outcome(i), nil
}

// shorten truncates long text of a client, so that messages stay readable.
func shorten(s string) string {
	if len(s) > 64 {
		return s[:61] + "..."
	}
	return s
}

// Flow is a flow event with the name of its remote end. It is immutable once it is in a Store.
type Flow struct {
	model.FlowEvent
	// Peer is the pod that has the remote address, PeerNode the name of the node that has it. At most one
	// is set.
	Peer     model.PodID
	PeerNode string
}

// Outcome returns what happened to the packet.
func (f *Flow) Outcome() Outcome {
	switch {
	case f.Observed:
		return Observed
	case f.Drop != model.NotDropped:
		return Dropped
	case f.Verdict == model.Deny:
		return Denied
	}
	return Allowed
}

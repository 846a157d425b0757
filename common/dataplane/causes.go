// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"context"
	"errors"

	"github.com/isthmus-net/isthmus/common/model"
)

// ErrNotCounted is wrapped by errors of CauseCounts that last: the data path does not count by cause. They say why.
var ErrNotCounted = errors.New("decisions are not counted by rule")

// CauseCounter is a Backend that counts new flows, or packets, by the causes of their verdicts.
type CauseCounter interface {
	// CauseCounts reads the counters of the policies in force. It may run beside the other methods except
	// Close.
	CauseCounts(ctx context.Context) (CauseCounts, error)
}

// CauseCounts are numbers of new flows, or of packets. They continue when a policy changes; a rule that says
// something else counts from 0 on.
type CauseCounts struct {
	// Packets is true if packets are counted, since the agent started, and numbers are lower bounds. Otherwise
	// new flows are counted, exactly, and numbers continue when the agent restarts.
	Packets bool
	// Causes are those by which policy decides now, in no order. A rule that decides nothing on this node is
	// missing.
	Causes []CauseCount
	// Others counts flows whose cause is not counted separately, by Direction and Verdict.
	Others [2][2]uint64
	// Past counts flows of rules that are gone or say something else now, by Direction and Verdict, as long as no
	// other rule needs their counters.
	Past [2][2]uint64
	// Shared are the causes for which the data path has no room, wholly or in part: Others counts their flows.
	Shared []model.Decision
}

// CauseCount is the number of new flows that a cause has decided, or of packets.
type CauseCount struct {
	model.Decision
	Flows uint64
}

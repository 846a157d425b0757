// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"context"

	"github.com/isthmus-net/isthmus/common/model"
)

// CauseCounter is a Backend that counts new flows by the causes of their verdicts.
type CauseCounter interface {
	// CauseCounts reads the counters of the policies in force. It may run beside the other methods except
	// Close.
	CauseCounts(ctx context.Context) (CauseCounts, error)
}

// CauseCounts are numbers of new flows. They continue when the agent restarts and when a policy changes; a rule
// that says something else counts from 0 on.
type CauseCounts struct {
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

// CauseCount is the number of new flows that a cause has decided.
type CauseCount struct {
	model.Decision
	Flows uint64
}

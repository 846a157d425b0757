// SPDX-License-Identifier: Apache-2.0

package readers

import (
	"bufio"
	"fmt"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/test/cluster"
)

// Emitted are counters of a node, from its metrics.
type Emitted struct {
	// Decided counts verdicts on new flows, and drops for other reasons: each is an event. The programs count them apart from
	// the events.
	Decided uint64
	// Seen is the number of events that the agent got. Limited were over the limit of a pod, Lost not read from the kernel in
	// time.
	Seen, Limited, Lost uint64
}

// Events is the number of events by the counters of events.
func (e Emitted) Events() uint64 { return e.Seen + e.Limited + e.Lost }

// Since returns the difference to earlier counters.
func (e Emitted) Since(before Emitted) Emitted {
	return Emitted{e.Decided - before.Decided, e.Seen - before.Seen, e.Limited - before.Limited, e.Lost - before.Lost}
}

// Count reads the counters of a node. at is when the agent read those of its programs: after a slow read, it answers with
// the same ones for a while.
func Count(n *cluster.Node) (e Emitted, at time.Time, err error) {
	text, _, err := n.Get("/metrics")
	if err != nil {
		return e, at, err
	}
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		series, value, _ := strings.Cut(lines.Text(), " ")
		var to *uint64 // nil for the time
		switch name, labels, _ := strings.Cut(series, "{"); {
		case name == "isthmus_verdicts_total", name == "isthmus_drops_total":
			to = &e.Decided
		case name == "isthmus_flow_events_total":
			to = &e.Seen
		case name == "isthmus_flow_events_missed_total" && strings.Contains(labels, `"limited"`):
			to = &e.Limited
		case name == "isthmus_flow_events_missed_total" && strings.Contains(labels, `"lost"`):
			to = &e.Lost
		case name == "isthmus_counters_timestamp_seconds":
		default:
			continue
		}
		var v float64
		if _, err := fmt.Sscan(value, &v); err != nil {
			return e, at, fmt.Errorf("metric %q: %w", lines.Text(), err)
		}
		if to == nil {
			at = time.UnixMicro(int64(v * 1e6))
			continue
		}
		*to += uint64(v)
	}
	return e, at, lines.Err()
}

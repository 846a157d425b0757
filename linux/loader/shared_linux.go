// SPDX-License-Identifier: Apache-2.0

package loader

import "github.com/cilium/ebpf"

// Shared returns the maps, by name, through which other programs of the node read the tables of
// local pods. The DataPath closes them.
func (d *DataPath) Shared() map[string]*ebpf.Map {
	o := &d.objects
	return map[string]*ebpf.Map{
		"locals4": o.Locals4, "locals6": o.Locals6, "slots": o.Slots, "generation": o.Generation, "peers4": o.Peers4, "peers6": o.Peers6,
		"prefixes4": o.Prefixes4, "prefixes6": o.Prefixes6, "ports": o.PodMaps.Ports, "verdicts": o.Verdicts, "rows": o.Rows,
		"counters": o.PodMaps.Counters, "verdict_counts": o.VerdictCounts,
		"events": o.Events, "event_budgets": o.EventBudgets, "event_losses": o.EventLosses,
	}
}

// Constants returns the constants that the programs were loaded with, for other programs that
// share code with them.
func (d *DataPath) Constants() map[string]uint32 { return d.constants }

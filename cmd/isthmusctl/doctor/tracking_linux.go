// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"path/filepath"

	"github.com/isthmus-net/isthmus/linux/loader"
)

// checkTracking checks whether BPF programs can look up flows in connection tracking.
func (c Config) checkTracking() []Finding {
	const check = "connection tracking"
	switch loader.FindTracking(filepath.Join(c.Root, "sys")) {
	case loader.BuiltIn:
		return []Finding{{Check: check, Severity: Good, What: "built in"}}
	case loader.Loaded:
		return []Finding{{Check: check, Severity: Good, What: "module nf_conntrack is loaded"}}
	}
	return []Finding{{check, Warning, "module nf_conntrack is not loaded",
		"without it, packets between pods of different nodes take the slow path through the host stack", "modprobe nf_conntrack, at every boot (/etc/modules-load.d)"}}
}

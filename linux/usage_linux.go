// SPDX-License-Identifier: Apache-2.0

package linux

import "github.com/isthmus-net/isthmus/common/dataplane"

// noteUsage records the usage of the maps, for Counters, and the causes, for CauseCounts.
func (b *Backend) noteUsage() {
	if b.layout == nil {
		return // the next call reads it back
	}
	usage := make(map[string]dataplane.MapUsage)
	for name, u := range b.layout.Usage() {
		usage[name] = dataplane.MapUsage{Entries: u.Entries, Capacity: u.Capacity}
	}
	b.usage.Store(&usage)
	b.noteCauses()
}

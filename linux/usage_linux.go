// SPDX-License-Identifier: Apache-2.0

package linux

import "github.com/isthmus-net/isthmus/common/dataplane"

// noteUsage notes how full the maps are, for Counters.
func (b *Backend) noteUsage() {
	if b.layout == nil {
		return // it is read back at the next call
	}
	usage := make(map[string]dataplane.MapUsage)
	for name, u := range b.layout.Usage() {
		usage[name] = dataplane.MapUsage{Entries: u.Entries, Capacity: u.Capacity}
	}
	b.usage.Store(&usage)
}

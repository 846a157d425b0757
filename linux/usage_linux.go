// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"sync"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/linux/loader"
	"github.com/isthmus-net/isthmus/linux/policymap"
)

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

// flowsEvery is how long the usage of the flow tables is used again. Reading it takes several milliseconds.
const flowsEvery = 10 * time.Second

// flowUsage is the usage of the flow tables as last read. It is safe for concurrent use.
type flowUsage struct {
	mutex sync.Mutex
	last  map[string]policymap.Usage
	at    time.Time
}

// usage returns the usage of the flow tables, at most flowsEvery old. The caller must not change it.
func (f *flowUsage) usage(path *loader.DataPath, now time.Time) (map[string]policymap.Usage, error) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	if f.last != nil && now.Sub(f.at) < flowsEvery {
		return f.last, nil
	}
	read, err := path.FlowUsage()
	if err != nil {
		return nil, err
	}
	f.last, f.at = read, now
	return read, nil
}

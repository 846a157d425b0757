// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"slices"
	"sync"
	"time"
)

// Repair is a change by another process that was repaired.
type Repair struct {
	What string
	At   time.Time
	// Times is how often the same was repaired; At is then the last time.
	Times int
}

// maxRepairs bounds a History.
const maxRepairs = 20

// History holds the last repairs of a data path, which help to find out why a packet was lost. It is safe for
// concurrent use.
type History struct {
	mutex sync.Mutex
	list  []Repair // oldest first
}

// Add adds a repair. One with the same text replaces the earlier one.
func (h *History) Add(what string, now time.Time) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	r := Repair{What: what, At: now, Times: 1}
	if i := slices.IndexFunc(h.list, func(r Repair) bool { return r.What == what }); i >= 0 {
		r.Times += h.list[i].Times
		h.list = slices.Delete(h.list, i, i+1)
	}
	h.list = append(h.list, r)
	if len(h.list) > maxRepairs {
		h.list = slices.Delete(h.list, 0, len(h.list)-maxRepairs)
	}
}

// Last returns the repairs, oldest first.
func (h *History) Last() []Repair {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	return slices.Clone(h.list)
}

// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"slices"
	"strings"
	"sync"
	"time"
)

// Fault makes calls go wrong.
type Fault struct {
	// Op is the call, "Modify.endpoint" for example; empty for every one.
	Op string
	// Contains, if set, is a text that the arguments or the GUID must contain.
	Contains string
	// Skip calls that match are let pass first.
	Skip int
	// Times is how many calls are hit; 0 means all from then on.
	Times int
	// Delay comes before anything else, and PerRule for each ACL in the call.
	Delay, PerRule time.Duration
	// Hang holds the call until the fault is cleared; only then the call is done.
	Hang bool
	// Code, if not 0, is the HRESULT. With After the call is done all the same.
	Code  uint32
	After bool
	// Linger comes after the call was done and before it is answered.
	Linger time.Duration
	// Text is what the service says; "injected" if empty.
	Text string
	// Lie answers success and does nothing.
	Lie bool
}

// Says is the text of the error.
func (f *Fault) Says() string {
	if f.Text == "" {
		return "injected"
	}
	return f.Text
}

// armed is a Fault at work.
type armed struct {
	Fault
	released chan struct{}
}

// Faults are looked at in the order in which they were set; the first that
// matches is taken. Its methods may be called from several goroutines; the zero
// value has none.
type Faults struct {
	mu   sync.Mutex
	list []*armed
	hits int
	life int
}

// Set makes calls go wrong from now on.
func (f *Faults) Set(fault Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list = append(f.list, &armed{Fault: fault, released: make(chan struct{})})
}

// Clear ends all faults; calls that hang go on.
func (f *Faults) Clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range f.list {
		close(a.released)
	}
	f.list = nil
}

// Hits is how many calls were hit so far.
func (f *Faults) Hits() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hits
}

// Abandon ends the callers' process: what it asked for and HNS has not begun is
// not done any more.
func (f *Faults) Abandon() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.life++
}

// Hit is the fault of one call; the zero value is one without effect.
type Hit struct {
	Fault
	faults   *Faults
	life     int
	rules    int
	released chan struct{}
}

// Take returns the fault of a call with what it carries.
func (f *Faults) Take(op string, texts ...string) *Hit {
	f.mu.Lock()
	defer f.mu.Unlock()
	hit := &Hit{faults: f, life: f.life}
	for i, a := range f.list {
		text := strings.Join(texts, "\n")
		if a.Op != "" && a.Op != op || !strings.Contains(text, a.Contains) {
			continue
		}
		if a.Skip > 0 {
			a.Skip--
			continue
		}
		f.hits++
		hit.Fault, hit.released = a.Fault, a.released
		hit.rules = strings.Count(text, `"ACL"`)
		if a.Times == 1 && !a.Hang { // one that hangs is kept until it is cleared
			f.list = slices.Delete(f.list, i, i+1)
		} else if a.Times == 1 {
			a.Skip = 1 << 30
		} else if a.Times > 1 {
			a.Times--
		}
		return hit
	}
	return hit
}

// Wait lasts as long as the call is held before it is done. abandoned tells that
// it will not be done because its caller has ended meanwhile.
func (h *Hit) Wait() (abandoned bool) {
	time.Sleep(h.Delay + time.Duration(h.rules)*h.PerRule)
	if h.Hang {
		<-h.released
	}
	if h.faults == nil {
		return false
	}
	h.faults.mu.Lock()
	defer h.faults.mu.Unlock()
	return h.faults.life != h.life
}

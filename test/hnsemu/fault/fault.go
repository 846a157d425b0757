// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"slices"
	"strings"
	"sync"
	"time"
)

// Fault changes what matching calls do.
type Fault struct {
	// Op is the call, such as "Modify.endpoint"; empty matches every call.
	Op string
	// Contains, if set, must occur in the arguments or the GUID.
	Contains string
	// Skip is the number of matching calls that succeed first.
	Skip int
	// Times is the number of calls that the fault hits; 0 means all.
	Times int
	// Delay precedes the call. PerRule is added for each ACL in the call.
	Delay, PerRule time.Duration
	// Hang holds the call until the fault is cleared; the call then proceeds.
	Hang bool
	// Code, if not 0, is the HRESULT of the call. With After, the call takes effect nevertheless.
	Code  uint32
	After bool
	// Linger is the time between the effect of the call and its answer.
	Linger time.Duration
	// Text is the error text; "injected" if empty.
	Text string
	// Lie returns success without any effect.
	Lie bool
}

// Says returns the error text.
func (f *Fault) Says() string {
	if f.Text == "" {
		return "injected"
	}
	return f.Text
}

// armed is a Fault in force.
type armed struct {
	Fault
	released chan struct{}
}

// Faults are checked in the order in which they were set; the first match applies. The methods may
// be called concurrently. The zero value has no faults.
type Faults struct {
	mu   sync.Mutex
	list []*armed
	hits int
	life int
}

// Set adds a fault.
func (f *Faults) Set(fault Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list = append(f.list, &armed{Fault: fault, released: make(chan struct{})})
}

// Clear removes all faults. Calls that hang proceed.
func (f *Faults) Clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range f.list {
		close(a.released)
	}
	f.list = nil
}

// Hits returns the number of calls that faults have hit.
func (f *Faults) Hits() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hits
}

// Abandon simulates the end of the callers' process: calls that HNS has not begun take no effect.
func (f *Faults) Abandon() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.life++
}

// Hit is the fault of one call. The zero value has no effect.
type Hit struct {
	Fault
	faults   *Faults
	life     int
	rules    int
	released chan struct{}
}

// Take returns the fault that hits a call with these arguments.
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
		if a.Times == 1 && !a.Hang { // a fault that hangs calls stays until it is cleared
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

// Wait blocks until the call may proceed. abandoned reports that it must not, because its caller
// has ended meanwhile.
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

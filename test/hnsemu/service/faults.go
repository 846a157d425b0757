// SPDX-License-Identifier: Apache-2.0

package service

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
	// Delay comes before anything else.
	Delay time.Duration
	// Hang holds the call until the fault is cleared; only then the call is done.
	Hang bool
	// Code, if not 0, is the HRESULT. With After the call is done all the same.
	Code  uint32
	After bool
	// Lie answers success and does nothing.
	Lie bool
}

// armed is a Fault at work.
type armed struct {
	Fault
	released chan struct{}
}

// faults are looked at in the order in which they were set; the first that
// matches is taken.
type faults struct {
	mu   sync.Mutex
	list []*armed
}

func (f *faults) set(fault Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list = append(f.list, &armed{Fault: fault, released: make(chan struct{})})
}

func (f *faults) clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range f.list {
		close(a.released)
	}
	f.list = nil
}

// take returns the fault of a call; one without effect if there is none.
func (f *faults) take(c Call) *armed {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, a := range f.list {
		if a.Op != "" && a.Op != c.Op || a.Contains != "" && !strings.Contains(c.GUID+"\n"+strings.Join(c.Args[:], "\n"), a.Contains) {
			continue
		}
		if a.Skip > 0 {
			a.Skip--
			continue
		}
		hit := &armed{Fault: a.Fault, released: a.released}
		if a.Times == 1 && !a.Hang { // one that hangs is kept until it is cleared
			f.list = slices.Delete(f.list, i, i+1)
		} else if a.Times == 1 {
			a.Skip = 1 << 30
		} else if a.Times > 1 {
			a.Times--
		}
		return hit
	}
	return &armed{}
}

func (a *armed) wait() {
	time.Sleep(a.Delay)
	if a.Hang {
		<-a.released
	}
}

// SetFault makes calls go wrong from now on.
func (s *Service) SetFault(f Fault) { s.faults.set(f) }

// ClearFaults ends all faults; calls that hang go on.
func (s *Service) ClearFaults() { s.faults.clear() }

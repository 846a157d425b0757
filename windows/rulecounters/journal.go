// SPDX-License-Identifier: Apache-2.0

package rulecounters

import (
	"maps"
	"net/netip"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// maxStates bounds the kept States. Packets of an interval with more are not assigned to rules.
const maxStates = 8

// Installed is what HNS holds for an endpoint.
type Installed struct {
	GUID string // of the endpoint
	List []hns.ACL
	// Sets are those of the network. Nothing changes them later.
	Sets map[string][]netip.Addr
	// Options are those with which the list was lowered.
	Options acl.Options
}

// journal records when States and lists changed, in steps that count up.
type journal struct {
	step      uint64
	states    []stateAt // oldest first
	complete  uint64    // no State in force at or after this step is missing from states
	written   map[model.EndpointID]uint64
	installed map[model.EndpointID]Installed // without a GUID while the list is being written
}

// stateAt is a State and the step at which its first write could take effect.
type stateAt struct {
	state *model.State
	from  uint64
}

func newJournal() journal {
	return journal{written: make(map[model.EndpointID]uint64), installed: make(map[model.EndpointID]Installed)}
}

// mark returns the present step. What is recorded later has a higher one.
func (j *journal) mark() uint64 { return j.step }

func (j *journal) begin(s *model.State) {
	if n := len(j.states); n > 0 && j.states[n-1].state == s {
		return
	}
	j.step++
	if len(j.states) == maxStates {
		j.states = append([]stateAt(nil), j.states[1:]...)
		j.complete = j.states[0].from
	}
	j.states = append(j.states, stateAt{s, j.step})
}

func (j *journal) write(id model.EndpointID) {
	j.step++
	j.written[id] = j.step
	j.installed[id] = Installed{}
}

func (j *journal) install(all map[model.EndpointID]Installed) {
	for id, in := range all {
		if was := j.installed[id]; was.GUID != "" && was.GUID != in.GUID {
			j.step++
			j.written[id] = j.step
		}
	}
	for id := range j.installed {
		if _, ok := all[id]; !ok {
			j.step++
			j.written[id] = j.step // what HNS holds is not certain any more
		}
	}
	j.installed = all
}

// forget removes what is recorded of endpoints that are not installed. Their readings must be removed too.
func (j *journal) forget() {
	maps.DeleteFunc(j.written, func(id model.EndpointID, _ uint64) bool { return !j.holds(id) })
}

// holds reports whether it is certain what HNS holds for an endpoint, or will be when a write has ended.
func (j *journal) holds(id model.EndpointID) bool {
	_, ok := j.installed[id]
	return ok
}

// since returns the States that were in force after a mark, and whether the list of the endpoint and its sets have
// been the same since.
func (j *journal) since(id model.EndpointID, mark uint64) (states []*model.State, clean bool) {
	if j.written[id] > mark || mark < j.complete {
		return nil, false
	}
	for i := len(j.states) - 1; i >= 0; i-- {
		states = append(states, j.states[i].state)
		if j.states[i].from <= mark {
			break
		}
	}
	return states, true
}

// latest returns the last State alone.
func (j *journal) latest() []*model.State {
	if len(j.states) == 0 {
		return nil
	}
	return []*model.State{j.states[len(j.states)-1].state}
}

// prune forgets States that were replaced before a step.
func (j *journal) prune(oldest uint64) {
	for len(j.states) > 1 && j.states[1].from <= oldest {
		j.states = j.states[1:]
		j.complete = j.states[0].from
	}
}

// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"fmt"
	"slices"
)

// Quirks are what some HNS do and others do not.
type Quirks struct {
	// NoVFP is an edition of Windows for clients: overlay networks and ACLs are
	// refused.
	NoVFP bool
	// RemotesApart gives an address to a remote and to a local endpoint of one
	// network. Otherwise whoever comes second is refused.
	RemotesApart bool
	// AttachOnce refuses to put an endpoint that was taken out of a namespace
	// into another.
	AttachOnce bool
	// NoSCTP refuses ACLs that name the protocol.
	NoSCTP bool
}

// SetQuirks makes the Fake behave so from now on.
func (f *Fake) SetQuirks(q Quirks) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.quirks = q
}

// SetVersion makes it another HNS; what is stored stays.
func (f *Fake) SetVersion(v Version) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.version = v
}

// Rehydrate does what restarts of the service have been seen to do: every
// network and endpoint comes back under another identifier.
func (f *Fake) Rehydrate() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range f.networks {
		was := n.ID
		n.ID = f.guid()
		for _, e := range f.endpoints {
			if SameID(e.HostComputeNetwork, was) {
				e.HostComputeNetwork = n.ID
			}
		}
	}
	for _, e := range f.endpoints {
		f.renumber(e)
	}
}

func (f *Fake) renumber(e *Endpoint) {
	was := e.ID
	e.ID = f.guid()
	f.stats[e.ID] = &Stats{}
	delete(f.stats, was)
	if state, ok := f.states[was]; ok {
		f.states[e.ID] = state
		delete(f.states, was)
	}
	for i, id := range f.host {
		if SameID(id, was) {
			f.host[i] = e.ID
		}
	}
	for _, n := range f.namespaces {
		for i, r := range n.Resources {
			if r.is("Endpoint", was) {
				n.Resources[i] = endpointResource(e.ID)
			}
		}
	}
}

// Lose does what the worst restart of the service does: networks that are marked
// NonPersistent are gone with everything on them; namespaces and the containers
// in them stay.
func (f *Fake) Lose() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range slices.Clone(f.networks) {
		if n.Flags&NonPersistent != 0 {
			f.dropNetwork(n)
		}
	}
}

// Blackout makes the next overlay network show an address that is not the node's
// (link-local, or empty) for some listings, before it has its own.
func (f *Fake) Blackout(listings int, shown string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.Late, f.early = listings, shown
}

// MoveTunnels gives all overlay networks another tunnel address, as HNS does
// that finds another adapter when it comes back.
func (f *Fake) MoveTunnels(address string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range f.networks {
		for i, p := range n.Policies {
			if p.Is(TypeProviderAddress) {
				n.Policies[i] = MakePolicy(TypeProviderAddress, ProviderAddress{address})
			}
		}
	}
}

// SetState puts an endpoint into a state that nothing else would; StateNone
// ends that. ErrGone: there is no such endpoint.
func (f *Fake) SetState(id string, s State) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.endpoint(id)
	if e == nil {
		return NewError("SetState", CodeEndpointNotFound, fmt.Sprintf("endpoint %q does not exist", id))
	}
	if delete(f.states, e.ID); s != StateNone {
		f.states[e.ID] = s
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package hnstest

import (
	"fmt"
	"slices"

	"github.com/isthmus-net/isthmus/windows/hns"
)

// Quirks are behaviours that differ between HNS installations.
type Quirks struct {
	// NoVFP is a client edition of Windows: it refuses overlay networks and ACLs.
	NoVFP bool
	// RemotesApart allows a remote and a local endpoint of one network to have the same address. Otherwise
	// the second one is refused.
	RemotesApart bool
	// AttachOnce refuses to attach an endpoint to another namespace after it was detached from one.
	AttachOnce bool
	// NoSCTP is the code with which it refuses ACLs that name SCTP; 0 if it takes them.
	NoSCTP uint32
	// IPv4Only creates endpoints without their IPv6 addresses, and reports success.
	IPv4Only bool
	// OpenEndpoints creates endpoints without their ACLs, and reports success.
	OpenEndpoints bool
}

// SetQuirks changes the behaviour of the Fake from now on.
func (f *Fake) SetQuirks(q Quirks) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.quirks = q
}

// SetVersion changes the version of HNS; stored objects stay.
func (f *Fake) SetVersion(v hns.Version) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.version = v
}

// Rehydrate repeats what restarts of the service have been seen to do: every network and endpoint comes
// back with another identifier.
func (f *Fake) Rehydrate() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range f.networks {
		was := n.ID
		n.ID = f.guid()
		for _, e := range f.endpoints {
			if hns.SameID(e.HostComputeNetwork, was) {
				e.HostComputeNetwork = n.ID
			}
		}
	}
	for _, e := range f.endpoints {
		f.renumber(e)
	}
}

func (f *Fake) renumber(e *hns.Endpoint) {
	was := e.ID
	e.ID = f.guid()
	f.stats[e.ID] = &hns.Stats{}
	delete(f.stats, was)
	if state, ok := f.states[was]; ok {
		f.states[e.ID] = state
		delete(f.states, was)
	}
	for i, id := range f.host {
		if hns.SameID(id, was) {
			f.host[i] = e.ID
		}
	}
	for _, n := range f.namespaces {
		for i, r := range n.Resources {
			if isObject(r, "Endpoint", was) {
				n.Resources[i] = endpointResource(e.ID)
			}
		}
	}
}

// Lose repeats the worst restart of the service. Networks marked NonPersistent are lost with everything on
// them. Namespaces and the containers in them stay.
func (f *Fake) Lose() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range slices.Clone(f.networks) {
		if n.Flags&hns.NonPersistent != 0 {
			f.dropNetwork(n)
		}
	}
}

// Blackout makes the next overlay network show a wrong address (link-local, or empty) for some listings,
// before it has its own.
func (f *Fake) Blackout(listings int, shown string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.Late, f.early = listings, shown
}

// MoveTunnels gives all overlay networks another tunnel address, as HNS does if it finds another adapter
// after a restart.
func (f *Fake) MoveTunnels(address string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range f.networks {
		for i, p := range n.Policies {
			if p.Is(hns.TypeProviderAddress) {
				n.Policies[i] = hns.MakePolicy(hns.TypeProviderAddress, hns.ProviderAddress{ProviderAddress: address})
			}
		}
	}
}

// SetState puts an endpoint into a state that nothing else produces; StateNone ends that. ErrGone: the
// endpoint does not exist.
func (f *Fake) SetState(id string, s hns.State) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.endpoint(id)
	if e == nil {
		return hns.NewError("SetState", hns.CodeEndpointNotFound, fmt.Sprintf("endpoint %q does not exist", id))
	}
	if delete(f.states, e.ID); s != hns.StateNone {
		f.states[e.ID] = s
	}
	return nil
}

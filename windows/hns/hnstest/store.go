// SPDX-License-Identifier: Apache-2.0

package hnstest

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/isthmus-net/isthmus/windows/hns"
)

// store is the part of a Fake that survives a restart.
type store struct {
	Sequence, MACs uint32
	Networks       []*hns.Network
	Endpoints      []*hns.Endpoint
	Namespaces     []*hns.Namespace
	Host           []string
}

// Save returns all stored objects, for Load.
func (f *Fake) Save() ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	text, err := json.Marshal(store{f.sequence, f.macs, f.networks, f.endpoints, f.namespaces, f.host})
	if err != nil {
		return nil, fmt.Errorf("save hns objects: %w", err)
	}
	return text, nil
}

// Load replaces all objects by those from Save. It resets the packet counts.
func (f *Fake) Load(text []byte) error {
	var s store
	if err := json.Unmarshal(text, &s); err != nil {
		return fmt.Errorf("load hns objects: %w", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sequence, f.macs = s.Sequence, s.MACs
	f.networks, f.endpoints, f.namespaces, f.host = s.Networks, s.Endpoints, s.Namespaces, s.Host
	f.stats = make(map[string]*hns.Stats, len(f.endpoints))
	clear(f.states)
	clear(f.left)
	for _, e := range f.endpoints {
		f.stats[e.ID] = &hns.Stats{}
	}
	return nil
}

// Reboot simulates a restart of the machine: networks marked NonPersistent are gone with everything on
// them, and so are all namespaces.
func (f *Fake) Reboot() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.namespaces, f.host = nil, nil
	for _, n := range slices.Clone(f.networks) {
		if n.Flags&hns.NonPersistent != 0 && f.bug != BugRebootKeeps {
			f.dropNetwork(n)
		}
	}
	for _, e := range f.endpoints {
		e.HostComputeNamespace = ""
	}
}

// Network returns a network. ErrGone: it does not exist.
func (f *Fake) Network(_ context.Context, id string) (n hns.Network, err error) {
	err = f.do("Network", id, nil, func() error {
		found := f.network(id)
		if found == nil {
			return hns.NewError("Network", hns.CodeNotFound, "Element not found.")
		}
		n = f.showNetwork(found)
		return nil
	})
	return n, err
}

// Endpoint returns an endpoint. ErrGone: it does not exist.
func (f *Fake) Endpoint(_ context.Context, id string) (e hns.Endpoint, err error) {
	err = f.do("Endpoint", id, nil, func() error {
		found := f.endpoint(id)
		if found == nil {
			if f.bug == BugWrongCode {
				return hns.NewError("Endpoint", hns.CodeUnexpected, "Catastrophic failure")
			}
			return hns.NewError("Endpoint", hns.CodeNotFound, "Element not found.")
		}
		e = f.showEndpoint(found)
		return nil
	})
	return e, err
}

// AllEndpoints lists the endpoints of all networks.
func (f *Fake) AllEndpoints(context.Context) (list []hns.Endpoint, err error) {
	err = f.do("AllEndpoints", "", nil, func() error {
		for _, e := range f.endpoints {
			list = append(list, f.showEndpoint(e))
		}
		return nil
	})
	return list, err
}

// OnHost reports whether an endpoint is attached to the host's compartment.
func (f *Fake) OnHost(id string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(f.host, func(h string) bool { return hns.SameID(h, id) })
}

// PortRules returns the rules in force at the port of an attached endpoint.
func (f *Fake) PortRules(id string) (*hns.Rules, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.endpoint(id)
	if e == nil {
		return nil, fmt.Errorf("endpoint %q does not exist", id)
	}
	return f.rules(e)
}

// PortACLs returns the list that PortRules parses, in its order.
func (f *Fake) PortACLs(id string) ([]hns.ACL, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.endpoint(id)
	if e == nil {
		return nil, fmt.Errorf("endpoint %q does not exist", id)
	}
	acls, err := f.listInForce(e)
	return layered(f.misread(acls)), err
}

// Count adds to the packet counts of an endpoint.
func (f *Fake) Count(id string, d hns.Direction, passed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.stats[id]; s != nil {
		count(s, d, passed)
	}
}

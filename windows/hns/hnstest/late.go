// SPDX-License-Identifier: Apache-2.0

package hnstest

import (
	"maps"
	"slices"

	"github.com/isthmus-net/isthmus/windows/hns"
)

// late holds what packets still meet although HNS has answered a later write.
type late struct {
	delaysSets, delaysLists bool
	sets                    map[string][]hns.SetPolicy // by network
	lists                   map[string][]hns.Policy    // ACLs by endpoint
}

// SetLate delays writes of sets from now on: packets meet them when networks are listed. It delays writes of ACLs in the
// same way until endpoints are listed. Gradual is then called after each write of a set, for each endpoint that waits.
// Answers show all writes at once. HNS is not known to do so.
func (f *Fake) SetLate(sets, lists bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.late.delaysSets, f.late.delaysLists = sets, lists
}

// delaySets keeps the sets of a network in force that it has now. The caller holds the lock.
func (f *Fake) delaySets(n *hns.Network) error {
	if _, delayed := f.late.sets[n.ID]; !f.late.delaysSets || delayed {
		return nil
	}
	sets, err := n.Sets()
	if err != nil {
		return err
	}
	if f.late.sets == nil {
		f.late.sets = make(map[string][]hns.SetPolicy)
	}
	f.late.sets[n.ID] = sets
	return nil
}

// delayList keeps the ACLs of an endpoint in force that it has now. The caller holds the lock.
func (f *Fake) delayList(e *hns.Endpoint) {
	if _, delayed := f.late.lists[e.ID]; !f.late.delaysLists || delayed {
		return
	}
	if f.late.lists == nil {
		f.late.lists = make(map[string][]hns.Policy)
	}
	f.late.lists[e.ID] = slices.DeleteFunc(slices.Clone(e.Policies), func(p hns.Policy) bool { return !p.Is(hns.TypeACL) })
}

// listInForce returns the ACLs that packets meet at an endpoint. On a transparent network they meet none, as its ports are not those of
// VFP (network-isolation-security.md of Microsoft's Virtualization-Documentation).
func (f *Fake) listInForce(e *hns.Endpoint) ([]hns.ACL, error) {
	if n := f.network(e.HostComputeNetwork); n != nil && sameType(n.Type, Transparent) {
		return nil, nil
	}
	if old, delayed := f.late.lists[e.ID]; delayed {
		return (&hns.Endpoint{Policies: old}).ACLs()
	}
	return e.ACLs()
}

// setsInForce returns the sets that packets meet. A set whose creation is delayed is empty, and so is one that a delayed
// list refers to and that is removed.
func (f *Fake) setsInForce(network, endpoint string, acls []hns.ACL) ([]hns.SetPolicy, error) {
	stored, err := f.network(network).Sets()
	if err != nil {
		return nil, err
	}
	sets := slices.Clone(stored)
	if old, delayed := f.late.sets[network]; delayed {
		sets = slices.Clone(old)
		for _, s := range stored {
			if !hasSet(sets, s.ID) {
				s.Values = ""
				sets = append(sets, s)
			}
		}
	}
	for _, a := range acls {
		for _, text := range []string{a.LocalAddresses, a.RemoteAddresses} {
			list, err := hns.ParseAddresses(text)
			if err != nil {
				continue // the parser of the rules says so
			}
			for _, id := range list.Sets {
				if _, delayed := f.late.lists[endpoint]; delayed && !hasSet(sets, id) {
					sets = append(sets, hns.SetPolicy{ID: id})
				}
			}
		}
	}
	return sets, nil
}

func hasSet(sets []hns.SetPolicy, id string) bool {
	return slices.ContainsFunc(sets, func(s hns.SetPolicy) bool { return s.ID == id })
}

// meet calls Gradual for each endpoint whose list is delayed: a set has changed.
func (f *Fake) meet() {
	f.mu.Lock()
	step := f.Gradual
	ids := slices.Sorted(maps.Keys(f.late.lists))
	f.mu.Unlock()
	for _, id := range ids {
		if step != nil {
			step(id)
		}
	}
}

// Delayed reports whether packets at an endpoint meet a list, or a set of its network, as it was before a write that was
// answered.
func (f *Fake) Delayed(id string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.endpoint(id)
	if e == nil {
		return false
	}
	_, sets := f.late.sets[e.HostComputeNetwork]
	_, list := f.late.lists[e.ID]
	return sets || list
}

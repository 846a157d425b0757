// SPDX-License-Identifier: Apache-2.0

package further

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/isthmus-net/isthmus/common/endpoint"
	"github.com/isthmus-net/isthmus/common/model"
)

// Owners knows the owners of the further addresses of a node's pods. It is not safe for concurrent use.
type Owners struct {
	snapshot *model.Snapshot // nil before the first Read
	// known are the pods and nodes with each further address, according to the API.
	known map[netip.Addr]map[string]bool
	// local are the pods with each further address, according to the records.
	local map[netip.Addr]map[string]bool
	// exceptions are the rules that deny pods, or exempt them from later rules.
	exceptions []exception
}

// exception is a peer of a Deny or Pass rule.
type exception struct {
	policy model.Origin
	pods   model.PodSelector
}

// Read reads a snapshot, which must not be nil, and the records of the node. Its cost grows with what changed since the last call,
// unless the further addresses are others.
func (o *Owners) Read(s *model.Snapshot, records []endpoint.Record) {
	o.local = make(map[netip.Addr]map[string]bool)
	for _, r := range records {
		for _, a := range r.Further {
			o.local[a] = make(map[string]bool)
		}
	}
	for _, r := range records {
		for _, a := range slices.Concat(r.IPs, r.Further) {
			if pods := o.local[a]; pods != nil && r.State != endpoint.Released {
				pods[nameOf(r.Pod())] = true
			}
		}
	}
	o.readOwners(s)
	o.readExceptions(s)
}

func nameOf(p model.PodID) string { return "pod " + p.String() }

// readOwners brings known up to date.
func (o *Owners) readOwners(s *model.Snapshot) {
	old := o.snapshot
	same := len(o.local) == len(o.known)
	for a := range o.local {
		same = same && o.known[a] != nil
	}
	if old == nil || !same {
		old, o.known = &model.Snapshot{}, make(map[netip.Addr]map[string]bool, len(o.local))
		for a := range o.local {
			o.known[a] = make(map[string]bool)
		}
	}
	if o.snapshot = s; len(o.local) == 0 {
		return
	}
	for id := range s.Pods.Changes(old.Pods) {
		o.move(nameOf(id), podAddresses(old, id), podAddresses(s, id))
	}
	for name := range s.Nodes.Changes(old.Nodes) {
		o.move("node "+name, nodeAddresses(old, name), nodeAddresses(s, name))
	}
}

// podAddresses returns the addresses of a pod that may use them.
func podAddresses(s *model.Snapshot, id model.PodID) []netip.Addr {
	if pod, ok := s.Pods.Get(id); ok && !pod.Finished {
		return pod.IPs
	}
	return nil
}

func nodeAddresses(s *model.Snapshot, name string) []netip.Addr {
	if n, ok := s.Nodes.Get(name); ok {
		return n.Addresses
	}
	return nil
}

func (o *Owners) move(owner string, was, is []netip.Addr) {
	for _, a := range was {
		delete(o.known[a], owner)
	}
	for _, a := range is {
		if owners := o.known[a]; owners != nil {
			owners[owner] = true
		}
	}
}

// readExceptions finds the rules that other nodes would not apply to an address that they take for none of a pod.
func (o *Owners) readExceptions(s *model.Snapshot) {
	o.exceptions = nil
	if len(o.local) == 0 {
		return
	}
	for _, p := range s.SortedPolicies() {
		for _, r := range slices.Concat(p.Rules[:]...) {
			if r.Action == model.ActionAccept {
				continue
			}
			for _, peer := range r.Peers {
				if peer.Kind == model.PeerPods {
					o.exceptions = append(o.exceptions, exception{p.Origin, peer.Pods})
				}
			}
			if slices.ContainsFunc(r.Ports, func(m model.PortMatch) bool { return m.Name != "" }) { // which the pod defines
				o.exceptions = append(o.exceptions, exception{p.Origin, model.PodSelector{}})
			}
		}
	}
}

// Refusal says why a pod may not use a further address of its record, and the remedy. Both are empty if it may.
func (o *Owners) Refusal(pod model.PodID, a netip.Addr) (why, remedy string) {
	remedy = "let the network plugin assign another"
	if owner := o.owner(pod, a); owner != "" {
		return "is also that of " + owner, remedy
	}
	if policy := o.exception(pod, a); policy != "" {
		return fmt.Sprintf("is in no pod range, so other nodes would not apply to it what %s denies or passes of the pod", policy),
			"name addresses instead of pods there, or " + remedy
	}
	return "", ""
}

// owner names what has an address besides a pod; "" for nothing.
func (o *Owners) owner(pod model.PodID, a netip.Addr) string {
	for _, owners := range []map[string]bool{o.local[a], o.known[a]} {
		for _, owner := range slices.Sorted(maps.Keys(owners)) {
			if owner != nameOf(pod) {
				return owner
			}
		}
	}
	for name, c := range o.snapshot.ServiceCIDRs.All() {
		if slices.ContainsFunc(c.Prefixes, func(p netip.Prefix) bool { return p.Contains(a) }) {
			return "Services, by ServiceCIDR " + name
		}
	}
	return ""
}

// exception names a policy whose rule about a pod other nodes would not apply to an address; "" if there is none. In a pod range,
// they take it for an unknown pod and deny what such a rule might match. Elsewhere it is any address to them.
func (o *Owners) exception(id model.PodID, a netip.Addr) string {
	pod, ok := o.snapshot.Pods.Get(id)
	if !ok || len(o.exceptions) == 0 || o.snapshot.PodRange(a) {
		return ""
	}
	ns := o.snapshot.Namespace(pod.Namespace)
	for _, x := range o.exceptions {
		if x.pods.MatchesNamespace(ns) && x.pods.Pods.Matches(pod.Labels) {
			return x.policy.String()
		}
	}
	return ""
}

// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"crypto/sha256"
	"fmt"
	"io"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
)

// profile is what makes a Table: the policies that select a pod, and what the
// port names of its ingress rules mean on it.
type profile struct {
	id       model.TableID
	pending  bool
	policies []*model.Policy // in order of evaluation
	// names are the named ports of the pod that ingress rules use.
	names []model.NamedPort
	// rules are the rules per direction, in order of evaluation.
	rules [2][]compiledRule
}

// isolating returns the first NetworkPolicy that isolates for the direction.
func (p *profile) isolating(d model.Direction) *model.Policy {
	for _, policy := range p.policies {
		if policy.Isolates[d] {
			return policy
		}
	}
	return nil
}

// selectPolicies finds the profile of every endpoint.
func (c *compiler) selectPolicies(endpoints map[model.EndpointID]Endpoint) map[model.EndpointID]model.EndpointState {
	type subject struct {
		namespace string
		labels    model.Labels
	}
	sorted := c.snapshot.SortedPolicies()
	selected := make(map[subject][]*model.Policy)
	digests := make(map[*model.Policy][]byte)
	states := make(map[model.EndpointID]model.EndpointState, len(endpoints))
	for id, e := range endpoints {
		p := &profile{}
		pod, ok := c.snapshot.Pods.Get(e.Pod)
		switch {
		case !ok:
			p.pending = true
		case pod.Policed():
			key := subject{pod.Namespace, pod.Labels}
			if _, ok := selected[key]; !ok {
				selected[key] = selecting(sorted, c.snapshot.Namespace(pod.Namespace), pod.Labels)
			}
			p.policies = selected[key]
			p.names = ingressNames(p.policies, pod)
		}
		p.id = p.digest(digests)
		if c.profiles[p.id] == nil {
			c.profiles[p.id] = p
		}
		states[id] = model.EndpointState{Pod: e.Pod, IPs: e.IPs, Table: p.id}
	}
	return states
}

func selecting(policies []*model.Policy, ns *model.Namespace, labels model.Labels) []*model.Policy {
	var found []*model.Policy
	for _, p := range policies {
		if p.Subject.MatchesNamespace(ns) && p.Subject.Pods.Matches(labels) {
			found = append(found, p)
		}
	}
	return found
}

// ingressNames lists the pod's named ports that ingress rules of the policies
// refer to, without repetition.
func ingressNames(policies []*model.Policy, pod *model.Pod) []model.NamedPort {
	var names []model.NamedPort
	for _, p := range policies {
		for _, r := range p.Rules[model.Ingress] {
			for _, m := range r.Ports {
				if m.Name != "" {
					names = append(names, pod.Resolve(m.Name, m.Protocol)...)
				}
			}
		}
	}
	slices.SortFunc(names, compareNamedPorts)
	return slices.Compact(names)
}

// digest identifies the profile by the full text of its rules.
func (p *profile) digest(policies map[*model.Policy][]byte) model.TableID {
	h := sha256.New()
	fmt.Fprintf(h, "pending=%t\n", p.pending)
	for _, policy := range p.policies {
		if policies[policy] == nil {
			ph := sha256.New()
			writePolicy(ph, policy)
			policies[policy] = ph.Sum(nil)
		}
		h.Write(policies[policy])
	}
	for _, n := range p.names {
		fmt.Fprintf(h, "%q %d %d\n", n.Name, n.Protocol, n.Port)
	}
	var id model.TableID
	copy(id[:], h.Sum(nil))
	return id
}

// writePolicy writes a text that two policies share only if they decide, and
// explain, the same.
func writePolicy(w io.Writer, p *model.Policy) {
	fmt.Fprintf(w, "%q %q %d %d %v\n", p.Origin.String(), p.Origin.UID, p.Tier, p.Priority, p.Isolates)
	for _, d := range model.Directions {
		for _, r := range p.Rules[d] {
			fmt.Fprintf(w, "%s %d %q %d %t %t\n", d, r.Index, r.Name, r.Action, r.AnyPeer, r.AnyPort)
			for _, peer := range r.Peers {
				fmt.Fprintf(w, " %d %q\n", peer.Kind, peer)
			}
			for _, m := range r.Ports {
				fmt.Fprintf(w, " %q\n", m)
			}
		}
	}
}

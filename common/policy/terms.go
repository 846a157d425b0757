// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
)

// terms are the distinct conditions on addresses that the rules of this node
// use. Rules refer to them by number; equal texts are one term.
type terms struct {
	number map[string]int
	peers  []model.Peer
	texts  []string
	// egressNames are the port names that egress rules use; they make pods
	// with different meanings of a name different peers.
	egressNames map[portName]bool
	// ports are the ranges that rules use, names resolved.
	ports map[portRange]bool
}

type portName struct {
	name     string
	protocol model.Protocol // AnyProtocol: all
}

type portRange struct {
	protocol    model.Protocol
	first, last uint16
}

func (r portRange) String() string {
	return model.PortMatch{Protocol: r.protocol, First: r.first, Last: r.last}.String()
}

// compiledRule is a rule with its peers as numbers of terms.
type compiledRule struct {
	*model.Rule
	tier  model.Tier
	terms []int
	cause *model.Cause
}

func newTerms() *terms {
	return &terms{number: make(map[string]int), egressNames: make(map[portName]bool), ports: make(map[portRange]bool)}
}

func (t *terms) add(p model.Peer) int {
	text := p.String()
	n, ok := t.number[text]
	if !ok {
		n = len(t.peers)
		t.number[text] = n
		t.peers = append(t.peers, p)
		t.texts = append(t.texts, text)
	}
	return n
}

// collectTerms numbers the terms of every rule that some endpoint is under.
func (c *compiler) collectTerms() {
	compiled := make(map[*model.Policy]*[2][]compiledRule)
	for _, p := range sortedProfiles(c.profiles) {
		for _, policy := range p.policies {
			rules, ok := compiled[policy]
			if !ok {
				rules = c.terms.compile(policy)
				compiled[policy] = rules
			}
			for _, d := range model.Directions {
				p.rules[d] = append(p.rules[d], rules[d]...)
			}
		}
		for _, n := range p.names {
			c.terms.ports[portRange{n.Protocol, n.Port, n.Port}] = true
		}
	}
}

func (t *terms) compile(p *model.Policy) *[2][]compiledRule {
	var out [2][]compiledRule
	for _, d := range model.Directions {
		if p.Tier == model.TierNetworkPolicy && !p.Isolates[d] {
			continue // rules of a direction that policyTypes leaves out say nothing
		}
		for i := range p.Rules[d] {
			r := compiledRule{Rule: &p.Rules[d][i], tier: p.Tier, cause: ruleCause(p, p.Rules[d][i], d)}
			for _, peer := range r.Peers {
				r.terms = append(r.terms, t.add(peer))
			}
			for _, m := range r.Ports {
				t.addPort(m, d, p.Tier)
			}
			out[d] = append(out[d], r)
		}
	}
	return &out
}

func (t *terms) addPort(m model.PortMatch, d model.Direction, tier model.Tier) {
	if m.Name == "" {
		t.ports[portRange{m.Protocol, m.First, m.Last}] = true
		return
	}
	if d == model.Ingress {
		return // the profile resolves it
	}
	t.egressNames[portName{m.Name, m.Protocol}] = true
	if tier == model.TierNetworkPolicy {
		return
	}
	// On a pod that is not known yet the name may be any port of its protocol,
	// and a Deny rule must then match: tell those ports from protocols that
	// have none.
	for _, proto := range model.PortProtocols {
		if m.Protocol == proto || m.Protocol == model.AnyProtocol {
			t.ports[portRange{proto, 0, 65535}] = true
		}
	}
}

// resolved lists the named ports of a pod that egress rules use.
func (t *terms) resolved(pod *model.Pod) []model.NamedPort {
	var names []model.NamedPort
	for _, n := range pod.Ports {
		if t.egressNames[portName{n.Name, n.Protocol}] || t.egressNames[portName{n.Name, model.AnyProtocol}] {
			names = append(names, n)
		}
	}
	slices.SortFunc(names, compareNamedPorts)
	return slices.Compact(names)
}

func compareNamedPorts(a, b model.NamedPort) int {
	return cmp.Or(strings.Compare(a.Name, b.Name), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
}

// nameTexts renders named ports as PeerClassInfo.Names does.
func nameTexts(names []model.NamedPort) []string {
	texts := make([]string, len(names))
	for i, n := range names {
		texts[i] = fmt.Sprintf("%s=%s %d", n.Name, n.Protocol, n.Port)
	}
	return texts
}

func sortedProfiles(m map[model.TableID]*profile) []*profile {
	all := make([]*profile, 0, len(m))
	for _, p := range m {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b *profile) int { return strings.Compare(string(a.id[:]), string(b.id[:])) })
	return all
}

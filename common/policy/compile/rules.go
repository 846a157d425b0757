// SPDX-License-Identifier: Apache-2.0

package compile

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/isthmus-net/isthmus/common/model"
)

// digest identifies a policy by everything that decides or explains.
type digest [sha256.Size]byte

// compiledPolicy is a policy of some endpoint, with its peers as terms.
type compiledPolicy struct {
	*model.Policy
	digest   digest
	profiles int // profiles that use it
	rules    [2][]compiledRule
}

type compiledRule struct {
	*model.Rule
	tier  model.Tier
	terms []*term
	// bits are those of terms. unsure are the terms that may answer maybe: all but address blocks.
	bits   bitset
	unsure []*term
	cause  *model.Cause
	named  bool // has ports by name
}

// compilePolicy enters the words of the rules in the vocabulary.
func (v *vocabulary) compilePolicy(p *model.Policy, d digest) *compiledPolicy {
	c := &compiledPolicy{Policy: p, digest: d}
	for _, d := range model.Directions {
		if p.Tier == model.TierNetworkPolicy && !p.Isolates[d] {
			continue // rules of a direction that policyTypes does not list have no effect
		}
		twins := make(map[uint64]int)
		for i := range p.Rules[d] {
			rule := &p.Rules[d][i]
			r := compiledRule{Rule: rule, tier: p.Tier, cause: ruleCause(p, rule, d, meaning(rule, twins)), named: hasNames(rule.Ports)}
			for _, peer := range r.Peers {
				t := v.use(peer)
				r.terms = append(r.terms, t)
				r.bits.set(t.bit, true)
				if peer.Kind != model.PeerBlock {
					r.unsure = append(r.unsure, t)
				}
			}
			c.rules[d] = append(c.rules[d], r)
		}
	}
	v.countPorts(c, 1)
	return c
}

// dropPolicy removes the entries of compilePolicy.
func (v *vocabulary) dropPolicy(c *compiledPolicy) {
	for _, rules := range c.rules {
		for _, r := range rules {
			for _, t := range r.terms {
				v.drop(t)
			}
		}
	}
	v.countPorts(c, -1)
}

func (v *vocabulary) countPorts(c *compiledPolicy, by int) {
	for _, d := range model.Directions {
		for _, r := range c.rules[d] {
			for _, m := range r.Ports {
				v.countPort(m, d, c.Tier, by)
			}
		}
	}
}

func (v *vocabulary) countPort(m model.PortMatch, d model.Direction, tier model.Tier, by int) {
	if m.Name == "" {
		v.useRange(portRange{m.Protocol, m.First, m.Last}, by)
		return
	}
	if d == model.Ingress {
		return // the profile resolves it
	}
	v.useName(portName{m.Name, m.Protocol}, by)
	if tier == model.TierNetworkPolicy {
		return
	}
	// On a pod that is not known yet the name may be any port of its protocol, and a Deny
	// rule must then match. So distinguish those ports from protocols without ports.
	for _, proto := range model.PortProtocols {
		if m.Protocol == proto || m.Protocol == model.AnyProtocol {
			v.useRange(portRange{proto, 0, 65535}, by)
		}
	}
}

// meaning returns the meaning of a rule. Of several rules that say the same, the order distinguishes them; twins
// counts those before.
func meaning(r *model.Rule, twins map[uint64]int) uint64 {
	sum := func(twin int) uint64 {
		h := sha256.New()
		fmt.Fprintf(h, "%d\n", twin)
		writeRule(h, r)
		return max(binary.BigEndian.Uint64(h.Sum(nil)), 1)
	}
	first := sum(0)
	twin := twins[first]
	twins[first]++
	if twin == 0 {
		return first
	}
	return sum(twin)
}

func digestPolicy(p *model.Policy) digest {
	h := sha256.New()
	writePolicy(h, p)
	return digest(h.Sum(nil))
}

// writePolicy writes a text that two policies share only if they decide and explain the
// same.
func writePolicy(w io.Writer, p *model.Policy) {
	fmt.Fprintf(w, "%q %q %d %d %v\n", p.Origin.String(), p.Origin.UID, p.Tier, p.Priority, p.Isolates)
	for _, d := range model.Directions {
		for _, r := range p.Rules[d] {
			fmt.Fprintf(w, "%s %d %q ", d, r.Index, r.Name)
			writeRule(w, &r)
		}
	}
}

// writeRule writes a text that two rules share only if they match the same and do the same.
func writeRule(w io.Writer, r *model.Rule) {
	fmt.Fprintf(w, "%d %t %t\n", r.Action, r.AnyPeer, r.AnyPort)
	for _, peer := range r.Peers {
		fmt.Fprintf(w, " %d %q\n", peer.Kind, peer)
	}
	for _, m := range r.Ports {
		fmt.Fprintf(w, " %q\n", m)
	}
}

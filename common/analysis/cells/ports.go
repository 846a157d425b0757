// SPDX-License-Identifier: Apache-2.0

package cells

import (
	"cmp"
	"maps"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
)

// portRange is a range of ports that some side distinguishes from the others.
type portRange struct {
	protocol    model.Protocol
	first, last uint16
}

// portRanges collects the ranges by which the sides distinguish ports, and the protocols
// without ports that lists name.
type portRanges struct {
	found map[portRange]bool
	other map[model.Protocol]bool
}

// findPorts divides the ports of every protocol wherever the verdict of a side may change,
// and joins the pieces that lie in the same ranges.
func (c *comparison) findPorts() {
	r := &portRanges{found: make(map[portRange]bool), other: map[model.Protocol]bool{model.ICMP: true, model.ICMPv6: true, 253: true}}
	c.addRulePorts(r)
	for _, p := range c.node.State.Policy.Ports {
		r.found[portRange{p.Protocol, p.First, p.Last}] = true
	}
	if c.node.Maps != nil {
		for m := range c.node.Maps.Ranges() {
			r.found[portRange{m.Protocol, m.First, m.Last}] = true
		}
	}
	for _, l := range c.node.Lists {
		for m := range l.Ranges() {
			if m.Protocol.HasPorts() {
				r.found[portRange{m.Protocol, m.First, m.Last}] = true
			} else {
				r.other[m.Protocol] = true
			}
		}
	}
	seen := make(map[string]bool)
	for _, protocol := range model.PortProtocols {
		var mine []portRange
		starts := map[int]bool{0: true}
		for f := range r.found {
			if f.protocol == protocol {
				mine = append(mine, f)
				starts[int(f.first)] = true
				starts[int(f.last)+1] = true
			}
		}
		delete(starts, 65536)
		slices.SortFunc(mine, func(a, b portRange) int { return cmp.Or(cmp.Compare(a.first, b.first), cmp.Compare(a.last, b.last)) })
		for _, start := range slices.Sorted(maps.Keys(starts)) {
			p := portPoint{protocol, uint16(start)}
			if key := c.portKey(p, mine); !seen[key] {
				seen[key] = true
				c.ports = append(c.ports, p)
			}
		}
	}
	for p := range r.other {
		c.ports = append(c.ports, portPoint{protocol: p})
	}
	slices.SortFunc(c.ports, comparePorts)
	c.result.Ports = len(c.ports)
}

// portKey is a text that two ports share if they lie in the same ranges. It includes their
// classes in the State and in the maps, in case these do not match the ranges.
func (c *comparison) portKey(p portPoint, ranges []portRange) string {
	class := c.node.State.Policy.PortClass(p.protocol, p.port)
	key := []byte{byte(p.protocol), byte(class >> 8), byte(class)}
	if c.node.Maps != nil {
		if mapped, ok := c.node.Maps.PortClass(p.protocol, p.port); ok {
			key = append(key, byte(mapped>>8), byte(mapped))
		}
	}
	for i, r := range ranges {
		if r.first <= p.port && p.port <= r.last {
			key = append(key, byte(i>>16), byte(i>>8), byte(i))
		}
	}
	return string(key)
}

// addRulePorts adds the distinctions of the reference: the ranges of the rules, and the
// ports of their port names on the subjects, or for egress on any pod.
func (c *comparison) addRulePorts(r *portRanges) {
	if c.reference == nil {
		return
	}
	egress := make(map[string]bool)
	for i := range c.subjects {
		s := &c.subjects[i]
		for d, reference := range s.reference {
			if reference == nil {
				continue
			}
			for _, rule := range reference.Rules() {
				for _, m := range rule.Ports {
					switch {
					case m.Name == "":
						r.found[portRange{m.Protocol, m.First, m.Last}] = true
					case model.Direction(d) == model.Egress:
						egress[m.Name] = true
					default:
						r.addNamed(s.pod, func(name string) bool { return name == m.Name })
					}
				}
			}
		}
	}
	if len(egress) == 0 {
		return
	}
	for _, p := range c.node.Snapshot.Pods.All() {
		r.addNamed(p, func(name string) bool { return egress[name] })
	}
}

func (r *portRanges) addNamed(p *model.Pod, used func(name string) bool) {
	for _, n := range p.Ports {
		if used(n.Name) {
			r.found[portRange{n.Protocol, n.Port, n.Port}] = true
		}
	}
}

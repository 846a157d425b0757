// SPDX-License-Identifier: Apache-2.0

package acl

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/hns"
	"go4.org/netipx"
)

// Check proves that a list gives the verdicts of the State for an endpoint: for every address, protocol and
// port, under the given readings. The error names the first packet with a different verdict, or the ACL
// that HNS would refuse.
//
// It skips packets that cannot occur on a port: those from the endpoint's own addresses, and from the
// placeholder addresses of empty sets.
//
// It is exhaustive: it divides the space at every bound in the State or the list, and tries one packet in
// each part.
func Check(s *model.State, id model.EndpointID, o Options, p *Ruleset, readings ...hns.Reading) error {
	rules, err := p.Rules(id)
	if err != nil {
		return err
	}
	c := newChecker(newIndex(s, o))
	return c.check(id, s.Policy.Endpoints[id].IPs, p.Lists[id], p.Sets, rules, readings)
}

// Open returns those of the endpoints whose lists in force could pass a packet that the State denies. A list that cannot
// be decided is among them: one whose verdicts depend on a Reading, one with rules or sets that this package does not
// write, and one that is too large.
func Open(s *model.State, ids []model.EndpointID, o Options, inForce *Ruleset) map[model.EndpointID]bool {
	open := make(map[model.EndpointID]bool)
	if len(ids) == 0 {
		return open
	}
	c := newChecker(newIndex(s, o))
	c.onlyOpen = true
	for _, id := range ids {
		list := inForce.Lists[id]
		open[id] = !Equal(list, DenyAll()) && (!c.decidable(list, inForce) || c.checkList(id, list, inForce) != nil)
	}
	return open
}

// decidable reports whether check can prove anything about a list.
func (c *checker) decidable(list []hns.ACL, p *Ruleset) bool {
	if len(list) > c.options.MaxRules || !WellFormed(list) || slices.ContainsFunc(list, func(a hns.ACL) bool { return !provable(a) }) {
		return false
	}
	return !slices.ContainsFunc(setsOf(list), func(set string) bool { _, known := p.Sets[set]; return !known || p.Unknown[set] })
}

func (c *checker) checkList(id model.EndpointID, list []hns.ACL, p *Ruleset) error {
	rules, err := p.Rules(id)
	if err != nil {
		return err
	}
	return c.check(id, nil, list, p.Sets, rules, []hns.Reading{{}})
}

// checker holds what checks of several endpoints of a State share.
type checker struct {
	*index
	classes map[netip.Addr]model.PeerClass // of the addresses checked so far
	// onlyOpen ignores packets that the State allows and the list denies.
	onlyOpen bool
}

func newChecker(x *index) *checker {
	return &checker{index: x, classes: make(map[netip.Addr]model.PeerClass)}
}

// check skips the endpoint's own addresses and those that no packet has.
func (c *checker) check(id model.EndpointID, own []netip.Addr, list []hns.ACL, sets map[string][]netip.Addr, rules *hns.Rules, readings []hns.Reading) error {
	e, known := c.state.Policy.Endpoints[id]
	table := c.state.Policy.Tables[e.Table]
	ports := c.portCuts(list)
	remotes, err := c.addressCuts(list, sets)
	if err != nil {
		return err
	}
	for _, reading := range readings {
		for _, d := range model.Directions {
			type part struct {
				row *model.Row
				key string
			}
			done := make(map[part]bool)
			for _, remote := range remotes {
				if slices.Contains(own, remote) || slices.Contains(placeholder[:], remote) {
					continue
				}
				between := rules.Between(PacketDirection(d), netip.Addr{}, remote, reading)
				row := &model.Row{} // denies
				switch {
				case !known || table == nil:
				case c.admitsNode(d, remote):
					row = nil
				default:
					if r := table.Sides[d].Row(c.class(remote)); r != nil {
						row = r
					}
				}
				key := part{row, between.Key()}
				if done[key] {
					continue
				}
				done[key] = true
				if err := c.comparePart(between, row, ports); err != nil {
					return fmt.Errorf("endpoint %s %s %s: %w (%s)", id, d, remote, err, reading)
				}
			}
		}
	}
	return nil
}

// admitsNode reports whether Options list the address as one of the node's.
func (c *checker) admitsNode(d model.Direction, a netip.Addr) bool {
	_, found := slices.BinarySearchFunc(c.families[version(a)].node, a, netip.Addr.Compare)
	return d == model.Ingress && found
}

func (c *checker) class(a netip.Addr) model.PeerClass {
	class, ok := c.classes[a]
	if !ok {
		class = c.state.Policy.Class(a)
		c.classes[a] = class
	}
	return class
}

// portCut is a protocol and port that represents a part of all ports.
type portCut struct {
	protocol model.Protocol
	port     uint16
}

// comparePart compares all ports. A nil row allows everything.
func (c *checker) comparePart(part hns.Part, row *model.Row, ports []portCut) error {
	for _, at := range ports {
		want := model.Allow
		if row != nil {
			want = row.Cell(c.state.Policy.PortClass(at.protocol, at.port)).Verdict
		}
		if got := part.Decide(uint8(at.protocol), at.port, 0); got.Allow != (want == model.Allow) && (got.Allow || !c.onlyOpen) {
			return fmt.Errorf("%s/%d: decided by %q, which is not %s", at.protocol, at.port, got.ID, want)
		}
	}
	return nil
}

// portCuts lists one port for every part of the ports that neither the State nor the list divides. It adds
// protocols without ports: those in the list and one other.
func (c *checker) portCuts(list []hns.ACL) []portCut {
	starts := map[uint16]bool{0: true}
	for _, cell := range c.cells[1:] {
		starts[cell.first] = true
	}
	return portCutsOf(starts, list)
}

// portCutsOf adds the ports at which a list changes its verdict to others.
func portCutsOf(starts map[uint16]bool, list []hns.ACL) []portCut {
	protocols := map[model.Protocol]bool{model.ICMP: true, model.ICMPv6: true, 253: true}
	for _, a := range list {
		named, _ := hns.ParseProtocols(a.Protocols)
		for _, p := range named {
			protocols[model.Protocol(p)] = true
		}
		for _, text := range []string{a.LocalPorts, a.RemotePorts} {
			ranges, _ := hns.ParsePorts(text)
			for _, r := range ranges {
				starts[r.First] = true
				starts[r.Last+1] = true // 65535+1 is 0, which is in the set already
			}
		}
	}
	var cuts []portCut
	for _, p := range model.PortProtocols {
		for port := range starts {
			cuts = append(cuts, portCut{p, port})
		}
	}
	for p := range protocols {
		if !p.HasPorts() {
			cuts = append(cuts, portCut{p, 0})
		}
	}
	return cuts
}

// addressCuts lists at least one address for every part of the addresses that neither the State nor the
// list divides.
func (c *checker) addressCuts(list []hns.ACL, sets map[string][]netip.Addr) ([]netip.Addr, error) {
	cuts := make(map[netip.Addr]bool)
	add := func(p netip.Prefix) {
		cuts[p.Addr()] = true
		if next := netipx.PrefixLastIP(p).Next(); next.IsValid() {
			cuts[next] = true
		}
	}
	for v := range c.families {
		f := &c.families[v]
		for _, n := range f.prefixes {
			add(n.prefix)
		}
		for _, co := range f.addrGroups {
			for _, a := range co.addrs {
				add(single(a))
			}
		}
		for _, a := range f.node {
			add(single(a))
		}
	}
	for _, a := range list {
		for _, text := range []string{a.LocalAddresses, a.RemoteAddresses} {
			addresses, err := hns.ParseAddresses(text)
			if err != nil {
				return nil, fmt.Errorf("acl %q: %w", a.ID, err)
			}
			for _, p := range addresses.Prefixes {
				add(p)
			}
			for _, id := range addresses.Sets {
				for _, m := range sets[id] {
					add(single(m))
				}
			}
		}
	}
	all := make([]netip.Addr, 0, len(cuts))
	for a := range cuts {
		all = append(all, a)
	}
	return all, nil
}

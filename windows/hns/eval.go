// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// Packet is the first packet of a flow at an endpoint's port.
type Packet struct {
	Direction Direction
	// Local is the endpoint's address, Remote the peer's.
	Local, Remote netip.Addr
	Protocol      uint8
	// Port is the destination port, SourcePort the source port; 0 without ports.
	Port, SourcePort uint16
}

// Outcome is the result of the rules for a packet.
type Outcome struct {
	Allow bool
	// ID is the Id of the deciding Switch rule. Index is its place in the list, or -1 if none matched and
	// the default decided.
	ID    string
	Index int
}

// Rules are the ACLs of one endpoint, parsed. Immutable.
type Rules struct {
	list []rule // by priority, then place in the list
	// number of rules, by layer and direction
	counts map[RuleType]map[Direction]int
	total  int
}

type rule struct {
	ACL
	index         int
	protocols     [256]bool
	anyProtocol   bool
	local, remote matcher
	localPorts    []PortRange
	remotePorts   []PortRange
}

// matcher is an address member: empty (any), addresses, or sets.
type matcher struct {
	ranges *ranges
	sets   []*ranges
}

// ParseRules parses ACLs, and the sets that they may refer to, as HNS does. The error lists every ACL that
// HNS would refuse.
func ParseRules(acls []ACL, sets []SetPolicy) (*Rules, error) {
	known := make(map[string]*ranges, len(sets))
	var errs []error
	for _, s := range sets {
		list, err := ParseAddresses(s.Values)
		if err != nil || len(list.Sets) > 0 {
			errs = append(errs, fmt.Errorf("set %q: values must be addresses: %w", s.ID, errors.Join(err, unknownSets(list))))
			continue
		}
		known[s.ID] = newRanges(list.Prefixes)
	}
	r := &Rules{counts: map[RuleType]map[Direction]int{Switch: {}, Host: {}}}
	for i, a := range acls {
		parsed, err := parseRule(a.Normal(), known)
		if err != nil {
			errs = append(errs, fmt.Errorf("acl %q: %w", a.ID, err))
			continue
		}
		parsed.index = i
		r.list = append(r.list, parsed)
		r.counts[parsed.RuleType][parsed.Direction]++
		r.total++
	}
	slices.SortStableFunc(r.list, func(a, b rule) int { return int(a.Priority) - int(b.Priority) })
	return r, errors.Join(errs...)
}

func unknownSets(list AddressList) error {
	if len(list.Sets) == 0 {
		return nil
	}
	return fmt.Errorf("%q is not an address", list.Sets[0])
}

func parseRule(a ACL, known map[string]*ranges) (rule, error) {
	r := rule{ACL: a}
	var errs []error
	if a.Action != Allow && a.Action != Block {
		errs = append(errs, fmt.Errorf("action %q: want Allow or Block", a.Action))
	}
	if a.Direction != In && a.Direction != Out {
		errs = append(errs, fmt.Errorf("direction %q: want In or Out", a.Direction))
	}
	if a.RuleType != Switch && a.RuleType != Host {
		errs = append(errs, fmt.Errorf("rule type %q: want Switch or Host", a.RuleType))
	}
	if a.RuleType == Switch && (a.Priority < MinPriority || a.Priority > MaxPriority) {
		errs = append(errs, fmt.Errorf("priority %d: want %d to %d", a.Priority, MinPriority, MaxPriority))
	}
	protocols, err := ParseProtocols(a.Protocols)
	errs = append(errs, err)
	r.anyProtocol = len(protocols) == 0
	for _, p := range protocols {
		r.protocols[p] = true
	}
	r.localPorts, err = ParsePorts(a.LocalPorts)
	errs = append(errs, err)
	r.remotePorts, err = ParsePorts(a.RemotePorts)
	errs = append(errs, err)
	if (a.LocalPorts != "" || a.RemotePorts != "") && !onlyPortProtocols(protocols) {
		errs = append(errs, fmt.Errorf("protocols %q: ports need the protocols 6, 17 or 132", a.Protocols))
	}
	r.local, err = newMatcher(a.LocalAddresses, known)
	errs = append(errs, err)
	r.remote, err = newMatcher(a.RemoteAddresses, known)
	errs = append(errs, err)
	return r, errors.Join(errs...)
}

func onlyPortProtocols(list []uint8) bool {
	for _, p := range list {
		if p != 6 && p != 17 && p != 132 {
			return false
		}
	}
	return len(list) > 0
}

func newMatcher(text string, known map[string]*ranges) (matcher, error) {
	list, err := ParseAddresses(text)
	if err != nil {
		return matcher{}, err
	}
	if len(list.Sets) > 0 && len(list.Prefixes) > 0 {
		return matcher{}, fmt.Errorf("addresses %q: sets and addresses in one member", text)
	}
	var m matcher
	if len(list.Prefixes) > 0 {
		m.ranges = newRanges(list.Prefixes)
	}
	for _, id := range list.Sets {
		set, ok := known[id]
		if !ok {
			return matcher{}, fmt.Errorf("addresses %q: %q is neither an address nor a set of the network", text, id)
		}
		m.sets = append(m.sets, set)
	}
	return m, nil
}

// Decide returns the outcome of a packet. The Windows Firewall of the pod decides too: a packet passes only
// if both layers allow it.
func (r *Rules) Decide(p Packet, reading Reading) Outcome {
	return r.Between(p.Direction, p.Local, p.Remote, reading).Decide(p.Protocol, p.Port, p.SourcePort)
}

// Part is the rules that match two addresses in one direction, for deciding many protocols and ports.
type Part struct {
	rules   *Rules
	reading Reading
	d       Direction
	indices []int // into rules.list, ascending
}

// Between returns the rules that match the addresses.
func (r *Rules) Between(d Direction, local, remote netip.Addr, reading Reading) Part {
	part := Part{rules: r, reading: reading, d: d}
	for i := range r.list {
		if r.list[i].matchesAddresses(d, local, remote, reading.Set) {
			part.indices = append(part.indices, i)
		}
	}
	return part
}

// Parts is Between for many remote addresses, in ascending order. It returns the distinct parts and, for
// each address, the index of its part.
func (r *Rules) Parts(d Direction, local netip.Addr, remotes []netip.Addr, reading Reading) (parts []Part, of []int) {
	parts, of = []Part{{rules: r, reading: reading, d: d}}, make([]int, len(remotes))
	matched := make([]bool, len(remotes))
	for i := range r.list {
		if r.list[i].Direction != d {
			continue
		}
		r.list[i].matchesEach(d, local, remotes, reading.Set, matched)
		with := make(map[int]int)
		for n, yes := range matched {
			if !yes {
				continue
			}
			part, ok := with[of[n]]
			if !ok {
				part = len(parts)
				with[of[n]] = part
				next := parts[of[n]]
				next.indices = append(slices.Clip(next.indices), i)
				parts = append(parts, next)
			}
			of[n] = part
		}
	}
	return parts, of
}

// EmptySets reports whether a rule refers to a set without members. Only then do readings of sets make a
// difference.
func (r *Rules) EmptySets() bool {
	empty := func(m *matcher) bool { return slices.ContainsFunc(m.sets, (*ranges).empty) }
	return slices.ContainsFunc(r.list, func(rule rule) bool { return empty(&rule.local) || empty(&rule.remote) })
}

// Under returns the same rules under another reading. The readings must agree about sets, or no set may be
// empty, because sets determine which rules match.
func (p Part) Under(reading Reading) Part {
	p.reading = reading
	return p
}

// Matches returns the rules, by priority.
func (p Part) Matches() []ACL {
	list := make([]ACL, len(p.indices))
	for n, i := range p.indices {
		list[n] = p.rules.list[i].ACL
	}
	return list
}

// Key returns a text that is equal for two parts of the same Rules and Reading with equal decisions.
func (p Part) Key() string {
	key := []byte(p.d)
	for _, i := range p.indices {
		key = append(key, byte(i>>16), byte(i>>8), byte(i))
	}
	return string(key)
}

// Decide returns the outcome for a protocol and its ports, which are 0 for protocols without ports.
func (p Part) Decide(protocol uint8, port, sourcePort uint16) Outcome {
	r, best := p.rules, -1
	for _, i := range p.indices {
		rule := &r.list[i]
		if best >= 0 && rule.Priority != r.list[best].Priority {
			break
		}
		if rule.RuleType == Switch && rule.matchesPorts(protocol, port, sourcePort) && (best < 0 || p.reading.Tie.prefers(rule, &r.list[best])) {
			best = i
		}
	}
	out := Outcome{Index: -1}
	if best >= 0 {
		out = Outcome{Allow: r.list[best].Action == Allow, ID: r.list[best].ID, Index: r.list[best].index}
	} else {
		out.Allow = r.total == 0 || p.reading.Default == PerDirection && r.counts[Switch][p.d] == 0
	}
	out.Allow = out.Allow && p.firewall(protocol, port, sourcePort)
	return out
}

// firewall reports whether the Host rules allow a packet. A Block precedes an Allow there, as in the
// Windows Firewall.
func (p Part) firewall(protocol uint8, port, sourcePort uint16) bool {
	allowed := p.reading.Host == HostOpen || p.rules.total == 0
	for _, i := range p.indices {
		rule := &p.rules.list[i]
		if rule.RuleType != Host || !rule.matchesPorts(protocol, port, sourcePort) {
			continue
		}
		if rule.Action == Block {
			return false
		}
		allowed = true
	}
	return allowed
}

// prefers reports whether a precedes b of the same priority; a is later in the list.
func (t TieReading) prefers(a, b *rule) bool {
	switch t {
	case ReverseOrder:
		return true
	case BlockFirst:
		return a.Action == Block && b.Action == Allow
	case AllowFirst:
		return a.Action == Allow && b.Action == Block
	}
	return false
}

func (r *rule) matchesAddresses(d Direction, local, remote netip.Addr, reading SetReading) bool {
	if r.Direction != d {
		return false
	}
	source, destination := remote, local
	if d == Out {
		source, destination = local, remote
	}
	return r.local.matches(local, source, reading) && r.remote.matches(remote, destination, reading)
}

// matchesEach is matchesAddresses for many remote addresses in ascending order.
func (r *rule) matchesEach(d Direction, local netip.Addr, remotes []netip.Addr, reading SetReading, matched []bool) {
	for n := range matched {
		matched[n] = true
	}
	keep := func(s *ranges, remote bool) {
		if remote {
			s.keep(remotes, matched)
		} else if !s.contains(local) {
			clear(matched)
		}
	}
	// Addresses are compared with their own side; sets of Local with the source, and of Remote with the
	// destination.
	for _, m := range []struct {
		*matcher
		side, end bool // whether that is the remote address
	}{{&r.local, false, d == In}, {&r.remote, true, d == Out}} {
		for _, s := range m.sets {
			if !s.empty() || reading != EmptyMatchesAll {
				keep(s, m.end)
			}
		}
		if m.ranges != nil {
			keep(m.ranges, m.side)
		}
	}
}

func (r *rule) matchesPorts(protocol uint8, port, sourcePort uint16) bool {
	localPort, remotePort := port, sourcePort
	if r.Direction == Out {
		localPort, remotePort = sourcePort, port
	}
	return (r.anyProtocol || r.protocols[protocol]) && inPorts(r.localPorts, localPort) && inPorts(r.remotePorts, remotePort)
}

func inPorts(ranges []PortRange, port uint16) bool {
	return len(ranges) == 0 || slices.ContainsFunc(ranges, func(r PortRange) bool { return r.First <= port && port <= r.Last })
}

// matches compares the member with side if it holds addresses, or with end, the source or the destination,
// if it holds sets.
func (m *matcher) matches(side, end netip.Addr, reading SetReading) bool {
	for _, s := range m.sets {
		if s.empty() && reading == EmptyMatchesAll {
			continue
		}
		if !s.contains(end) {
			return false
		}
	}
	return m.ranges == nil || m.ranges.contains(side)
}

// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Way is the direction of a packet as seen from the pod: In reaches it, Out leaves it.
type Way string

// The directions, spelled as in HNS.
const (
	In  Way = "In"
	Out Way = "Out"
)

// Packet is the first packet of a flow. Protocols without ports have 0 for both ports.
type Packet struct {
	From, To         netip.Addr
	Protocol         int
	FromPort, ToPort int
}

// String returns "from:port to:port/protocol".
func (p Packet) String() string {
	return fmt.Sprintf("%s:%d to %s:%d/%d", p.From, p.FromPort, p.To, p.ToPort, p.Protocol)
}

// Port holds what HNS received for an endpoint: its ACLs, and the sets of its network.
type Port struct {
	switches, hosts []acl
}

// acl is one ACL. A nil condition matches every packet.
type acl struct {
	name     string
	allow    bool
	way      Way
	priority int

	protocols map[int]bool
	// from and to are conditions on the addresses: for every list, the address must be in one
	// prefix.
	from, to [][]netip.Prefix
	// fromPorts and toPorts match if one of the ranges contains the port.
	fromPorts, toPorts []span
}

type span struct{ first, last int }

// policy is the common form of all policies in HNS.
type policy struct {
	Type     string
	Settings json.RawMessage
}

// settings are the fields of an ACL that affect its verdict.
type settings struct {
	ID              string `json:"Id"`
	Protocols       string
	Action          string
	Direction       string
	LocalAddresses  string
	RemoteAddresses string
	LocalPorts      string
	RemotePorts     string
	RuleType        string
	Priority        int
}

// Read reads the policies of an endpoint and of its network, each the JSON object {"Type": ...,
// "Settings": {...}} that HNS receives. It ignores policies of other types. The error names the
// first ACL that cannot be read, or the question that no source answers.
func Read(endpoint, network []json.RawMessage) (*Port, error) {
	sets := make(map[string][]netip.Prefix)
	for _, raw := range network {
		var p policy
		if err := json.Unmarshal(raw, &p); err != nil {
			return nil, fmt.Errorf("read policy of the network: %w", err)
		}
		if p.Type != "SetPolicy" {
			continue
		}
		var s struct{ ID, PolicyType, Values string }
		if err := json.Unmarshal(p.Settings, &s); err != nil {
			return nil, fmt.Errorf("read set: %w", err)
		}
		members, ids, err := addresses(s.Values)
		if err != nil || len(ids) > 0 || s.PolicyType != "IPSET" {
			return nil, fmt.Errorf("set %q of type %s: %w", s.ID, s.PolicyType, errors.Join(err, errors.New("want an IPSET of addresses")))
		}
		sets[s.ID] = members
	}
	port := &Port{}
	for _, raw := range endpoint {
		var p policy
		if err := json.Unmarshal(raw, &p); err != nil {
			return nil, fmt.Errorf("read policy of the endpoint: %w", err)
		}
		if p.Type != "ACL" {
			continue
		}
		var s settings
		if err := json.Unmarshal(p.Settings, &s); err != nil {
			return nil, fmt.Errorf("read acl: %w", err)
		}
		a, err := s.acl(sets)
		if err != nil {
			return nil, fmt.Errorf("acl %q: %w", s.ID, err)
		}
		switch s.RuleType {
		case "Switch":
			port.switches = append(port.switches, a)
		case "Host":
			port.hosts = append(port.hosts, a)
		default:
			return nil, fmt.Errorf("acl %q: rule type %q is neither Switch nor Host", s.ID, s.RuleType)
		}
	}
	return port, nil
}

// acl turns Local and Remote, whose meaning depends on the field and the direction, into source and
// destination.
func (s settings) acl(sets map[string][]netip.Prefix) (acl, error) {
	a := acl{name: s.ID, way: Way(s.Direction), priority: s.Priority, allow: s.Action == "Allow"}
	if s.Action != "Allow" && s.Action != "Block" {
		return a, fmt.Errorf("action %q", s.Action)
	}
	if a.way != In && a.way != Out {
		return a, fmt.Errorf("direction %q", s.Direction)
	}
	if s.RuleType == "Switch" && (s.Priority < 100 || s.Priority > 65500) {
		return a, fmt.Errorf("priority %d is not in 100..65500", s.Priority)
	}
	local, remote := &a.to, &a.from
	localPorts, remotePorts := &a.toPorts, &a.fromPorts
	if a.way == Out {
		local, remote = &a.from, &a.to
		localPorts, remotePorts = &a.fromPorts, &a.toPorts
	}
	var err error
	if a.protocols, err = protocols(s.Protocols); err != nil {
		return a, err
	}
	if *localPorts, err = spans(s.LocalPorts); err != nil {
		return a, err
	}
	if *remotePorts, err = spans(s.RemotePorts); err != nil {
		return a, err
	}
	if a.fromPorts != nil || a.toPorts != nil {
		for n := range a.protocols {
			if n != 6 && n != 17 && n != 132 {
				return a, fmt.Errorf("ports with protocol %d", n)
			}
		}
		if a.protocols == nil {
			return a, errors.New("ports with every protocol: no source says what that matches")
		}
	}
	// Sets are the source in Local and the destination in Remote, in both directions.
	for _, m := range []struct {
		text  string
		plain *[][]netip.Prefix
		end   *[][]netip.Prefix
	}{{s.LocalAddresses, local, &a.from}, {s.RemoteAddresses, remote, &a.to}} {
		prefixes, ids, err := addresses(m.text)
		if err != nil {
			return a, err
		}
		if len(prefixes) > 0 {
			*m.plain = append(*m.plain, prefixes)
		}
		for _, id := range ids {
			members, ok := sets[id]
			switch {
			case !ok:
				return a, fmt.Errorf("set %q does not exist", id)
			case len(members) == 0:
				return a, fmt.Errorf("set %q is empty: no source says what that matches", id)
			case len(prefixes) > 0:
				return a, fmt.Errorf("addresses beside set %q: no source says what that matches", id)
			}
			*m.end = append(*m.end, members)
		}
	}
	return a, nil
}

// addresses parses a list of addresses, prefixes and set IDs.
func addresses(text string) (prefixes []netip.Prefix, ids []string, err error) {
	if text == "" {
		return nil, nil, nil
	}
	for word := range strings.SplitSeq(text, ",") {
		if a, err := netip.ParseAddr(word); err == nil {
			prefixes = append(prefixes, netip.PrefixFrom(a, a.BitLen()))
		} else if p, err := netip.ParsePrefix(word); err == nil && p.Masked() == p {
			prefixes = append(prefixes, p)
		} else if word == "" || strings.EqualFold(word, "any") || strings.ContainsAny(word, " /:%") {
			return nil, nil, fmt.Errorf("addresses %q: HNS refuses %q", text, word)
		} else {
			ids = append(ids, word)
		}
	}
	return prefixes, ids, nil
}

// protocols parses protocol numbers; nil means every protocol.
func protocols(text string) (map[int]bool, error) {
	if text == "" || text == "256" {
		return nil, nil
	}
	all := make(map[int]bool)
	for word := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(word)
		if err != nil || n < 0 || n > 255 {
			return nil, fmt.Errorf("protocols %q", text)
		}
		all[n] = true
	}
	return all, nil
}

// spans parses ports and ranges of ports; nil means every port.
func spans(text string) ([]span, error) {
	if text == "" {
		return nil, nil
	}
	var all []span
	for word := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(word, "-")
		if !isRange {
			last = first
		}
		a, err1 := strconv.Atoi(first)
		b, err2 := strconv.Atoi(last)
		if err1 != nil || err2 != nil || a < 0 || b > 65535 || a > b {
			return nil, fmt.Errorf("ports %q", text)
		}
		all = append(all, span{a, b})
	}
	return all, nil
}

// Decide reports whether the port passes a packet. The error names the question that no source
// answers.
func (p *Port) Decide(way Way, k Packet) (bool, error) {
	if len(p.switches)+len(p.hosts) == 0 {
		return true, nil
	}
	open, err := p.firewall(way, k)
	if err != nil {
		return false, err
	}
	// The matching rule with the lowest number decides.
	var first *acl
	anyOfWay := false
	for i := range p.switches {
		a := &p.switches[i]
		anyOfWay = anyOfWay || a.way == way
		switch {
		case a.way != way || !a.matches(k):
		case first == nil || a.priority < first.priority:
			first = a
		case a.priority == first.priority && a.allow != first.allow:
			return false, fmt.Errorf("%q and %q have priority %d: which of them decides is not known", first.name, a.name, a.priority)
		}
	}
	switch {
	case first != nil:
		return first.allow && open, nil
	case anyOfWay:
		return false, nil // a matching rule exists, so the implicit permission no longer applies
	}
	return false, fmt.Errorf("no Switch rule has the direction %s: whether the rules of the other one close it is not known", way)
}

// firewall reports whether the pod's Windows Firewall passes the packet. A Block rule there
// precedes an Allow rule.
func (p *Port) firewall(way Way, k Packet) (bool, error) {
	open := false
	for i := range p.hosts {
		if a := &p.hosts[i]; a.way == way && a.matches(k) {
			if !a.allow {
				return false, nil
			}
			open = true
		}
	}
	if !open {
		return false, fmt.Errorf("no Host rule allows %s: what the pod's firewall does is not known", way)
	}
	return true, nil
}

func (a *acl) matches(k Packet) bool {
	return (a.protocols == nil || a.protocols[k.Protocol]) &&
		inAll(a.from, k.From) && inAll(a.to, k.To) &&
		inOne(a.fromPorts, k.FromPort) && inOne(a.toPorts, k.ToPort)
}

func inAll(lists [][]netip.Prefix, a netip.Addr) bool {
	for _, list := range lists {
		found := false
		for _, p := range list {
			found = found || p.Contains(a)
		}
		if !found {
			return false
		}
	}
	return true
}

func inOne(list []span, port int) bool {
	for _, s := range list {
		if s.first <= port && port <= s.last {
			return true
		}
	}
	return len(list) == 0
}

// SPDX-License-Identifier: Apache-2.0

package hns_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/windows/hns"
)

var pod = netip.MustParseAddr("10.40.3.7")

func packet(d hns.Direction, remote string, protocol uint8, port uint16) hns.Packet {
	return hns.Packet{Direction: d, Local: pod, Remote: netip.MustParseAddr(remote), Protocol: protocol, Port: port}
}

func rules(t *testing.T, sets []hns.SetPolicy, acls ...hns.ACL) *hns.Rules {
	t.Helper()
	r, err := hns.ParseRules(acls, sets)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func rule(id string, a hns.Action, d hns.Direction, priority uint16) hns.ACL {
	return hns.ACL{ID: id, Action: a, Direction: d, RuleType: hns.Switch, Priority: priority}
}

// TestDecide records the known behaviour of HNS, one fact per line.
func TestDecide(t *testing.T) {
	web := rule("web", hns.Allow, hns.In, 1000)
	web.Protocols, web.LocalPorts, web.RemoteAddresses = "6", "80,8000-8010", "10.40.1.0/24,10.40.2.9"
	dns := rule("dns", hns.Allow, hns.Out, 1000)
	dns.Protocols, dns.RemotePorts = "6,17", "53"
	block := rule("block", hns.Block, hns.In, 1001)
	set := rule("set in", hns.Allow, hns.In, 1000)
	set.LocalAddresses = "peers"
	setOut := rule("set out", hns.Allow, hns.Out, 1000)
	setOut.RemoteAddresses = "peers"
	both := rule("both", hns.Allow, hns.In, 1000)
	both.LocalAddresses = "peers,others"
	sets := []hns.SetPolicy{{ID: "peers", PolicyType: hns.IPSet, Values: "10.40.1.4,10.40.9.0/24"}, {ID: "others", PolicyType: hns.IPSet, Values: "10.40.9.9"}}
	v6 := rule("v6", hns.Block, hns.In, 1000)
	v6.RemoteAddresses = "fd00::/16"
	for _, c := range []struct {
		name string
		acls []hns.ACL
		p    hns.Packet
		want bool
		id   string
	}{
		{"no acl at all", nil, packet(hns.In, "10.40.1.4", 6, 80), true, ""},
		{"nothing matches", []hns.ACL{web}, packet(hns.In, "10.40.3.4", 6, 80), false, ""},
		{"any acl closes the other direction too", []hns.ACL{web}, packet(hns.Out, "10.40.1.4", 6, 80), false, ""},
		{"prefix and port", []hns.ACL{web}, packet(hns.In, "10.40.1.4", 6, 80), true, "web"},
		{"address and range", []hns.ACL{web}, packet(hns.In, "10.40.2.9", 6, 8010), true, "web"},
		{"port outside", []hns.ACL{web}, packet(hns.In, "10.40.2.9", 6, 8011), false, ""},
		{"other protocol", []hns.ACL{web}, packet(hns.In, "10.40.2.9", 17, 80), false, ""},
		{"ports of the remote side", []hns.ACL{dns}, packet(hns.Out, "10.96.0.10", 17, 53), true, "dns"},
		{"other direction", []hns.ACL{dns}, packet(hns.In, "10.96.0.10", 17, 53), false, ""},
		{"lower priority first", []hns.ACL{block, web}, packet(hns.In, "10.40.1.4", 6, 80), true, "web"},
		{"first match decides", []hns.ACL{rule("no", hns.Block, hns.In, 999), web}, packet(hns.In, "10.40.1.4", 6, 80), false, "no"},
		{"set is the source", []hns.ACL{set}, packet(hns.In, "10.40.1.4", 6, 80), true, "set in"},
		{"prefix in a set", []hns.ACL{set}, packet(hns.In, "10.40.9.1", 6, 80), true, "set in"},
		{"not in the set", []hns.ACL{set}, packet(hns.In, "10.40.1.5", 6, 80), false, ""},
		{"set is the destination", []hns.ACL{setOut}, packet(hns.Out, "10.40.1.4", 6, 80), true, "set out"},
		{"several sets must all match", []hns.ACL{both}, packet(hns.In, "10.40.9.1", 6, 80), false, ""},
		{"and do", []hns.ACL{both}, packet(hns.In, "10.40.9.9", 6, 80), true, "both"},
		{"a family of its own", []hns.ACL{v6, rule("rest", hns.Allow, hns.In, 1001)}, packet(hns.In, "10.40.9.9", 6, 80), true, "rest"},
		{"IPv6", []hns.ACL{v6, rule("rest", hns.Allow, hns.In, 1001)}, packet(hns.In, "fd00::1", 58, 0), false, "v6"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := rules(t, sets, c.acls...).Decide(c.p, hns.Reading{})
			if got.Allow != c.want || got.ID != c.id {
				t.Errorf("allow %t by %q, want %t by %q", got.Allow, got.ID, c.want, c.id)
			}
		})
	}
}

// TestParts compares the combined result for many remote addresses with the result for each.
func TestParts(t *testing.T) {
	members := []string{"", "10.40.0.0/16", "10.40.1.0/24,10.40.2.9", "10.40.3.7", "fd00::/16", "fd00:1::/64,10.40.9.0/24"}
	setMembers := []string{"peers", "none", "six", "peers,six"}
	sets := []hns.SetPolicy{{ID: "peers", PolicyType: hns.IPSet, Values: "10.40.1.4,10.40.9.0/24,10.40.3.7"}, {ID: "none", PolicyType: hns.IPSet},
		{ID: "six", PolicyType: hns.IPSet, Values: "fd00::9,10.40.9.9"}}
	var acls []hns.ACL
	for i, local := range slices.Concat(members, setMembers) {
		for j, remote := range slices.Concat(members, setMembers) {
			for _, d := range []hns.Direction{hns.In, hns.Out} {
				a := rule(fmt.Sprint(i, j, d), hns.Allow, d, uint16(1000+i+j))
				a.LocalAddresses, a.RemoteAddresses = local, remote
				acls = append(acls, a)
			}
		}
	}
	r := rules(t, sets, acls...)
	var remotes []netip.Addr
	for _, a := range []string{"10.39.255.255", "10.40.0.0", "10.40.1.3", "10.40.1.4", "10.40.2.9", "10.40.3.7", "10.40.9.9", "10.40.255.255", "10.41.0.0",
		"fd00::1", "fd00::9", "fd00:1::5", "fe00::1"} {
		remotes = append(remotes, netip.MustParseAddr(a))
	}
	for _, local := range []netip.Addr{pod, {}, netip.MustParseAddr("fd00::9")} {
		for _, d := range []hns.Direction{hns.In, hns.Out} {
			for _, reading := range hns.Readings() {
				parts, of := r.Parts(d, local, remotes, reading)
				seen := make(map[string]int)
				for i, a := range remotes {
					want := r.Between(d, local, a, reading).Key()
					if got := parts[of[i]].Key(); got != want {
						t.Fatalf("%s %s %s %s: rules %x, want %x", d, local, a, reading, got, want)
					}
					if was, ok := seen[want]; ok && was != of[i] {
						t.Errorf("%s: two parts are the same", a)
					}
					seen[want] = of[i]
				}
			}
		}
	}
}

// TestReadingsDiffer checks for each open question that it changes the verdict of a careless list,
// and not that of a careful one.
func TestReadingsDiffer(t *testing.T) {
	empty := []hns.SetPolicy{{ID: "none", PolicyType: hns.IPSet}}
	fromNone := rule("set", hns.Allow, hns.In, 1000)
	fromNone.LocalAddresses = "none"
	host := hns.ACL{ID: "host", Action: hns.Allow, Direction: hns.In, RuleType: hns.Host}
	for _, c := range []struct {
		name     string
		acls     []hns.ACL
		p        hns.Packet
		outcomes int
	}{
		{"default of the other direction", []hns.ACL{rule("in", hns.Block, hns.In, 1000), host, {Action: hns.Allow, Direction: hns.Out, RuleType: hns.Host}}, packet(hns.Out, "10.1.1.1", 6, 80), 2},
		{"equal priorities", []hns.ACL{rule("a", hns.Allow, hns.In, 1000), rule("b", hns.Block, hns.In, 1000), host}, packet(hns.In, "10.1.1.1", 6, 80), 2},
		{"no Host rule", []hns.ACL{rule("a", hns.Allow, hns.In, 1000)}, packet(hns.In, "10.1.1.1", 6, 80), 2},
		{"empty set", []hns.ACL{fromNone, host}, packet(hns.In, "10.1.1.1", 6, 80), 2},
		{"nothing open", []hns.ACL{rule("a", hns.Allow, hns.In, 1000), rule("b", hns.Block, hns.In, 1001), host}, packet(hns.In, "10.1.1.1", 6, 80), 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			seen := map[bool]bool{}
			r := rules(t, empty, c.acls...)
			for _, reading := range hns.Readings() {
				seen[r.Decide(c.p, reading).Allow] = true
			}
			if len(seen) != c.outcomes {
				t.Errorf("%d outcomes, want %d", len(seen), c.outcomes)
			}
		})
	}
	if n := len(hns.Readings()); n != 32 {
		t.Errorf("%d readings", n)
	}
}

// TestParseRulesRefuses lists the ACLs that HNS refuses.
func TestParseRulesRefuses(t *testing.T) {
	sets := []hns.SetPolicy{{ID: "s", PolicyType: hns.IPSet, Values: "10.0.0.1"}}
	for name, change := range map[string]func(*hns.ACL){
		"the word any":          func(a *hns.ACL) { a.RemoteAddresses = "Any" },
		"blank":                 func(a *hns.ACL) { a.RemoteAddresses = "10.0.0.1, 10.0.0.2" },
		"empty token":           func(a *hns.ACL) { a.RemoteAddresses = "10.0.0.1," },
		"range of addresses":    func(a *hns.ACL) { a.RemoteAddresses = "10.0.0.1-10.0.0.9" },
		"bad prefix":            func(a *hns.ACL) { a.RemoteAddresses = "10.0.0.0/33" },
		"zone":                  func(a *hns.ACL) { a.RemoteAddresses = "fe80::1%eth0" },
		"IPv4 in IPv6":          func(a *hns.ACL) { a.RemoteAddresses = "::ffff:10.0.0.1" },
		"unknown set":           func(a *hns.ACL) { a.RemoteAddresses = "t" },
		"set beside an address": func(a *hns.ACL) { a.RemoteAddresses = "s,10.0.0.1" },
		"priority too low":      func(a *hns.ACL) { a.Priority = 99 },
		"priority too high":     func(a *hns.ACL) { a.Priority = 65501 },
		"no priority":           func(a *hns.ACL) { a.Priority = 0 },
		"action":                func(a *hns.ACL) { a.Action = "Pass" },
		"direction":             func(a *hns.ACL) { a.Direction = "Both" },
		"rule type":             func(a *hns.ACL) { a.RuleType = "" },
		"ports without protocol": func(a *hns.ACL) {
			a.Protocols, a.LocalPorts = "", "80"
		},
		"ports of ICMP":       func(a *hns.ACL) { a.Protocols, a.LocalPorts = "1", "80" },
		"reversed ports":      func(a *hns.ACL) { a.Protocols, a.LocalPorts = "6", "90-80" },
		"port too large":      func(a *hns.ACL) { a.Protocols, a.LocalPorts = "6", "65536" },
		"signed port":         func(a *hns.ACL) { a.Protocols, a.LocalPorts = "6", "+80" },
		"any among protocols": func(a *hns.ACL) { a.Protocols = "6,256" },
		"protocol by name":    func(a *hns.ACL) { a.Protocols = "tcp" },
	} {
		t.Run(name, func(t *testing.T) {
			a := rule("x", hns.Allow, hns.In, 1000)
			change(&a)
			if _, err := hns.ParseRules([]hns.ACL{a}, sets); err == nil || !strings.Contains(err.Error(), `acl "x"`) {
				t.Errorf("error %v, want one that names the acl", err)
			}
		})
	}
	if _, err := hns.ParseRules(nil, []hns.SetPolicy{{ID: "bad", Values: "10.0.0.1,pods"}}); err == nil {
		t.Error("a set of a name was taken")
	}
	if _, err := hns.ParseRules([]hns.ACL{{Action: "allow", Direction: "in", RuleType: "switch", Priority: 100}, {Action: hns.Allow, Direction: hns.In, RuleType: hns.Host}}, nil); err != nil {
		t.Error(err)
	}
}

// linear matches a packet with one ACL according to the documentation. It shares only the parsers
// with the evaluator.
func linear(a hns.ACL, p hns.Packet) bool {
	in := func(text string, addr netip.Addr) bool {
		list, _ := hns.ParseAddresses(text)
		return text == "" || slices.ContainsFunc(list.Prefixes, func(q netip.Prefix) bool { return q.Contains(addr) })
	}
	ports := func(text string, port uint16) bool {
		list, _ := hns.ParsePorts(text)
		return text == "" || slices.ContainsFunc(list, func(r hns.PortRange) bool { return port >= r.First && port <= r.Last })
	}
	protocols, _ := hns.ParseProtocols(a.Protocols)
	local, remote := p.Port, p.SourcePort
	if p.Direction == hns.Out {
		local, remote = remote, local
	}
	return a.Direction == p.Direction && (protocols == nil || slices.Contains(protocols, p.Protocol)) &&
		in(a.LocalAddresses, p.Local) && in(a.RemoteAddresses, p.Remote) && ports(a.LocalPorts, local) && ports(a.RemotePorts, remote)
}

// FuzzACL compares the evaluator with linear on one ACL, and checks that no parsed ACL makes it
// panic.
func FuzzACL(f *testing.F) {
	f.Add("6,17", "10.0.0.0/8,10.1.0.0/16,fd00::/16", "", "80,8000-8010", "", uint32(0x0A010203), uint16(80), uint8(6), true)
	f.Add("256", "", "10.0.0.1", "", "", uint32(0x0A000001), uint16(0), uint8(1), false)
	f.Add("132", "0.0.0.0/0", "10.40.3.7/31", "0-65535", "1", uint32(0xFFFFFFFF), uint16(65535), uint8(132), true)
	f.Add("", "255.255.255.255,0.0.0.0", "::/0", "", "", uint32(0), uint16(1), uint8(255), false)
	f.Fuzz(func(t *testing.T, protocols, remotes, locals, localPorts, remotePorts string, remote uint32, port uint16, protocol uint8, in bool) {
		a := hns.ACL{ID: "x", Protocols: protocols, RemoteAddresses: remotes, LocalAddresses: locals, LocalPorts: localPorts, RemotePorts: remotePorts,
			Action: hns.Allow, Direction: hns.Out, RuleType: hns.Switch, Priority: 1000}
		if in {
			a.Direction = hns.In
		}
		r, err := hns.ParseRules([]hns.ACL{a}, nil)
		if err != nil {
			return
		}
		p := hns.Packet{Direction: a.Direction, Local: pod, Protocol: protocol, Port: port, SourcePort: port / 2,
			Remote: netip.AddrFrom4([4]byte{byte(remote >> 24), byte(remote >> 16), byte(remote >> 8), byte(remote)})}
		if got := r.Decide(p, hns.Reading{}); got.Allow != linear(a, p) {
			t.Errorf("%s: %+v is %t", hns.FormatACLs("", []hns.ACL{a}), p, got.Allow)
		}
	})
}

// FuzzParseAddresses checks that parsed addresses have the same meaning after formatting and
// parsing.
func FuzzParseAddresses(f *testing.F) {
	for _, s := range []string{"", "10.0.0.1", "10.0.0.0/8,fd00::/64", "isthmus-00ff-v4", "Any", "10.0.0.1/8", "1.2.3.4,,", "::ffff:1.2.3.4", "0.0.0.0/0,::/0", "10.0.0.01"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		list, err := hns.ParseAddresses(s)
		if err != nil {
			return
		}
		var words []string
		for _, p := range list.Prefixes {
			words = append(words, p.String())
		}
		again, err := hns.ParseAddresses(strings.Join(append(words, list.Sets...), ","))
		if err != nil || fmt.Sprint(again.Prefixes, again.Sets) != fmt.Sprint(list.Prefixes, list.Sets) || !again.Canonical {
			t.Errorf("%q gives %+v, which gives %+v: %v", s, list, again, err)
		}
	})
}

// FuzzParsePorts checks that parsed ports are in range and in order.
func FuzzParsePorts(f *testing.F) {
	for _, s := range []string{"", "80", "80,8000-8010", "0-65535", "90-80", "-", "1-2-3", "065", "99999999999999999999"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		ranges, err := hns.ParsePorts(s)
		if err != nil {
			return
		}
		if (len(ranges) == 0) != (s == "") {
			t.Errorf("%q gives %v", s, ranges)
		}
		for _, r := range ranges {
			if r.First > r.Last {
				t.Errorf("%q gives %v", s, ranges)
			}
		}
		if protocols, err := hns.ParseProtocols(s); err == nil && s != "" && s != "256" && len(protocols) != strings.Count(s, ",")+1 {
			t.Errorf("%q gives protocols %v", s, protocols)
		}
	})
}

// SPDX-License-Identifier: Apache-2.0

package acl_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/model/immutable"
	"github.com/isthmus-net/isthmus/test/world"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// TestTooManyRulesOverBlocks checks that traffic of rules that do not fit is denied and reported,
// and that no traffic is allowed that the State denies.
func TestTooManyRulesOverBlocks(t *testing.T) {
	truncated, denied := 0, 0
	seeds := uint64(8)
	if testing.Short() {
		seeds = 4
	}
	for _, profile := range []hns.Version{hns.Server2019, hns.Server2022} {
		for i, shape := range shapes {
			for seed := range seeds {
				s := world.Random(seed, shape)
				state := stateOf(s, "node1", nil)
				full := acl.Lower(state, options(profile), "")
				addrs, ports := world.Probes(s)
				for _, limit := range []int{6, 8, 12} {
					o := options(profile)
					o.MaxRules = limit
					l := acl.Lower(state, o, "HNS "+profile.String())
					for id := range state.Policy.Endpoints {
						if len(l.Lists[id]) > limit {
							t.Fatalf("%d rules, limit %d", len(l.Lists[id]), limit)
						}
						lost, err := onlyTighter(state, l, id, addrs, ports)
						if err != nil {
							t.Fatalf("limit %d, shape%d/%d: %v\n%s", limit, i, seed, err, hns.FormatACLs("", l.Lists[id]))
						}
						if len(full.Lists[id]) > limit {
							truncated++
						}
						if lost > 0 {
							denied++
							if len(l.Unsupported) == 0 {
								t.Fatalf("limit %d: %s is denied %d flows and nothing is reported", limit, id, lost)
							}
						}
					}
					for _, u := range l.Unsupported {
						if u.Effect != model.OverBlocks || u.OS != model.Windows || !strings.Contains(u.Reason, fmt.Sprint(limit)) || u.Policy.Name == "" {
							t.Errorf("report %+v", u)
						}
					}
				}
			}
		}
	}
	t.Logf("truncated lists %d, of which deny something %d", truncated, denied)
	if truncated == 0 || denied == 0 {
		t.Error("no list was ever too long")
	}
}

// onlyTighter counts the flows that the State allows and the list denies. The opposite is an error.
func onlyTighter(state *model.State, l *acl.Lowering, id model.EndpointID, addrs []netip.Addr, ports []world.Port) (lost int, err error) {
	rules, err := l.Rules(id)
	if err != nil {
		return 0, err
	}
	for _, d := range model.Directions {
		for _, remote := range addrs {
			if slices.Contains(state.Policy.Endpoints[id].IPs, remote) {
				continue
			}
			part := rules.Between(acl.PacketDirection(d), netip.Addr{}, remote, hns.Reading{})
			for _, at := range ports {
				want := state.Policy.Decide(id, d, remote, at.Protocol, at.Port)
				got := part.Decide(uint8(at.Protocol), at.Port, 0)
				switch {
				case got.Allow && want.Verdict == model.Deny:
					return lost, fmt.Errorf("%s %s %s %s/%d passes by %q, state %s", id, d, remote, at.Protocol, at.Port, got.ID, want)
				case !got.Allow && want.Verdict == model.Allow:
					lost++
				}
			}
		}
	}
	return lost, nil
}

// TestNoIPv6 checks that without IPv6 rules IPv4 is exact, and IPv6 is never more open than the
// State.
func TestNoIPv6(t *testing.T) {
	seeds := uint64(25)
	if testing.Short() {
		seeds = 6
	}
	for i, shape := range shapes {
		for seed := range seeds {
			s := world.Random(seed, shape)
			state := stateOf(s, "node1", nil)
			o := options(hns.Server2019)
			o.NoIPv6 = true
			l := acl.Lower(state, o, "")
			addrs, ports := world.Probes(s)
			four := slices.DeleteFunc(slices.Clone(addrs), netip.Addr.Is6)
			for id, e := range state.Policy.Endpoints {
				if text := hns.FormatACLs("", l.Lists[id]); strings.Contains(text, "::") {
					t.Fatalf("an IPv6 rule:\n%s", text)
				}
				if lost, err := onlyTighter(state, l, id, four, ports); err != nil || lost > 0 {
					t.Fatalf("shape%d/%d: IPv4: %d lost, %v", i, seed, lost, err)
				}
				if _, err := onlyTighter(state, l, id, addrs, ports); err != nil {
					t.Fatalf("shape%d/%d: IPv6: %v", i, seed, err)
				}
				if slices.ContainsFunc(e.IPs, netip.Addr.Is6) && len(l.Unsupported) == 0 {
					t.Fatal("an endpoint with an IPv6 address is not reported")
				}
			}
		}
	}
}

// TestMembersAreBounded checks that long rules and sets are divided and keep their meaning.
func TestMembersAreBounded(t *testing.T) {
	for _, profile := range []hns.Version{hns.Server2019, hns.Server2022} {
		for _, shape := range shapes {
			for seed := range uint64(8) {
				state := stateOf(world.Random(seed, shape), "node1", nil)
				o := options(profile)
				o.MaxMembers = 2
				l := acl.Lower(state, o, "")
				for id := range state.Policy.Endpoints {
					if err := acl.Check(state, id, o, &l.Ruleset, hns.Readings()...); err != nil {
						t.Fatal(err)
					}
					for _, a := range l.Lists[id] {
						if strings.Count(a.RemoteAddresses, ",") > 1 {
							t.Errorf("more than two members: %s", a.RemoteAddresses)
						}
					}
				}
				for set, members := range l.Sets {
					if len(members) > 2 {
						t.Errorf("set %s has %d members", set, len(members))
					}
				}
			}
		}
	}
}

// TestRulesOfTheHouse checks that HNS accepts every lowered list under every reading.
func TestRulesOfTheHouse(t *testing.T) {
	for _, profile := range hns.Profiles() {
		for _, shape := range shapes {
			for seed := range uint64(15) {
				state := stateOf(world.Random(seed, shape), "node1", nil)
				l := acl.Lower(state, options(profile), "")
				for id, list := range l.Lists {
					if err := houseRules(list, options(profile).Sets); err != nil {
						t.Fatalf("%s: %v\n%s", id, err, hns.FormatACLs("", list))
					}
				}
			}
		}
	}
	if err := houseRules(acl.DenyAll(), false); err != nil {
		t.Error(err)
	}
}

func houseRules(list []hns.ACL, sets bool) error {
	last := uint16(0)
	seen := map[hns.Direction]hns.ACL{}
	hosts := 0
	for _, a := range list {
		if len(a.ID) == 0 || len(a.ID) > 60 {
			return fmt.Errorf("id %q has %d characters", a.ID, len(a.ID))
		}
		if a.RuleType == hns.Host {
			hosts++
			continue
		}
		if a.Priority <= last || a.Priority > 65000 || a.Priority < 900 {
			return fmt.Errorf("priority %d after %d", a.Priority, last)
		}
		if node := strings.Contains(a.ID, "node"); node != (a.Priority < 1000) {
			return fmt.Errorf("priority %d of %q", a.Priority, a.ID)
		}
		last = a.Priority
		for _, text := range []string{a.LocalAddresses, a.RemoteAddresses} {
			list, err := hns.ParseAddresses(text)
			if err != nil || !list.Canonical || len(list.Sets) > 1 || len(list.Sets) > 0 && !sets {
				return fmt.Errorf("addresses %q: %v", text, err)
			}
			four := slices.ContainsFunc(list.Prefixes, func(p netip.Prefix) bool { return p.Addr().Is4() })
			six := slices.ContainsFunc(list.Prefixes, func(p netip.Prefix) bool { return p.Addr().Is6() })
			if four && six {
				return fmt.Errorf("both families in %q", text)
			}
		}
		if strings.HasPrefix(a.LocalPorts+a.RemotePorts, "0") {
			return fmt.Errorf("port 0 in %q", a.LocalPorts+a.RemotePorts)
		}
		seen[a.Direction] = a
	}
	for _, d := range []hns.Direction{hns.In, hns.Out} {
		a := seen[d]
		if a.Protocols != "256" || a.LocalAddresses+a.RemoteAddresses+a.LocalPorts+a.RemotePorts != "" {
			return fmt.Errorf("direction %s ends in %q", d, a.ID)
		}
	}
	if hosts != 2 || !acl.WellFormed(list) {
		return fmt.Errorf("%d host rules", hosts)
	}
	return nil
}

// TestOptions checks the values.
func TestOptions(t *testing.T) {
	if err := (acl.Options{}).Defaults().Validate(); err != nil {
		t.Error(err)
	}
	for _, o := range []acl.Options{{MaxRules: 5, MaxMembers: 1}, {MaxRules: 64001, MaxMembers: 1}, {MaxRules: 6, MaxMembers: -1},
		{MaxRules: 6, MaxMembers: 1, Node: []netip.Addr{netip.MustParseAddr("::ffff:1.2.3.4")}}, {MaxRules: 6, MaxMembers: 1, Node: []netip.Addr{{}}}} {
		if o.Validate() == nil {
			t.Errorf("%+v was taken", o)
		}
	}
}

// TestNodeAddresses checks that further addresses of the node reach the pods, unless the State
// assigns them to a pod.
func TestNodeAddresses(t *testing.T) {
	deny := &model.Row{Cells: []model.Decision{{}}}
	table := &model.Table{ID: model.TableID{1}, Sides: [2]model.Side{{Default: deny}, {Default: deny}}}
	state := &model.State{
		Policy: model.PolicyState{Endpoints: map[model.EndpointID]model.EndpointState{"c:eth0": {Table: table.ID}},
			Tables:    map[model.TableID]*model.Table{table.ID: table},
			Addresses: immutable.MakeMap(map[netip.Addr]model.PeerClass{netip.MustParseAddr("10.0.1.3"): 1})},
	}
	o := options(hns.Server2022)
	o.Node = []netip.Addr{netip.MustParseAddr("10.0.1.2"), netip.MustParseAddr("10.0.1.3"), netip.MustParseAddr("fd00::2")}
	l := acl.Lower(state, o, "")
	for remote, want := range map[string]bool{"10.0.1.2": true, "10.0.1.3": false, "fd00::2": true, "10.0.1.4": false} {
		got, err := acl.Lookup(l.Lists["c:eth0"], l.EncodedSets(), hns.Packet{Direction: hns.In, Remote: netip.MustParseAddr(remote), Protocol: 6, Port: 80}, hns.Reading{})
		if err != nil || got.Allow != want {
			t.Errorf("%s: %t, %v", remote, got.Allow, err)
		}
	}
	if err := acl.Check(state, "c:eth0", o, &l.Ruleset, hns.Readings()...); err != nil {
		t.Error(err)
	}
}

// TestUnknownTableDenies checks a State that names a missing table.
func TestUnknownTableDenies(t *testing.T) {
	state := &model.State{Policy: model.PolicyState{Endpoints: map[model.EndpointID]model.EndpointState{"c:eth0": {Table: model.TableID{9}}}}}
	l := acl.Lower(state, options(hns.Server2022), "")
	if err := acl.Check(state, "c:eth0", options(hns.Server2022), &l.Ruleset, hns.Readings()...); err != nil || !acl.Equal(l.Lists["c:eth0"], acl.DenyAll()) {
		t.Errorf("%v\n%s", err, hns.FormatACLs("", l.Lists["c:eth0"]))
	}
}

// TestSetsRoundTrip checks that an encoded set decodes to the same members, also if it is empty.
func TestSetsRoundTrip(t *testing.T) {
	for _, members := range [][]netip.Addr{nil, {netip.MustParseAddr("10.0.0.1")}, {netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")}} {
		set := acl.EncodeSet("isthmus-00ff-v4", members)
		got, err := acl.DecodeSet(set)
		if err != nil || !slices.Equal(got, members) || set.Values == "" || !acl.OwnSet(set.ID) {
			t.Errorf("%v: %+v gives %v, %v", members, set, got, err)
		}
	}
	for _, values := range []string{"", "10.0.0.0/8", "pods", "10.0.0.1,"} {
		if _, err := acl.DecodeSet(hns.SetPolicy{ID: "isthmus-00ff-v4", PolicyType: hns.IPSet, Values: values}); err == nil {
			t.Errorf("%q was read", values)
		}
	}
	for _, kind := range []string{"", "NESTEDIPSET"} {
		if _, err := acl.DecodeSet(hns.SetPolicy{ID: "isthmus-00ff-v4", PolicyType: kind, Values: "10.0.0.1"}); err == nil {
			t.Errorf("a set of type %q was read", kind)
		}
	}
	for _, id := range []string{"azure-npm-1", "isthmus-", "isthmus-00ff", "isthmus-00ff-v5", "isthmus--v4", "isthmus-00ff-v4-2of2", "isthmus-00ff-v4-0of1", "isthmus-00ff-v4-xof2", "isthmus-00ff-v4-0of2-"} {
		if acl.OwnSet(id) {
			t.Errorf("%q is taken for ours", id)
		}
	}
}

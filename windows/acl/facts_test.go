// SPDX-License-Identifier: Apache-2.0

package acl_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/hnsemu/facts"
	"github.com/isthmus-net/isthmus/test/world"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// sent writes a list and its sets in the form that HNS receives.
func sent(t *testing.T, p *acl.Ruleset, id model.EndpointID) (endpoint, network []json.RawMessage) {
	t.Helper()
	raw := func(p hns.Policy) json.RawMessage {
		b, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for _, a := range p.Lists[id] {
		endpoint = append(endpoint, raw(a.Policy()))
	}
	for set, members := range p.Sets {
		if acl.RefersTo(p.Lists[id], set) {
			network = append(network, raw(acl.EncodeSet(set, members).Policy()))
		}
	}
	return endpoint, network
}

// TestListsByTheFacts evaluates the lists of random clusters with an evaluator that shares no code
// with windows/hns. It finds mistakes about HNS that this package and hns.Rules share.
func TestListsByTheFacts(t *testing.T) {
	seeds := uint64(8)
	if testing.Short() {
		seeds = 3
	}
	packets := 0
	for _, profile := range []hns.Version{hns.Server2019, hns.Server2022} {
		for i, shape := range shapes {
			for seed := range seeds {
				s := world.Random(seed+300, shape)
				state := stateOf(s, "node1", nil)
				l := acl.Lower(state, options(profile), "")
				addrs, ports := distinct(state, state, s, s)
				for id, e := range state.Policy.Endpoints {
					endpoint, network := sent(t, &l.Ruleset, id)
					port, err := facts.Read(endpoint, network)
					if err != nil {
						t.Fatalf("hns %s shape%d/%d: %v\n%s", profile, i, seed, err, hns.FormatACLs("", l.Lists[id]))
					}
					n, err := byTheFacts(state, id, e, port, addrs, ports)
					if err != nil {
						t.Fatalf("hns %s shape%d/%d: %v\n%s", profile, i, seed, err, hns.FormatACLs("", l.Lists[id]))
					}
					packets += n
				}
			}
		}
	}
	t.Logf("packets=%d", packets)
}

func byTheFacts(state *model.State, id model.EndpointID, e model.EndpointState, port *facts.Port, addrs []netip.Addr, ports []world.Port) (packets int, err error) {
	for _, remote := range addrs {
		i := slices.IndexFunc(e.IPs, func(a netip.Addr) bool { return a.Is6() == remote.Is6() })
		if i < 0 || slices.Contains(e.IPs, remote) || remote.IsLoopback() {
			continue
		}
		for _, at := range ports {
			for d, way := range map[model.Direction]facts.Way{model.Ingress: facts.In, model.Egress: facts.Out} {
				k := facts.Packet{From: remote, To: e.IPs[i], Protocol: int(at.Protocol), ToPort: int(at.Port)}
				if way == facts.Out {
					k.From, k.To = k.To, k.From
				}
				if at.Protocol.HasPorts() {
					k.FromPort = 40000
				} else {
					k.ToPort = 0
				}
				want := state.Policy.Decide(id, d, remote, at.Protocol, at.Port)
				got, err := port.Decide(way, k)
				if packets++; err != nil || got != (want.Verdict == model.Allow) {
					return packets, fmt.Errorf("%s %s %s passes %t, %v, state %s", id, way, k, got, err, want)
				}
			}
		}
	}
	return packets, nil
}

// TestDenyAllByTheFacts checks the list that every pod has before its policies.
func TestDenyAllByTheFacts(t *testing.T) {
	p := &acl.Ruleset{Lists: map[model.EndpointID][]hns.ACL{"a": acl.DenyAll()}}
	endpoint, network := sent(t, p, "a")
	port, err := facts.Read(endpoint, network)
	if err != nil {
		t.Fatal(err)
	}
	for _, way := range []facts.Way{facts.In, facts.Out} {
		for _, peer := range []string{"10.0.3.3", "fd00::3"} {
			a := netip.MustParseAddr(peer)
			if pass, err := port.Decide(way, facts.Packet{From: a, To: a.Next(), Protocol: 6, FromPort: 40000, ToPort: 80}); pass || err != nil {
				t.Errorf("%s from %s passes %t, %v", way, a, pass, err)
			}
		}
	}
}

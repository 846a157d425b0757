// SPDX-License-Identifier: Apache-2.0

package windows_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// TestAttachment checks the attachment that the runtime gets.
func TestAttachment(t *testing.T) {
	for _, c := range []struct {
		config  windows.Config
		gateway string
		mtu     int
	}{{bridgeConfig(), "10.0.1.2", 1500}, {overlayConfig(), "10.0.1.1", 1450}} {
		n := newNode(t, hns.Server2022, c.config)
		a := n.add(n.spec("c1", "10.0.1.7"))
		if a.MAC.String() != "0e:2a:0a:00:01:07" || len(a.HostMAC) != 6 || a.HostIfName != "" || a.MTU != c.mtu ||
			!slices.Equal(a.Addresses, []netip.Prefix{netip.MustParsePrefix("10.0.1.7/24")}) || !slices.Equal(a.Gateways, []netip.Addr{netip.MustParseAddr(c.gateway)}) {
			t.Errorf("%s: %+v", c.config.Mode, a)
		}
	}
	dual := bridgeConfig()
	dual.PodCIDRs = append(slices.Clone(dual.PodCIDRs), netip.MustParsePrefix("fd00:1::/64"))
	n := newNode(t, hns.Server2022, dual)
	spec := n.spec("c1", "10.0.1.7")
	spec.IPs = append(spec.IPs, netip.MustParseAddr("fd00:1::7"))
	a := n.add(spec)
	if !n.backend.Features().IPv6 || fmt.Sprint(a.Addresses, a.Gateways) != "[10.0.1.7/24 fd00:1::7/64] [10.0.1.2 fd00:1::2]" {
		t.Errorf("%+v", a)
	}
	if found, err := n.backend.Endpoints(ctx); err != nil || len(found) != 1 || len(found[0].Problems) > 0 {
		t.Errorf("%v, %v", found, err)
	}
}

// TestAddEndpointRefuses checks that bad requests get an error that names the remedy.
func TestAddEndpointRefuses(t *testing.T) {
	n := newNode(t, hns.Server2022, bridgeConfig())
	before := n.fake.Dump()
	for name, change := range map[string]func(*dataplane.EndpointSpec){
		"network address":   func(s *dataplane.EndpointSpec) { s.IPs[0] = netip.MustParseAddr("10.0.1.0") },
		"gateway":           func(s *dataplane.EndpointSpec) { s.IPs[0] = netip.MustParseAddr("10.0.1.1") },
		"host's address":    func(s *dataplane.EndpointSpec) { s.IPs[0] = netip.MustParseAddr("10.0.1.2") },
		"broadcast":         func(s *dataplane.EndpointSpec) { s.IPs[0] = netip.MustParseAddr("10.0.1.255") },
		"outside":           func(s *dataplane.EndpointSpec) { s.IPs[0] = netip.MustParseAddr("10.0.2.7") },
		"two IPv4":          func(s *dataplane.EndpointSpec) { s.IPs = append(s.IPs, netip.MustParseAddr("10.0.1.9")) },
		"no address":        func(s *dataplane.EndpointSpec) { s.IPs = nil },
		"no namespace":      func(s *dataplane.EndpointSpec) { s.NetNS = "" },
		"malformed id":      func(s *dataplane.EndpointSpec) { s.ID = "c1" },
		"underscore in nic": func(s *dataplane.EndpointSpec) { s.ID = "c1:eth_0" },
	} {
		t.Run(name, func(t *testing.T) {
			spec := dataplane.EndpointSpec{ID: "c1:eth0", NetNS: "00000000-0000-0000-0000-000000000000", IPs: []netip.Addr{netip.MustParseAddr("10.0.1.7")}}
			change(&spec)
			if _, err := n.backend.AddEndpoint(ctx, spec); err == nil || !strings.Contains(err.Error(), "add endpoint") {
				t.Errorf("error %v", err)
			}
		})
	}
	if _, err := n.backend.AddEndpoint(ctx, dataplane.EndpointSpec{ID: "c1:eth0", NetNS: "gone", IPs: []netip.Addr{netip.MustParseAddr("10.0.1.7")}}); !errors.Is(err, dataplane.ErrNoNetNS) {
		t.Errorf("a namespace that is gone: %v", err)
	}
	if n.fake.Dump() != before {
		t.Errorf("something was left:\n%s", n.fake.Dump())
	}
}

// TestAddDeleteAreIdempotent checks that repeated calls succeed and change nothing.
func TestAddDeleteAreIdempotent(t *testing.T) {
	for _, all := range []bool{false, true} {
		n := newNode(t, hns.Server2022, bridgeConfig())
		n.fake.UpdateReplacesAll = all
		empty := n.fake.Dump()
		spec := n.spec("c1", "10.0.1.7")
		first := n.add(spec)
		attached := n.fake.Dump()
		for range 3 {
			if again := n.add(spec); fmt.Sprint(again) != fmt.Sprint(first) || n.fake.Dump() != attached {
				t.Errorf("a second ADD changes something: %+v\n%s", again, n.fake.Dump())
			}
		}
		if n.count("CreateEndpoint") != 2 { // the endpoints of the host and of the pod
			t.Errorf("%d endpoints were made", n.count("CreateEndpoint"))
		}
		other := n.spec("c2", "10.0.1.8")
		n.add(other)
		for range 2 {
			if err := n.backend.DeleteEndpoint(ctx, other.ID); err != nil {
				t.Error(err)
			}
		}
		n.fake.RemoveNamespace(spec.NetNS) // as runtimes do before DEL
		n.fake.RemoveNamespace(other.NetNS)
		for range 2 {
			if err := n.backend.DeleteEndpoint(ctx, spec.ID); err != nil {
				t.Error(err)
			}
		}
		if n.fake.Dump() != empty {
			t.Errorf("something was left:\n%s", n.fake.Dump())
		}
	}
}

// TestAddRepairs checks that AddEndpoint repairs missing or wrong parts of an existing attachment.
func TestAddRepairs(t *testing.T) {
	for _, all := range []bool{false, true} {
		n := newNode(t, hns.Server2022, bridgeConfig())
		n.fake.UpdateReplacesAll = all
		spec := n.spec("c1", "10.0.1.7")
		n.add(spec)
		good := n.fake.Dump()
		networks, _ := n.fake.Networks(ctx)
		endpoint := func() hns.Endpoint {
			list, _ := n.fake.Endpoints(ctx, networks[0].ID)
			return list[slices.IndexFunc(list, func(e hns.Endpoint) bool { return strings.HasPrefix(e.Name, "c1") })]
		}
		modify := func(keep func(hns.Policy) bool, more ...hns.Policy) {
			t.Helper()
			n.fake.UpdateReplacesAll = true
			policies := slices.DeleteFunc(slices.Clone(endpoint().Policies), func(p hns.Policy) bool { return !keep(p) })
			if _, err := n.fake.ModifyEndpoint(ctx, endpoint().ID, hns.Update, append(policies, more...)...); err != nil {
				t.Fatal(err)
			}
			n.fake.UpdateReplacesAll = all
		}
		for name, damage := range map[string]func(){
			"no ACLs":   func() { modify(func(p hns.Policy) bool { return !p.Is(hns.TypeACL) }) },
			"open ACLs": func() { modify(func(p hns.Policy) bool { return !p.Is(hns.TypeACL) }, openACLs()[0].Policy()) },
			"no NAT":    func() { modify(func(p hns.Policy) bool { return !p.Is(hns.TypeOutBoundNAT) }) },
			"another NAT": func() {
				modify(func(p hns.Policy) bool { return !p.Is(hns.TypeOutBoundNAT) }, hns.MakePolicy(hns.TypeOutBoundNAT, hns.OutBoundNAT{Exceptions: []string{"10.9.0.0/16"}}))
			},
			"no routes":       func() { modify(func(p hns.Policy) bool { return !p.Is(hns.TypeSDNRoute) }) },
			"no policies":     func() { modify(func(p hns.Policy) bool { return p.Is(hns.TypeL2Driver) }) },
			"detached":        func() { detach(t, n, endpoint()) },
			"in another one":  func() { detach(t, n, endpoint()); attach(t, n, n.fake.AddNamespace(), endpoint()) },
			"other addresses": func() { replace(t, n, networks[0].ID, endpoint()) },
		} {
			damage()
			if found, err := n.backend.Endpoints(ctx); err != nil || len(found) != 1 || len(found[0].Problems) == 0 && name != "in another one" && name != "other addresses" {
				t.Errorf("%s: not noticed: %v, %v", name, found, err)
			}
			n.add(spec)
			text, _, _ := strings.Cut(n.fake.Dump(), "\nnamespace 1")
			if strings.TrimSpace(text) != strings.TrimSpace(good) {
				t.Errorf("%s (update replaces all: %t): not put right:\n%s\nwant\n%s", name, all, n.fake.Dump(), good)
			}
			if found, err := n.backend.Endpoints(ctx); err != nil || len(found) != 1 || len(found[0].Problems) > 0 {
				t.Errorf("%s: %v, %v", name, found, err)
			}
		}
	}
}

func openACLs() []hns.ACL {
	return []hns.ACL{{Action: hns.Allow, Direction: hns.In, RuleType: hns.Switch, Priority: 65500}}
}

func detach(t *testing.T, n *node, e hns.Endpoint) {
	t.Helper()
	if err := n.fake.DetachEndpoint(ctx, e.HostComputeNamespace, e.ID); err != nil {
		t.Fatal(err)
	}
}

func attach(t *testing.T, n *node, namespace string, e hns.Endpoint) {
	t.Helper()
	if err := n.fake.AttachEndpoint(ctx, namespace, e.ID); err != nil {
		t.Fatal(err)
	}
}

// replace recreates the endpoint with another address.
func replace(t *testing.T, n *node, network string, e hns.Endpoint) {
	t.Helper()
	if err := n.fake.DeleteEndpoint(ctx, e.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := n.fake.CreateEndpoint(ctx, hns.Endpoint{Name: e.Name, HostComputeNetwork: network, IPConfigurations: []hns.IPConfig{{IPAddress: "10.0.1.99"}}}); err != nil {
		t.Fatal(err)
	}
}

// TestAddressTaken checks that stale endpoints with the address are removed, and others are not.
func TestAddressTaken(t *testing.T) {
	for _, c := range []struct {
		name  string
		stale hns.Endpoint
		ok    bool
	}{
		{"one of ours", hns.Endpoint{Name: "old_eth0_isthmus"}, true},
		{"a remote one, made by kube-proxy when the address was elsewhere", hns.Endpoint{Name: "Ethernet", Flags: hns.RemoteEndpoint}, true},
		{"a local one of another owner", hns.Endpoint{Name: "Ethernet"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNode(t, hns.Server2022, bridgeConfig())
			networks, _ := n.fake.Networks(ctx)
			c.stale.HostComputeNetwork = networks[0].ID
			c.stale.IPConfigurations = []hns.IPConfig{{IPAddress: "10.0.1.7"}}
			if _, err := n.fake.CreateEndpoint(ctx, c.stale); err != nil {
				t.Fatal(err)
			}
			before := n.fake.Dump()
			spec := n.spec("c1", "10.0.1.7")
			_, err := n.backend.AddEndpoint(ctx, spec)
			if c.ok {
				if err != nil || strings.Contains(n.fake.Dump(), c.stale.Name+" ") || !strings.Contains(n.fake.Dump(), "c1_eth0_isthmus") {
					t.Errorf("%v\n%s", err, n.fake.Dump())
				}
				return
			}
			if !errors.Is(err, hns.ErrConflict) || !strings.Contains(err.Error(), `"Ethernet"`) || !strings.HasPrefix(n.fake.Dump(), before) {
				t.Errorf("%v\n%s", err, n.fake.Dump())
			}
		})
	}
}

// TestNamespaceVanishesDuringAdd checks the error and that no endpoint is left.
func TestNamespaceVanishesDuringAdd(t *testing.T) {
	n := newNode(t, hns.Server2022, bridgeConfig())
	spec := n.spec("c1", "10.0.1.7")
	n.fake.Before(func(op, id string) error {
		if op == "AttachEndpoint" && !strings.HasSuffix(id, "_ep") && strings.Contains(n.fake.Dump(), "c1_eth0") {
			n.fake.RemoveNamespace(spec.NetNS)
		}
		return nil
	})
	if _, err := n.backend.AddEndpoint(ctx, spec); !errors.Is(err, dataplane.ErrNoNetNS) || strings.Contains(n.fake.Dump(), "c1_eth0") {
		t.Errorf("%v\n%s", err, n.fake.Dump())
	}
}

// TestListingRaces checks that a listing that fails because an endpoint disappears meanwhile is
// repeated.
func TestListingRaces(t *testing.T) {
	n := newNode(t, hns.Server2022, bridgeConfig())
	n.add(n.spec("c1", "10.0.1.7"))
	failures := 2
	n.fake.Before(func(op, _ string) error {
		if op == "Endpoints" && failures > 0 {
			failures--
			return hns.NewError(op, hns.CodeNotFound, "")
		}
		return nil
	})
	if found, err := n.backend.Endpoints(ctx); err != nil || len(found) != 1 || failures != 0 {
		t.Errorf("%v, %v", found, err)
	}
}

// TestDeleteIsTolerant checks that DeleteEndpoint accepts missing objects and refusals.
func TestDeleteIsTolerant(t *testing.T) {
	for _, op := range []string{"DetachEndpoint", "DeleteEndpoint"} {
		for _, code := range []uint32{hns.CodeNotFound, hns.CodeEndpointNotFound, hns.CodeRequestUnsupported} {
			n := newNode(t, hns.Server2022, bridgeConfig())
			spec := n.spec("c1", "10.0.1.7")
			n.add(spec)
			n.fake.Before(func(o, _ string) error {
				if o == op {
					return hns.NewError(op, code, "injected")
				}
				return nil
			})
			err := n.backend.DeleteEndpoint(ctx, spec.ID)
			if refused := op == "DeleteEndpoint" && code == hns.CodeRequestUnsupported; refused != (err != nil) {
				t.Errorf("%s %#x: %v", op, code, err)
			}
		}
	}
}

// TestDeleteWaitsOnce checks a detachment for which HNS never answers. The first DEL fails after one deadline, and calls
// HNS for nothing else. The next one does not wait for the detachment, and deletes the endpoint.
func TestDeleteWaitsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, first, _ := twoLate(t)
		release := n.hold("DetachEndpoint")
		defer release()
		n.fake.ForgetCalls()
		if err := n.backend.DeleteEndpoint(ctx, first.ID); hns.Code(err) != hns.CodeTimeout || n.count("DeleteEndpoint") > 0 {
			t.Errorf("first DEL: %v, %v", err, n.fake.Calls())
		}
		if err := n.backend.DeleteEndpoint(ctx, first.ID); err != nil || n.has(first) {
			t.Errorf("second DEL: %v\n%s", err, n.fake.Dump())
		}
	})
}

// TestCounters checks that drops of endpoints are added up, including those of removed endpoints, which are not remembered.
func TestCounters(t *testing.T) {
	n := newNode(t, hns.Server2022, bridgeConfig())
	spec := n.spec("c1", "10.0.1.7")
	n.add(spec)
	drop := func(times int, d model.Direction) {
		for range times {
			n.send(spec.ID, d, netip.MustParseAddr("10.0.9.9"), model.TCP, 80, hns.Reading{})
		}
	}
	expect := func(in, out uint64) {
		t.Helper()
		c, err := n.backend.Counters(ctx)
		if err != nil || c.PortDrops[model.Ingress] != in || c.PortDrops[model.Egress] != out {
			t.Errorf("%+v, %v; want %d and %d", c, err, in, out)
		}
	}
	expect(0, 0)
	drop(3, model.Ingress)
	drop(2, model.Egress)
	expect(3, 2)
	expect(3, 2)
	if err := n.backend.DeleteEndpoint(context.Background(), spec.ID); err != nil {
		t.Fatal(err)
	}
	expect(3, 2)
	if got := n.backend.Metered(); got != 0 {
		t.Errorf("%d endpoints are remembered that are gone", got)
	}
	n.add(spec)
	drop(1, model.Ingress)
	expect(4, 2)
	if got := n.backend.Metered(); got != 1 {
		t.Errorf("%d endpoints are remembered, want 1", got)
	}
}

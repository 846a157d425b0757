// SPDX-License-Identifier: Apache-2.0

package windows_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// natConfig is the configuration of a node whose NAT exceptions follow from the Nodes.
func natConfig() windows.Config {
	c := bridgeConfig()
	c.OutboundNATExceptions, c.NATDelay = nil, 50*time.Millisecond
	return c
}

// nat returns the exceptions of a pod's NAT as text; "off" without NAT.
func (n *node) nat(id model.EndpointID) string {
	n.t.Helper()
	all, err := n.fake.AllEndpoints(ctx)
	if err != nil {
		n.t.Fatal(err)
	}
	for _, e := range all {
		if e.Name != n.name(id) {
			continue
		}
		if acls, err := e.ACLs(); err != nil || !acl.WellFormed(acls) {
			n.t.Errorf("the ACLs of %s are damaged: %v, %v", id, acls, err)
		}
		for _, p := range e.Policies {
			var nat hns.OutBoundNAT
			if p.Is(hns.TypeOutBoundNAT) && p.Decode(&nat) == nil {
				return strings.Join(nat.Exceptions, " ")
			}
		}
		return "off"
	}
	n.t.Fatalf("no endpoint %s", id)
	return ""
}

// idle calls Idle until no work is left.
func (n *node) idle() {
	n.t.Helper()
	time.Sleep(60 * time.Millisecond)
	for more := true; more; {
		var err error
		if more, err = n.backend.Idle(ctx); err != nil {
			n.t.Fatal(err)
		}
	}
}

// natFault returns why endpoints lack exceptions; "" if none does.
func (n *node) natFault() string {
	i := slices.IndexFunc(n.backend.Faults(), func(f string) bool {
		return strings.HasPrefix(f, "outbound NAT of some pods does not except all ranges of the cluster yet")
	})
	if i < 0 {
		return ""
	}
	return n.backend.Faults()[i]
}

// clusterState returns the State of node1 with the given peers and pods.
func clusterState(specs []dataplane.EndpointSpec, peers ...model.Route) *model.State {
	s := peerState(specs[0], "10.0.3.3")
	for _, spec := range specs[1:] {
		s.Policy.Endpoints[spec.ID] = model.EndpointState{Pod: spec.Pod, IPs: spec.IPs, Table: s.Policy.Endpoints[specs[0].ID].Table}
	}
	c := bridgeConfig()
	s.Node, s.Fabric = "node1", model.FabricState{PodCIDRs: c.PodCIDRs, NodeAddresses: c.NodeAddresses, Routes: peers}
	return s
}

const (
	alone   = "10.0.1.0/24 10.96.0.0/12 192.168.0.1/32"
	withTwo = "10.0.1.0/24 10.0.2.0/24 10.96.0.0/12 192.168.0.1/32 192.168.0.2/32"
	withAll = "10.0.1.0/24 10.0.2.0/23 10.96.0.0/12 192.168.0.1/32 192.168.0.2/31"
)

// TestDerivedNAT checks that a pod that starts before the nodes are known has no NAT, and that
// status reports it. NAT then follows the nodes, with one write per endpoint and change, and no
// write when a node is removed.
func TestDerivedNAT(t *testing.T) {
	n := newNode(t, hns.Server2022, natConfig())
	var specs []dataplane.EndpointSpec
	for i := range 20 { // more than one call of Idle writes
		specs = append(specs, n.spec(fmt.Sprint("c", i), fmt.Sprintf("10.0.1.%d", 10+i)))
		n.add(specs[i])
	}
	first := specs[0].ID
	if got := n.nat(first); got != "off" || !strings.Contains(strings.Join(n.backend.Faults(), "\n"), "outbound NAT is off until the pod ranges of other nodes are known") {
		t.Errorf("exceptions %s, faults %q", got, n.backend.Faults())
	}
	n.apply(clusterState(specs))
	n.idle()
	if got := n.nat(first); got != alone || len(n.backend.Faults()) > 0 {
		t.Errorf("exceptions %s, faults %q", got, n.backend.Faults())
	}
	writes := n.count("ModifyEndpoint")
	n.apply(clusterState(specs, peer(2, model.Linux, "", "10.0.2.0/24")))
	n.apply(clusterState(specs, peer(2, model.Linux, "", "10.0.2.0/24"), peer(3, model.Windows, "", "10.0.3.0/24")))
	late := n.spec("late", "10.0.1.99")
	n.add(late)
	if got := n.nat(late.ID); got != withAll {
		t.Errorf("exceptions of a new pod %s", got)
	}
	c, err := n.backend.Counters(ctx)
	if text := strings.Join(c.Facts, "\n"); err != nil || !strings.Contains(text, "outbound NAT: on, except to 5 ranges (of Nodes, ServiceCIDRs and --service-cidr); pods are being updated") {
		t.Errorf("facts %q, %v", c.Facts, err)
	}
	n.idle()
	for _, s := range specs {
		if got := n.nat(s.ID); got != withAll {
			t.Errorf("exceptions of %s: %s", s.ID, got)
		}
	}
	if got := n.count("ModifyEndpoint") - writes; got != len(specs) {
		t.Errorf("%d writes for %d endpoints", got, len(specs))
	}
	writes = n.count("ModifyEndpoint")
	s := clusterState(append(specs, late), peer(2, model.Linux, "", "10.0.2.0/24"))
	n.apply(s)
	n.idle()
	written := n.count("ModifyEndpoint") // the new pod got its list
	n.start()
	n.apply(s)
	n.idle()
	if got := n.nat(first); got != withAll || written != writes+1 || n.count("ModifyEndpoint") != written {
		t.Errorf("exceptions %s after a node left; %d writes", got, n.count("ModifyEndpoint")-writes)
	}
	installed, err := n.backend.Endpoints(ctx)
	if err != nil || len(installed) != len(specs)+1 || len(installed[0].Problems) > 0 {
		t.Errorf("endpoints %v, %v", installed, err)
	}
	again := n.spec("again", "10.0.1.100")
	n.add(again)
	if got := n.nat(again.ID); got != withTwo {
		t.Errorf("exceptions of a new pod %s", got)
	}
}

// TestDerivedNATFails checks that a failure is reported and retried, and that other endpoints are
// written.
func TestDerivedNATFails(t *testing.T) {
	n := newNode(t, hns.Server2022, natConfig())
	specs := []dataplane.EndpointSpec{n.spec("c1", "10.0.1.7"), n.spec("c2", "10.0.1.8")}
	for _, s := range specs {
		n.add(s)
	}
	n.apply(clusterState(specs))
	n.idle()
	n.apply(clusterState(specs, peer(2, model.Linux, "", "10.0.2.0/24")))
	time.Sleep(60 * time.Millisecond)
	failed := false
	n.fake.Before(func(op, _ string) error {
		if op == "ModifyEndpoint" && !failed {
			failed = true
			return hns.NewError(op, hns.CodeUnexpected, "unexpected")
		}
		return nil
	})
	// An error of Idle would delay the components by half a minute.
	if _, err := n.backend.Idle(ctx); err != nil || !strings.Contains(n.natFault(), "unexpected") {
		t.Errorf("%v, faults %q", err, n.backend.Faults())
	}
	n.idle()
	for _, s := range specs {
		if got := n.nat(s.ID); got != withTwo {
			t.Errorf("exceptions of %s: %s", s.ID, got)
		}
	}
	if len(n.backend.Faults()) > 0 {
		t.Errorf("faults %q", n.backend.Faults())
	}
}

// TestDerivedNATIsFair checks endpoints that HNS does not let be written, more than one call of Idle tries. The others
// are written nevertheless.
func TestDerivedNATIsFair(t *testing.T) {
	n := newNode(t, hns.Server2022, natConfig())
	var specs []dataplane.EndpointSpec
	bad := make(map[string]bool)
	for i := range 20 {
		specs = append(specs, n.spec(fmt.Sprintf("c%02d", i), fmt.Sprintf("10.0.1.%d", 10+i)))
		n.add(specs[i])
		bad[n.hnsID(specs[i].ID)] = i >= 2 && i < 18
	}
	n.apply(clusterState(specs))
	n.idle()
	n.apply(clusterState(specs, peer(2, model.Linux, "", "10.0.2.0/24")))
	n.failing(func(op, id string) bool { return op == "ModifyEndpoint" && bad[id] }, hns.CodeUnexpected)
	for range 4 {
		time.Sleep(60 * time.Millisecond)
		if _, err := n.backend.Idle(ctx); err != nil || n.natFault() == "" {
			t.Fatalf("%v, faults %q", err, n.backend.Faults())
		}
	}
	for i, s := range specs {
		want := withTwo
		if bad[n.hnsID(s.ID)] {
			want = alone
		}
		if got := n.nat(s.ID); got != want {
			t.Errorf("exceptions of endpoint %d: %s, want %s", i, got, want)
		}
	}
	n.fake.Before(nil)
	n.idle()
	for i, s := range specs {
		if got := n.nat(s.ID); got != withTwo || len(n.backend.Faults()) > 0 {
			t.Errorf("in the end, exceptions of endpoint %d: %s; faults %q", i, got, n.backend.Faults())
		}
	}
}

// TestNATSettings checks that --masquerade=false turns NAT off, and that given ranges are used
// unchanged.
func TestNATSettings(t *testing.T) {
	for want, change := range map[string]func(*windows.Config){
		"off":        func(c *windows.Config) { c.NoOutboundNAT = true },
		"10.0.0.0/8": func(c *windows.Config) { c.OutboundNATExceptions = bridgeConfig().OutboundNATExceptions },
	} {
		c := natConfig()
		change(&c)
		n := newNode(t, hns.Server2022, c)
		specs := []dataplane.EndpointSpec{n.spec("c1", "10.0.1.7")}
		n.add(specs[0])
		n.apply(clusterState(specs, peer(2, model.Linux, "", "10.0.2.0/24")))
		n.idle()
		if got := n.nat(specs[0].ID); got != want || len(n.backend.Faults()) > 0 {
			t.Errorf("exceptions %s, want %s; faults %q", got, want, n.backend.Faults())
		}
	}
}

// serviceRoutes returns the destinations of a pod's SDN routes.
func (n *node) serviceRoutes(id model.EndpointID) string {
	n.t.Helper()
	var all []string
	for _, p := range n.stored(id).Policies {
		var route hns.SDNRoute
		if p.Is(hns.TypeSDNRoute) && p.Decode(&route) == nil {
			all = append(all, route.DestinationPrefix)
		}
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// TestServiceCIDRs checks that pods, also running ones, get the ranges of ServiceCIDR objects as
// NAT exceptions and, on L2Bridge, as routes to the host. With --cluster-cidr the objects have no
// effect.
func TestServiceCIDRs(t *testing.T) {
	const fromObjects = "10.200.0.0/16"
	for name, c := range map[string]struct {
		change            func(*windows.Config)
		nat, routes       string
		laterNAT, laterIs string
	}{
		"from objects only": {func(c *windows.Config) { c.ServiceCIDRs = nil },
			"10.0.1.0/24 10.200.0.0/16 192.168.0.1/32", "10.200.0.0/16 192.168.0.1/32",
			"10.0.1.0/24 10.200.0.0/16 172.20.0.0/24 192.168.0.1/32", "10.200.0.0/16 172.20.0.0/24 192.168.0.1/32"},
		"besides the flag": {func(*windows.Config) {},
			"10.0.1.0/24 10.96.0.0/12 10.200.0.0/16 192.168.0.1/32", "10.200.0.0/16 10.96.0.0/12 192.168.0.1/32",
			"10.0.1.0/24 10.96.0.0/12 10.200.0.0/16 172.20.0.0/24 192.168.0.1/32", "10.200.0.0/16 10.96.0.0/12 172.20.0.0/24 192.168.0.1/32"},
		"without NAT": {func(c *windows.Config) { c.ServiceCIDRs, c.NoOutboundNAT = nil, true },
			"off", "10.200.0.0/16 192.168.0.1/32", "off", "10.200.0.0/16 172.20.0.0/24 192.168.0.1/32"},
		"--cluster-cidr": {func(c *windows.Config) { c.OutboundNATExceptions = bridgeConfig().OutboundNATExceptions },
			"10.0.0.0/8", "10.96.0.0/12 192.168.0.1/32", "10.0.0.0/8", "10.96.0.0/12 192.168.0.1/32"},
		"overlay": {func(c *windows.Config) { c.Mode, c.VNI = windows.Overlay, 4096 },
			"10.0.1.0/24 10.96.0.0/12 10.200.0.0/16", "", "10.0.1.0/24 10.96.0.0/12 10.200.0.0/16 172.20.0.0/24", ""},
	} {
		t.Run(name, func(t *testing.T) {
			config := natConfig()
			c.change(&config)
			n := newNode(t, hns.Server2022, config)
			specs := []dataplane.EndpointSpec{n.spec("c1", "10.0.1.7"), n.spec("c2", "10.0.1.8")}
			n.add(specs[0])
			s := clusterState(specs)
			s.Fabric.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix(fromObjects)}
			n.apply(s)
			n.idle()
			n.add(specs[1])
			check := func(nat, routes string) {
				t.Helper()
				for _, spec := range specs {
					if gotNAT, got := n.nat(spec.ID), n.serviceRoutes(spec.ID); gotNAT != nat || got != routes {
						t.Errorf("%s: exceptions %s, routes %s; want %s and %s", spec.ID, gotNAT, got, nat, routes)
					}
				}
				if found, err := n.backend.Endpoints(ctx); err != nil || len(found) != 2 || len(found[0].Problems)+len(found[1].Problems) > 0 {
					t.Errorf("endpoints %+v, %v", found, err)
				}
			}
			check(c.nat, c.routes)
			next := *s
			next.Fabric.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix(fromObjects), netip.MustParsePrefix("172.20.0.0/24"), netip.MustParsePrefix("fd96::/112")}
			n.apply(&next)
			n.idle()
			check(c.laterNAT, c.laterIs)
			n.apply(s) // a removed range stays for running pods
			n.start()
			n.apply(s)
			n.idle()
			writes := n.count("ModifyEndpoint")
			n.idle()
			if n.count("ModifyEndpoint") != writes {
				t.Error("endpoints are written again and again")
			}
			check(c.laterNAT, c.laterIs)
		})
	}
}

// TestNoRangeOfServices checks that status says why pods of an l2bridge network reach no Services, until a range is known.
func TestNoRangeOfServices(t *testing.T) {
	for name, c := range map[string]struct {
		change        func(*windows.Config)
		before, after string // part of the warning without ServiceCIDR objects, and with one; empty: none
	}{
		"default":        {func(*windows.Config) {}, "no ServiceCIDR objects", ""},
		"without NAT":    {func(c *windows.Config) { c.NoOutboundNAT = true }, "no ServiceCIDR objects", ""},
		"--service-cidr": {func(c *windows.Config) { c.ServiceCIDRs = bridgeConfig().ServiceCIDRs }, "", ""},
		"--cluster-cidr": {func(c *windows.Config) { c.OutboundNATExceptions = bridgeConfig().OutboundNATExceptions }, "with --cluster-cidr", "with --cluster-cidr"},
		"overlay":        {func(c *windows.Config) { c.Mode, c.VNI = windows.Overlay, 4096 }, "", ""},
	} {
		config := natConfig()
		config.ServiceCIDRs = nil
		c.change(&config)
		n := newNode(t, hns.Server2022, config)
		spec := n.spec("c1", "10.0.1.7")
		n.add(spec)
		check := func(state, want string) {
			t.Helper()
			_, got, _ := strings.Cut(strings.Join(n.backend.Faults(), "\n"), "warning: pods reach no Services")
			if (got == "") != (want == "") || !strings.Contains(got, want) || want != "" && !strings.Contains(got, "windows.serviceCIDRs") {
				t.Errorf("%s, %s: faults %q, want %q", name, state, got, want)
			}
		}
		s := clusterState([]dataplane.EndpointSpec{spec})
		n.apply(s)
		check("no ServiceCIDR", c.before)
		next := *s
		next.Fabric.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.200.0.0/16")}
		n.apply(&next)
		check("with a ServiceCIDR", c.after)
	}
}

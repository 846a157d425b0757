// SPDX-License-Identifier: Apache-2.0

package windows_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// clusterFirst returns the settings that a kubelet requests for pods of namespace shop. The search
// domain "." is the root.
func clusterFirst(servers ...string) model.DNS {
	d := model.DNS{Searches: []string{"shop.svc.cluster.local", "svc.cluster.local.", "."}, Options: []string{"ndots:5"}}
	for _, s := range servers {
		d.Servers = append(d.Servers, netip.MustParseAddr(s))
	}
	return d
}

// stored returns the endpoint of a pod.
func (n *node) stored(id model.EndpointID) hns.Endpoint {
	n.t.Helper()
	list, err := n.fake.AllEndpoints(ctx)
	if err != nil {
		n.t.Fatal(err)
	}
	i := slices.IndexFunc(list, func(e hns.Endpoint) bool { return e.Name == n.name(id) })
	if i < 0 {
		n.t.Fatalf("no endpoint %s\n%s", n.name(id), n.fake.Dump())
	}
	return list[i]
}

// everyHNS calls a test for each release and mode.
func everyHNS(t *testing.T, test func(t *testing.T, n *node)) {
	t.Helper()
	for _, v := range hns.Profiles() {
		for _, c := range []windows.Config{bridgeConfig(), overlayConfig()} {
			t.Run(fmt.Sprintf("%s %s", v, c.Mode), func(t *testing.T) { test(t, newNode(t, v, c)) })
		}
	}
}

// TestDNSOfPods checks that endpoints are created with the resolver that the runtime requested, and
// keep it when the agent restarts.
func TestDNSOfPods(t *testing.T) {
	everyHNS(t, func(t *testing.T, n *node) {
		n.fake.HostDNS = hns.DNS{ServerList: []string{"192.168.0.53"}}
		spec := n.spec("c1", "10.0.1.7")
		spec.DNS = clusterFirst("10.96.0.10", "fd96::a")
		n.add(spec)
		if want := `    Dns {"Search":["shop.svc.cluster.local","svc.cluster.local"],"ServerList":["10.96.0.10","fd96::a"],"Options":["ndots:5"]}` + "\n"; !strings.Contains(n.fake.Dump(), want) {
			t.Fatalf("no %s in\n%s", want, n.fake.Dump())
		}
		other := n.spec("c2", "10.0.1.8") // the runtime passed nothing: HNS shows the resolver of the host
		n.add(other)
		if got := n.stored(other.ID).DNS; !slices.Equal(got.ServerList, n.fake.HostDNS.ServerList) {
			t.Errorf("without a resolver: %+v", got)
		}
		before, made := n.fake.Dump(), n.count("CreateEndpoint")
		n.start()
		n.add(spec)
		n.add(other)
		if n.fake.Dump() != before || n.count("CreateEndpoint") != made {
			t.Errorf("a restart changes something:\n%s", n.fake.Dump())
		}
		n.wellDNS()
	})
}

// wellDNS checks that no endpoint has a problem, and that the data path reports no resolver.
func (n *node) wellDNS() {
	n.t.Helper()
	found, err := n.backend.Endpoints(ctx)
	resolvers := func(fault string) bool { return strings.Contains(fault, "DNS") }
	if err != nil || slices.ContainsFunc(found, func(i dataplane.Installed) bool { return len(i.Problems) > 0 }) || slices.ContainsFunc(n.backend.Faults(), resolvers) {
		n.t.Errorf("%v, %v, %q", found, err, n.backend.Faults())
	}
}

// TestDNSThatDiffers checks endpoints with another resolver, which HNS cannot change. An endpoint
// that no pod uses is recreated. One that a pod may use stays, and is reported until the pod is
// gone.
func TestDNSThatDiffers(t *testing.T) {
	everyHNS(t, func(t *testing.T, n *node) {
		spec := n.spec("c1", "10.0.1.7")
		spec.DNS = clusterFirst("10.96.0.10")
		n.add(spec)
		first := n.stored(spec.ID)

		spec.DNS = clusterFirst("10.96.0.11")
		n.start()
		n.add(spec)
		if now := n.stored(spec.ID); now.ID != first.ID || !slices.Equal(now.DNS.ServerList, []string{"10.96.0.10"}) {
			t.Errorf("the endpoint of a running pod was replaced: %+v", now)
		}
		found, err := n.backend.Endpoints(ctx)
		if err != nil || len(found) != 1 || len(found[0].Problems) > 0 {
			t.Errorf("%v, %v: a repair would be tried again and again", found, err)
		}
		if faults := strings.Join(n.backend.Faults(), "\n"); !strings.Contains(faults, `endpoint "c1_eth0_isthmus" has DNS servers [10.96.0.10]`) || !strings.Contains(faults, "not [10.96.0.11]") {
			t.Errorf("faults %q", faults)
		}

		detach(t, n, n.stored(spec.ID))
		n.add(spec)
		if now := n.stored(spec.ID); now.ID == first.ID || !slices.Equal(now.DNS.ServerList, []string{"10.96.0.11"}) || now.HostComputeNamespace == "" {
			t.Errorf("an endpoint that no pod uses was kept: %+v", now)
		}
		n.wellDNS()

		if err := n.backend.DeleteEndpoint(ctx, spec.ID); err != nil {
			t.Fatal(err)
		}
		n.wellDNS()
	})
}

// TestDNSAsHNSShowsIt checks that differences in spelling do not count.
func TestDNSAsHNSShowsIt(t *testing.T) {
	n := newNode(t, hns.Server2022, bridgeConfig())
	spec := n.spec("c1", "10.0.1.7")
	spec.DNS = clusterFirst("fd96::a", "10.96.0.10")
	n.add(spec)
	for name, c := range map[string]struct {
		shown hns.DNS
		same  bool
	}{
		"other spelling": {hns.DNS{ServerList: []string{"FD96:0::A", "10.96.0.10"}, Search: []string{"SHOP.svc.cluster.local.", "svc.cluster.local"}}, true},
		"another order":  {hns.DNS{ServerList: []string{"10.96.0.10", "fd96::a"}, Search: []string{"shop.svc.cluster.local", "svc.cluster.local"}}, false},
		"one missing":    {hns.DNS{ServerList: []string{"fd96::a"}, Search: []string{"shop.svc.cluster.local", "svc.cluster.local"}}, false},
		"no search":      {hns.DNS{ServerList: []string{"fd96::a", "10.96.0.10"}}, false},
		"other options": {hns.DNS{ServerList: []string{"fd96::a", "10.96.0.10"}, Search: []string{"shop.svc.cluster.local", "svc.cluster.local"},
			Options: []string{"ndots:1"}}, false},
		"another domain": {hns.DNS{ServerList: []string{"fd96::a", "10.96.0.10"}, Search: []string{"shop.svc.cluster.local", "svc.cluster.local"},
			Domain: "corp"}, false},
		"nothing": {hns.DNS{}, false},
	} {
		n.remake(spec, c.shown)
		if _, err := n.backend.Endpoints(ctx); err != nil {
			t.Fatal(err)
		}
		if faults := n.backend.Faults(); (len(faults) == 0) != c.same {
			t.Errorf("%s: %q", name, faults)
		}
	}
}

// remake recreates the endpoint of a pod with another resolver, as another program could.
func (n *node) remake(spec dataplane.EndpointSpec, d hns.DNS) {
	n.t.Helper()
	e := n.stored(spec.ID)
	detach(n.t, n, e)
	if err := n.fake.DeleteEndpoint(ctx, e.ID); err != nil {
		n.t.Fatal(err)
	}
	e.ID, e.HostComputeNamespace, e.DNS = "", "", d
	made, err := n.fake.CreateEndpoint(ctx, e)
	if err != nil {
		n.t.Fatal(err)
	}
	attach(n.t, n, spec.NetNS, made)
}

// TestDNSNeedsNoRule checks that policy applies to the server of a pod as to any other address.
func TestDNSNeedsNoRule(t *testing.T) {
	n := newNode(t, hns.Server2022, bridgeConfig())
	spec := n.spec("c1", "10.0.1.7")
	spec.DNS = clusterFirst("10.96.0.10")
	n.add(spec)
	for _, p := range []model.Protocol{model.UDP, model.TCP} {
		if n.send(spec.ID, model.Egress, netip.MustParseAddr("10.96.0.10"), p, 53, hns.Reading{}) {
			t.Errorf("under default deny, %s to the DNS server passes", p)
		}
	}
}

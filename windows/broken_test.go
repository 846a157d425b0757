// SPDX-License-Identifier: Apache-2.0

package windows_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/hnsemu/fault"
	"github.com/isthmus-net/isthmus/windows"
	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hns/hnstest"
)

// TestUpgradeRemovesNoNetwork checks that an agent with any configuration removes no network:
// neither its own with another shape, nor one of another program.
func TestUpgradeRemovesNoNetwork(t *testing.T) {
	for name, change := range map[string]func(*windows.Config){
		"nothing":      func(*windows.Config) {},
		"mode":         func(c *windows.Config) { c.Mode = windows.Overlay },
		"range":        func(c *windows.Config) { c.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.0.9.0/24")} },
		"network":      func(c *windows.Config) { c.Network = "other" },
		"exceptions":   func(c *windows.Config) { c.OutboundNATExceptions = nil },
		"host address": func(c *windows.Config) { c.NodeAddresses = []netip.Addr{netip.MustParseAddr("192.168.0.9")} },
	} {
		n := newNode(t, hns.Server2022, bridgeConfig())
		n.add(n.spec("c1", "10.0.1.5"))
		before, err := n.fake.Networks(ctx)
		if err != nil {
			t.Fatal(err)
		}
		change(&n.config)
		b, err := windows.New(ctx, n.config, n.fake, discard)
		if err == nil {
			_, err = b.Apply(ctx, &model.State{})
		}
		after, listErr := n.fake.Networks(ctx)
		if listErr != nil || n.count("DeleteNetwork") > 0 || after[0].ID != before[0].ID {
			t.Errorf("%s: networks %v were %v, %v", name, after, before, listErr)
		}
		if refuse := name == "mode" || name == "range"; refuse != (err != nil) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestRemoveEnds checks that uninstalling does not wait for a call that hangs.
func TestRemoveEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, hns.Server2022, bridgeConfig())
		faults := new(fault.Faults)
		client := &fault.Client{Fake: n.fake, Faults: faults}
		faults.Set(fault.Fault{Op: "Delete.network", Times: 1, Hang: true})
		began := time.Now()
		err := windows.Remove(ctx, client, "isthmus", 50*time.Millisecond)
		if hns.Code(err) != hns.CodeTimeout || time.Since(began) > 5*time.Second {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		faults.Clear()
		if err := windows.Remove(ctx, client, "isthmus", 0); err != nil {
			t.Error(err)
		}
	})
}

// TestHostPortOfALeak checks that the host port of a leaked endpoint is freed. If a pod, another
// network plugin or an unknown owner has the port, the error names the owner or where to look.
func TestHostPortOfALeak(t *testing.T) {
	port := model.HostPort{Protocol: model.TCP, Number: 8080, Port: 80}
	leak := func(name string) func(n *node) {
		return func(n *node) {
			networks, err := n.fake.Networks(ctx)
			if err == nil {
				_, err = n.fake.CreateEndpoint(ctx, hns.Endpoint{Name: name, HostComputeNetwork: networks[0].ID,
					Policies: []hns.Policy{hns.MakePolicy(hns.TypePortMapping, hns.PortMapping{Protocol: 6, InternalPort: 81, ExternalPort: 8080})}})
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, c := range map[string]struct {
		do   func(*node)
		says string
	}{
		"leaked":    {leak("leaked_eth0_isthmus"), ""},
		"of others": {leak("nat_ep"), `"nat_ep"`},
		"nobody": {func(n *node) {
			n.fake.Before(func(op, id string) error {
				if op == "CreateEndpoint" {
					return hns.NewError(op, hns.CodePortExists, "")
				}
				return nil
			})
		}, "excludedportrange"},
	} {
		n := newNode(t, hns.Server2022, bridgeConfig())
		c.do(n)
		spec := n.spec("c1", "10.0.1.9")
		spec.HostPorts = []model.HostPort{port}
		_, err := n.backend.AddEndpoint(ctx, spec)
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "6/8080")) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestBrokenEndpointIsRecreated checks that an endpoint that HNS gave up is a problem, and that the
// next ADD of the same pod creates another one with the same address.
func TestBrokenEndpointIsRecreated(t *testing.T) {
	for _, broken := range []hns.State{hns.StateDegraded, hns.StateDestroyed} {
		n := newNode(t, hns.Server2022, bridgeConfig())
		spec := n.spec("c1", "10.0.1.9")
		first := n.add(spec)
		was := n.hnsID(spec.ID)
		if err := n.fake.SetState(was, broken); err != nil {
			t.Fatal(err)
		}
		if got := n.problems(spec.ID); !strings.Contains(got, broken.String()) {
			t.Errorf("%s: problems %q", broken, got)
		}
		again := n.add(spec)
		if n.hnsID(spec.ID) == was || !slices.Equal(again.Addresses, first.Addresses) || again.MAC.String() != first.MAC.String() {
			t.Errorf("%s: still %s, or %v is not %v", broken, was, again, first)
		}
		if got := n.problems(spec.ID); got != "" {
			t.Errorf("%s: afterwards problems %q", broken, got)
		}
	}
}

func (n *node) problems(id model.EndpointID) string {
	n.t.Helper()
	found, err := n.backend.Endpoints(ctx)
	if err != nil {
		n.t.Fatal(err)
	}
	for _, e := range found {
		if e.ID == id {
			return strings.Join(e.Problems, "; ")
		}
	}
	return "not listed"
}

// TestNewNamespaceNewEndpoint checks that a pod with a recreated sandbox can be attached, although
// this HNS lets no endpoint change its namespace.
func TestNewNamespaceNewEndpoint(t *testing.T) {
	n := newNode(t, hns.Server2019, bridgeConfig())
	n.fake.SetQuirks(hnstest.Quirks{AttachOnce: true})
	spec := n.spec("c1", "10.0.1.9")
	for range 3 {
		n.add(spec)
		if got := n.problems(spec.ID); got != "" {
			t.Error(got)
		}
		spec.NetNS = n.fake.AddNamespace()
	}
	if got := strings.Count(n.fake.Dump(), n.name(spec.ID)+" "); got != 1 {
		t.Errorf("%d endpoints:\n%s", got, n.fake.Dump())
	}
}

// TestUnconnectedIsReported checks that an attached endpoint that no container uses is reported
// after a while, until a container uses it.
func TestUnconnectedIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := bridgeConfig()
		c.ConnectWait = 20 * time.Millisecond
		n := newNode(t, hns.Server2022, c)
		spec := n.spec("c1", "10.0.1.9")
		n.add(spec)
		said := func() string {
			if got := n.problems(spec.ID); got != "" {
				t.Errorf("problems %q", got)
			}
			return strings.Join(n.backend.Faults(), "\n")
		}
		if got := said(); got != "" {
			t.Errorf("at once: %s", got)
		}
		time.Sleep(30 * time.Millisecond)
		first := said()
		if !strings.Contains(first, n.name(spec.ID)) {
			t.Errorf("after a while: %q", first)
		}
		time.Sleep(1100 * time.Millisecond)
		if got := said(); got != first { // the API server would get an event about the Node for each text
			t.Errorf("first %q, then %q", first, got)
		}
		if err := n.fake.PutContainer(spec.NetNS, "c1", false); err != nil {
			t.Fatal(err)
		}
		if got := said(); got != "" {
			t.Errorf("connected: %s", got)
		}
	})
}

// TestTunnelAddress checks that a node without a tunnel address, or with one that other nodes do
// not use, reports a problem. It publishes its tunnel only once it has an address.
func TestTunnelAddress(t *testing.T) {
	for _, early := range []string{"", "169.254.3.4"} {
		n := &node{t: t, fake: hnstest.NewFake(hns.Server2022), config: overlayConfig()}
		n.fake.ManagementIP = n.config.NodeAddresses[0].String()
		n.fake.Blackout(1000, early)
		n.start()
		told := n.backend.NodeInfo()
		if said := strings.Join(n.backend.Faults(), "\n"); told.VTEP != (model.MAC{}) || told.Tunnel.IsValid() || !strings.Contains(said, "no tunnel address yet") {
			t.Errorf("during the blackout: %v, %q", told, said)
		}
		n.fake.Blackout(0, "")
		n.apply(&model.State{Node: "node1"})
		told = n.backend.NodeInfo()
		if said := strings.Join(n.backend.Faults(), "\n"); told.VTEP == (model.MAC{}) || told.Tunnel != n.config.NodeAddresses[0] || said != "" {
			t.Errorf("after it: %v, %q", told, said)
		}
		n.fake.MoveTunnels("198.51.100.7")
		n.apply(&model.State{Node: "node1"})
		if said := strings.Join(n.backend.Faults(), "\n"); !strings.Contains(said, "198.51.100.7") {
			t.Errorf("with another address: %q", said)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package windows_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/windows"
	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hns/hnstest"
)

// inspect reads the network cbr0 of a fake, and the differences that a plan prints.
func inspect(t *testing.T, fake *hnstest.Fake, c windows.Config) (f windows.Found, differ []windows.Mismatch) {
	t.Helper()
	f, err := windows.Inspect(ctx, fake, 0, func(all []hns.Network) (hns.Network, error) {
		for _, n := range all {
			if n.Name == "cbr0" {
				return n, nil
			}
		}
		return hns.Network{}, errors.New("no network cbr0")
	})
	if err != nil {
		t.Fatal(err)
	}
	differ = append(c.VersionMismatches(f.Version), c.NetworkMismatches(&f.Network)...)
	return f, append(differ, c.HostMismatches(f.Endpoints)...)
}

// A plan and the start of an agent judge a network by the same code. The agent starts if and only if the plan finds no
// difference. Its error has the text of the plan. Neither changes a network that differs.
func TestPlanAndStartAgree(t *testing.T) {
	another := []netip.Prefix{netip.MustParsePrefix("10.0.2.0/24")}
	for name, c := range map[string]struct {
		config windows.Config
		change func(*windows.Config)
		want   string // field, have, want of each Mismatch
	}{
		"bridge":       {bridgeConfig(), func(*windows.Config) {}, ""},
		"overlay":      {overlayConfig(), func(*windows.Config) {}, ""},
		"bridge range": {bridgeConfig(), func(c *windows.Config) { c.PodCIDRs = another }, "subnets 10.0.1.0/24 10.0.2.0/24;addresses 10.0.1.2 10.0.2.2"},
		"bridge type":  {bridgeConfig(), func(c *windows.Config) { *c = overlayConfig() }, "type L2Bridge Overlay"},
		"overlay type": {overlayConfig(), func(c *windows.Config) { *c = bridgeConfig() }, "type Overlay L2Bridge"},
		"vni":          {overlayConfig(), func(c *windows.Config) { c.VNI = 4097 }, "vni 4096 4097"},
		"all": {overlayConfig(), func(c *windows.Config) { *c = bridgeConfig(); c.PodCIDRs = another },
			"type Overlay L2Bridge;subnets 10.0.1.0/24 10.0.2.0/24"},
	} {
		t.Run(name, func(t *testing.T) {
			fake := hnstest.NewFake(hns.Server2022)
			flannelNetwork(t, fake, c.config)
			c.change(&c.config)
			c.config.Network = "cbr0"
			before := fake.Dump()
			_, differ := inspect(t, fake, c.config.Defaults())
			var got []string
			for _, m := range differ {
				got = append(got, fmt.Sprintf("%s %s %s", m.Field, m.Have, m.Want))
			}
			if strings.Join(got, ";") != c.want || fake.Dump() != before {
				t.Errorf("differences %v, want %s\n%s", got, c.want, fake.Dump())
			}
			_, err := windows.New(ctx, c.config, fake, discard)
			switch {
			case len(differ) == 0 && err != nil:
				t.Errorf("the plan finds no difference, the agent says %v", err)
			case len(differ) > 0 && (err == nil || !strings.Contains(err.Error(), differ[0].String()) || fake.Dump() != before):
				t.Errorf("the plan finds %v, the agent says %v\n%s", differ, err, fake.Dump())
			}
		})
	}
}

// HNS keeps the gateway of a subnet for itself, and pods of an overlay network send to it. Isthmus has the first address
// there, as flannel does. A network with another one is refused: a pod could get its address, or send to an address that does not answer.
func TestGatewayOfNetwork(t *testing.T) {
	for _, c := range []windows.Config{bridgeConfig(), overlayConfig()} {
		c.Network = "cbr0"
		fake := hnstest.NewFake(hns.Server2022)
		subnet := hns.Subnet{IPAddressPrefix: "10.0.1.0/24", Routes: []hns.Route{{NextHop: "10.0.1.254", DestinationPrefix: "0.0.0.0/0"}}}
		want := hns.Network{Name: "cbr0", Type: hns.L2Bridge, SchemaVersion: hns.Schema2}
		if c.Mode == windows.Overlay {
			want.Type = hns.Overlay
			subnet.Policies = []hns.Policy{hns.MakePolicy(hns.TypeVSID, hns.IsolationID{IsolationID: 4096})}
		}
		want.Ipams = []hns.Ipam{{Type: "Static", Subnets: []hns.Subnet{subnet}}}
		if _, err := fake.CreateNetwork(ctx, want); err != nil {
			t.Fatal(err)
		}
		if _, err := windows.New(ctx, c, fake, discard); err == nil || !strings.Contains(err.Error(), `hns network "cbr0" has gateway 10.0.1.254, want 10.0.1.1: `) {
			t.Errorf("%s: %v\n%s", c.Mode, err, fake.Dump())
		}
	}
}

// Endpoints that an agent did not make have no policy. The host's, remote ones and those of the agent are no pods of others.
func TestForeignEndpoints(t *testing.T) {
	c := bridgeConfig()
	c.Network = "cbr0"
	fake := hnstest.NewFake(hns.Server2022)
	network, _ := flannelNetwork(t, fake, c)
	remote := hns.Endpoint{Name: "remote", HostComputeNetwork: network, Flags: hns.RemoteEndpoint, SchemaVersion: hns.Schema2,
		IPConfigurations: []hns.IPConfig{{IPAddress: "10.0.1.77", PrefixLength: 24}}}
	if _, err := fake.CreateEndpoint(ctx, remote); err != nil {
		t.Fatal(err)
	}
	n := &node{t: t, fake: fake, config: c}
	n.start()
	n.add(n.spec("c1", "10.0.1.20"))
	f, differ := inspect(t, fake, c)
	if foreign := c.Foreign(f.Endpoints); len(f.Endpoints) != 4 || len(foreign) != 1 || foreign[0].Name != "4f1c_cbr0" || len(differ) > 0 {
		t.Errorf("foreign %+v, differences %v\n%s", foreign, differ, fake.Dump())
	}
}

// TestNameOfNetwork: HNS may not tell cases of a name apart. An agent that took the network of another one's name would not know the
// endpoints on it, and pods would keep an old policy.
func TestNameOfNetwork(t *testing.T) {
	n := newNode(t, hns.Server2022, bridgeConfig())
	spec := n.spec("c1", "10.0.1.7")
	n.add(spec)
	n.apply(peerState(spec, "10.0.3.3"))
	before, c := n.fake.Dump(), n.config
	c.Network = "Isthmus"
	if _, err := windows.New(ctx, c, n.fake, discard); err == nil || !strings.Contains(err.Error(), `hns network "isthmus" has name isthmus, want Isthmus: `) {
		t.Errorf("%v", err)
	}
	if got := n.fake.Dump(); got != before {
		t.Errorf("it left\n%s\nwant\n%s", got, before)
	}
	n.start()
	n.add(spec)
}

// SPDX-License-Identifier: Apache-2.0

package takeover_test

import (
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/windows"
	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hns/hnstest"
	"github.com/isthmus-net/isthmus/windows/takeover"
)

var discard = slog.New(slog.DiscardHandler)

// add makes a network of the range 10.0.1.0/24, and endpoints on it by name and address.
func add(t *testing.T, fake *hnstest.Fake, name string, kind hns.NetworkType, endpoints ...string) {
	t.Helper()
	subnet := hns.Subnet{IPAddressPrefix: "10.0.1.0/24", Routes: []hns.Route{{NextHop: "10.0.1.1", DestinationPrefix: "0.0.0.0/0"}}}
	if kind == hns.Overlay {
		subnet.Policies = []hns.Policy{hns.MakePolicy(hns.TypeVSID, hns.IsolationID{IsolationID: 4100})}
	}
	n, err := fake.CreateNetwork(t.Context(), hns.Network{Name: name, Type: kind, SchemaVersion: hns.Schema2, Ipams: []hns.Ipam{{Type: "Static", Subnets: []hns.Subnet{subnet}}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range endpoints {
		name, ip, _ := strings.Cut(e, " ")
		if _, err := fake.CreateEndpoint(t.Context(), hns.Endpoint{Name: name, HostComputeNetwork: n.ID, SchemaVersion: hns.Schema2,
			IPConfigurations: []hns.IPConfig{{IPAddress: ip, PrefixLength: 24}}}); err != nil {
			t.Fatal(err)
		}
	}
}

func plan(t *testing.T, fake *hnstest.Fake, o takeover.Options) *takeover.Plan {
	t.Helper()
	p, err := takeover.Make(t.Context(), fake, o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// The network is the one with a type of the program, or that of a name. Several are no guess.
func TestWhichNetwork(t *testing.T) {
	fake := hnstest.NewFake(hns.Server2022)
	add(t, fake, "nat", hnstest.NAT)
	add(t, fake, "flannel.4100", hns.Overlay)
	if p := plan(t, fake, takeover.Options{From: takeover.FromFlannel}); p.Found.Network.Name != "flannel.4100" || p.Config.VNI != 4100 || p.Config.Mode != windows.Overlay || len(p.Reasons()) > 0 {
		t.Errorf("%+v, %v", p.Config, p.Reasons())
	}
	add(t, fake, "cbr0", hns.L2Bridge)
	if p, err := takeover.Make(t.Context(), fake, takeover.Options{From: takeover.FromFlannel}); err == nil || !strings.Contains(err.Error(), `"flannel.4100" (Overlay 10.0.1.0/24), "cbr0" (L2Bridge 10.0.1.0/24)`) {
		t.Errorf("%+v, %v", p, err)
	}
	if p := plan(t, fake, takeover.Options{From: takeover.FromBridge}); p.Found.Network.Name != "cbr0" || p.Config.Mode != windows.L2Bridge {
		t.Errorf("%+v", p.Config)
	}
	// HNS compares names without case; the endpoints have the spelling of HNS.
	if p := plan(t, fake, takeover.Options{From: takeover.FromFlannel, Network: "CBR0"}); p.Config.Network != "cbr0" || len(p.Reasons()) > 0 {
		t.Errorf("%+v, %v", p.Config, p.Reasons())
	}
	p := plan(t, fake, takeover.Options{From: takeover.FromBridge, Network: "flannel.4100"})
	if len(p.Network) != 1 || p.Network[0].Field != "type" {
		t.Errorf("win-bridge on an overlay network: %v", p.Reasons())
	}
	fake.SetVersion(hns.Version{Major: 9, Minor: 1})
	if p := plan(t, fake, takeover.Options{From: takeover.FromBridge}); !strings.Contains(strings.Join(p.Reasons(), "\n"), "hns has version 9.1, want 9.2 or later: it is too old") || len(p.Steps()) > 0 {
		t.Errorf("%v, %v", p.Reasons(), p.Steps())
	}
}

// Each difference has its step; settings with which no agent starts have none.
func TestSteps(t *testing.T) {
	for name, c := range map[string]struct {
		o                takeover.Options
		kind             hns.NetworkType
		endpoints        []string
		reason, has, not string
	}{
		"as it is":    {takeover.Options{}, hns.L2Bridge, []string{"cbr0_ep 10.0.1.2"}, "", "compare the ranges", "Remove-Hns"},
		"pods":        {takeover.Options{}, hns.L2Bridge, []string{"x_cbr0 10.0.1.9"}, "", "plan again; ", "Remove-HnsNetwork"},
		"ranges said": {takeover.Options{PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24")}}, hns.L2Bridge, nil, "", "drain", "compare the ranges"},
		"ranges":      {takeover.Options{PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.9.1.0/24")}}, hns.L2Bridge, nil, "has subnets 10.0.1.0/24, want 10.9.1.0/24", "Remove-HnsNetwork", "plan again"},
		"type":        {takeover.Options{Mode: windows.Overlay}, hns.L2Bridge, nil, "has type L2Bridge, want Overlay", "Remove-HnsNetwork", "Remove-HnsEndpoint"},
		"host":        {takeover.Options{}, hns.L2Bridge, []string{"cbr0_ep 10.0.1.200"}, "has addresses 10.0.1.200, want 10.0.1.2", "Where-Object Name -EQ 'cbr0_ep' | Remove-HnsEndpoint", "Remove-HnsNetwork"},
		"vni":         {takeover.Options{VNI: 4096}, hns.Overlay, nil, "has vni 4100, want 4096", "--vni=4096", "plan again"},
		"no vni":      {takeover.Options{VNI: 70000}, hns.Overlay, nil, "vni 70000: Windows supports 4096 to 65535", "", "drain"},
		"source vip":  {takeover.Options{}, hns.Overlay, []string{"SourceVIP 10.0.1.2"}, "", "set winkernel.sourceVip of kube-proxy to 10.0.1.254, which no pod gets (now 10.0.1.2)", "plan again"},
		"its own vip": {takeover.Options{}, hns.Overlay, []string{"SourceVIP 10.0.1.254"}, "", "uncordon", "sourceVip"},
		"win-bridge":  {takeover.Options{From: takeover.FromBridge}, hns.L2Bridge, nil, "", "CNI configuration of win-bridge", "flannel"},
		"IPv6": {takeover.Options{PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24"), netip.MustParsePrefix("fd00::/64")}}, hns.Overlay, nil,
			"", "--hns-mode=overlay --vni=4100", "fd00"},
	} {
		t.Run(name, func(t *testing.T) {
			fake := hnstest.NewFake(hns.Server2022)
			add(t, fake, "cbr0", c.kind, c.endpoints...)
			if c.o.From == "" {
				c.o.From = takeover.FromFlannel
			}
			c.o.Node = "win1"
			p := plan(t, fake, c.o)
			reasons, steps := strings.Join(p.Reasons(), "\n"), strings.Join(p.Steps(), "\n")
			if !strings.Contains(reasons, c.reason) || (reasons == "") != (c.reason == "") || !strings.Contains(steps, c.has) || strings.Contains(steps, c.not) {
				t.Errorf("reasons:\n%s\nsteps:\n%s", reasons, steps)
			}
		})
	}
}

// The plan is true: an agent with its settings takes the network over, and makes no other.
func TestAgentFollowsPlan(t *testing.T) {
	for _, kind := range []hns.NetworkType{hns.L2Bridge, hns.Overlay} {
		fake := hnstest.NewFake(hns.Server2022)
		add(t, fake, "cbr0", kind)
		c := plan(t, fake, takeover.Options{From: takeover.FromFlannel}).Config
		c.NodeAddresses = []netip.Addr{netip.MustParseAddr("192.0.2.13")}
		b, err := windows.New(t.Context(), c, fake, discard)
		if err != nil {
			t.Fatal(err)
		}
		networks, err := fake.Networks(t.Context())
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if err != nil || len(networks) != 1 || networks[0].Name != "cbr0" {
			t.Errorf("%s: %+v, %v", kind, networks, err)
		}
	}
}

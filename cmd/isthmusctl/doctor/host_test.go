// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/windows/hostfabric"
	"github.com/isthmus-net/isthmus/windows/hostroute"
)

func TestClouds(t *testing.T) {
	for _, c := range []struct{ vendor, product, want string }{
		{"Amazon EC2", "m5.large", "no-source-dest-check"}, {"Google", "Google Compute Engine", "can-ip-forward"},
		{"Microsoft Corporation", "Virtual Machine", "ip-forwarding"}, {"Microsoft Corporation", "Surface Pro", ""}, {"QEMU", "Standard PC", ""}, {"", "", ""},
	} {
		all := cloudFindings(c.vendor, c.product)
		if c.want == "" && len(all) > 0 || c.want != "" && (len(all) != 1 || all[0].Severity != Warning || !strings.Contains(all[0].Do, c.want)) {
			t.Errorf("%s %s: %+v, want %q", c.vendor, c.product, all, c.want)
		}
	}
}

// TestHost: the interfaces that pod traffic crosses must forward, in each IP version of pods; others need not.
func TestHost(t *testing.T) {
	routes := []hostroute.Route{
		{Destination: netip.MustParsePrefix("0.0.0.0/0"), NextHop: netip.MustParseAddr("192.168.0.254"), Interface: 9, Protocol: hostroute.NetMgmt},
		{Destination: netip.MustParsePrefix("10.0.2.0/24"), NextHop: netip.MustParseAddr("192.168.0.2"), Interface: 9, Metric: hostfabric.Metric, Protocol: hostroute.NetMgmt},
	}
	on := [2]bool{true, false}
	interfaces := []hostroute.Interface{{Index: 9, Name: "vEthernet (Ethernet)", MTU: 1500, Forwarding: on}, {Index: 12, Name: "vEthernet (isthmus_ep)", MTU: 1500, Forwarding: on}, {Index: 15, Name: "Storage", MTU: 1400}}
	if all := hostFindings(routes, interfaces, "isthmus_ep"); len(all) != 2 || Worst(all) != Good {
		t.Errorf("%+v", all)
	}
	for i, want := range map[int]string{0: "vEthernet (Ethernet)", 1: "vEthernet (isthmus_ep)"} {
		interfaces[i].Forwarding[hostroute.IPv4] = false
		all := hostFindings(routes, interfaces, "isthmus_ep")
		if Worst(all) != Bad || !strings.Contains(all[i].What, want) || all[i].Severity != Bad || all[i].Do == "" {
			t.Errorf("forwarding of %s is off: %+v", want, all)
		}
		interfaces[i].Forwarding[hostroute.IPv4] = true
	}
	interfaces[1].Addresses = []netip.Prefix{netip.MustParsePrefix("10.0.1.2/24"), netip.MustParsePrefix("fe80::2/64")}
	if all := hostFindings(routes, interfaces, "isthmus_ep"); len(all) != 2 || Worst(all) != Good {
		t.Errorf("without IPv6 pods: %+v", all)
	}
	dual := append(routes, hostroute.Route{Destination: netip.MustParsePrefix("fd00:2::/64"), NextHop: netip.MustParseAddr("fd00:ffff::2"), Interface: 9, Metric: hostfabric.Metric, Protocol: hostroute.NetMgmt})
	interfaces[1].Addresses = append(interfaces[1].Addresses, netip.MustParsePrefix("fd00:1::2/64"))
	for _, want := range []string{`IPv6 off for interface "vEthernet (Ethernet)"`, `IPv6 off for interface "vEthernet (isthmus_ep)"`} {
		all := hostFindings(dual, interfaces, "isthmus_ep")
		if len(all) != 4 || !slices.ContainsFunc(all, func(f Finding) bool { return f.Severity == Bad && f.What == want }) {
			t.Errorf("want %s: %+v", want, all)
		}
	}
	interfaces[1].Addresses = nil
	interfaces[0].MTU = 1460
	if all := hostFindings(routes, interfaces, "isthmus_ep"); len(all) != 3 || Worst(all) != Warning {
		t.Errorf("%+v", all)
	}
	if all := hostFindings(nil, interfaces[2:], "isthmus_ep"); len(all) > 0 {
		t.Errorf("without a network: %+v", all)
	}
}

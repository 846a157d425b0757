// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"net/netip"
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

// TestHost: the interfaces that pod traffic crosses must forward, others need not.
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
	interfaces[0].MTU = 1460
	if all := hostFindings(routes, interfaces, "isthmus_ep"); len(all) != 3 || Worst(all) != Warning {
		t.Errorf("%+v", all)
	}
	if all := hostFindings(nil, interfaces[2:], "isthmus_ep"); len(all) > 0 {
		t.Errorf("without a network: %+v", all)
	}
}

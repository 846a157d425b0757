// SPDX-License-Identifier: Apache-2.0

package beside_test

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/cluster"
	"github.com/isthmus-net/isthmus/test/wine"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// windowsPlugins are the plugins of Windows nodes.
var windowsPlugins = []string{"win-bridge.exe", "win-overlay.exe", "sdnbridge.exe", "host-local.exe"}

// overlayVNI is the VXLAN of Windows nodes, which accept none below.
const overlayVNI = 4096

// buildWindows builds what nodes under Wine need, unless it is there.
func buildWindows(t *testing.T, bin string) {
	t.Helper()
	if missing := wine.Missing(); missing != "" {
		t.Fatal(missing)
	}
	if exists(filepath.Join(bin, windowsPlugins[0])) {
		return
	}
	if err := wine.Build(ctx, "../..", bin); err != nil {
		t.Fatal(err)
	}
	if err := wine.BuildPlugins(ctx, "../..", bin); err != nil {
		t.Fatal(err)
	}
}

// networkName is the name of the HNS network, and of the list that the plugins find it by.
const networkName = "cbr0"

// besidePTP is a configuration of Windows nodes, with the plugin ptp on the other node.
func besidePTP(conf func(*cluster.Node) string) func(*cluster.Node) string {
	return func(n *cluster.Node) string {
		if n.OS != model.Windows {
			return ptpConf(n)
		}
		return conf(n)
	}
}

// masquerade is NAT for what leaves the cluster, the others are ACLs like those of Azure's plugin.
const (
	masquerade = `{"Type": "OutBoundNAT", "Settings": {"Exceptions": ["10.244.0.0/16"]}}`
	wireserver = `{"Type": "ACL", "Settings": {"Protocols": "6", "Action": "Block", "Direction": "Out", "RemoteAddresses": "168.63.129.16/32", ` +
		`"RemotePorts": "80", "Priority": 200, "RuleType": "Switch"}}`
	acceptIn  = `{"Type": "ACL", "Settings": {"Action": "Allow", "Direction": "In", "Priority": 65500}}`
	acceptOut = `{"Type": "ACL", "Settings": {"Action": "Allow", "Direction": "Out", "Priority": 65500}}`
)

// endpointPolicies are members of a configuration, by the spelling of their plugin.
func endpointPolicies(name, value string, policies ...string) string {
	var all []string
	for _, p := range policies {
		all = append(all, fmt.Sprintf(`{%q: "EndpointPolicy", %q: %s}`, name, value, p))
	}
	return "[" + strings.Join(all, ",\n      ") + "]"
}

// winBridgeConf is a list of the reference plugin for bridged networks.
func winBridgeConf(n *cluster.Node) string {
	return fmt.Sprintf(`{
  "cniVersion": "1.0.0", "name": %q, "unknown": {"z": 1, "a": 2.50},
  "plugins": [
    {"type": "win-bridge", "apiVersion": 2, "capabilities": {"portMappings": true}, "ipMasq": true, "ipMasqNetwork": "10.244.0.0/16",
     "dns": {"nameservers": ["10.96.0.10"], "search": ["svc.cluster.local"]},
     "policies": %s, "ipam": %s}
  ]
}
`, networkName, endpointPolicies("name", "value", wireserver, acceptIn, acceptOut), windowsIPAM(n))
}

// winOverlayConf is a list of the reference plugin for overlay networks, beside flannel on Linux nodes.
func winOverlayConf(n *cluster.Node) string {
	if n.OS != model.Windows {
		return flannelConf(n)
	}
	return fmt.Sprintf(`{"plugins":[{"type":"win-overlay","apiVersion":2,"policies":%s,"ipam":%s}],`+
		`"name":%q,"cniVersion":"1.1.0"}`, endpointPolicies("name", "value", masquerade), windowsIPAM(n), networkName)
}

// sdnbridgeConf is a list of Microsoft's plugin, with ACLs as the plugin of AKS has them. It passes only the range to the
// plugin that assigns addresses.
func sdnbridgeConf(n *cluster.Node) string {
	return fmt.Sprintf(`{"cniVersion":"0.4.0","name":%q,"disableCheck":true,"plugins":[{"type":"sdnbridge","master":"Ethernet",
  "optionalFlags":{"forceBridgeGateway":true},"ipam":{"type":"host-local","subnet":%q},"dns":{"Nameservers":["10.96.0.10"]},
  "AdditionalArgs":%s}]}`, networkName, netip.PrefixFrom(nth(n.PodCIDRs[0], 32), 27), endpointPolicies("Name", "Value", masquerade, wireserver, acceptIn, acceptOut))
}

// windowsIPAM assigns addresses of the node's range, without those of the gateway and the host.
func windowsIPAM(n *cluster.Node) string {
	return fmt.Sprintf(`{"type": "host-local", "subnet": %q, "rangeStart": %q, "dataDir": %q}`,
		n.PodCIDRs[0], nth(n.PodCIDRs[0], 3), wine.Path(filepath.Join(n.Dir, "ipam")))
}

// nth is an address of a range of 256.
func nth(p netip.Prefix, i byte) netip.Addr {
	b := p.Addr().As4()
	b[3] += i
	return netip.AddrFrom4(b)
}

// azureWindowsConf is the list of azure-vnet for Windows nodes of AKS with overlay addresses
// (azure-windows-swift-overlay.conflist), with the range of pods of the test.
func azureWindowsConf(*cluster.Node) string {
	return fmt.Sprintf(`{
    "cniVersion": "0.3.0",
    "name": %q,
    "adapterName" : "",
    "plugins": [
        {
            "type": "azure-vnet",
            "capabilities": {
                "portMappings": true,
                "dns": true
            },
            "ipam": {
                "type": "azure-cns",
                "mode": "overlay"
            },
            "dns": {
                "Nameservers": [
                    "10.0.0.10",
                    "168.63.129.16"
                ],
                "Search": [
                    "svc.cluster.local"
                ]
            },
            "AdditionalArgs": [
                {
                    "Name": "EndpointPolicy",
                    "Value": {
                        "Type": "OutBoundNAT",
                        "ExceptionList": [
                            "10.244.0.0/16",
                            "10.0.0.0/8"
                        ]
                    }
                },
                {
                    "Name": "EndpointPolicy",
                    "Value": {
                        "Type": "ROUTE",
                        "DestinationPrefix": "10.0.0.0/8",
                        "NeedEncap": true
                    }
                }
            ]
        }
    ]
}
`, networkName)
}

// startAzureWindows makes the network, which azure-vnet would make without a next hop of pods, and takes the place of CNS.
func startAzureWindows(t *testing.T, c *cluster.Cluster, _ string) {
	t.Helper()
	bridged(t, c.Nodes[1], 254)
	serveCNS(t, c, c.Nodes[1])
}

// startL2Bridge makes the network that plugins for bridged networks need.
func startL2Bridge(t *testing.T, c *cluster.Cluster, _ string) {
	t.Helper()
	bridged(t, c.Nodes[1], 2)
}

// bridged makes a bridged network, and attaches the host to it as the next hop of pods, with the address of a number.
func bridged(t *testing.T, n *cluster.Node, host byte) {
	t.Helper()
	makeNetwork(t, n, hns.L2Bridge, nil, nil, &hns.Endpoint{Name: networkName + "_ep", SchemaVersion: hns.Schema2,
		IPConfigurations: []hns.IPConfig{{IPAddress: nth(n.PodCIDRs[0], host).String(), PrefixLength: 24}}})
}

// startOverlay starts flannel on the Linux node, and makes the network that flanneld.exe would make on the other.
func startOverlay(t *testing.T, c *cluster.Cluster, bin string) {
	t.Helper()
	startFlannel(t, c, bin, fmt.Sprintf(`{"Type": "vxlan", "VNI": %d, "Port": 4789}`, overlayVNI))
	peer := c.Nodes[0]
	var mac string
	err := peer.NS.Do(func() error {
		device, err := netlink.LinkByName(fmt.Sprintf("flannel.%d", overlayVNI))
		if err == nil {
			mac = device.Attrs().HardwareAddr.String()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	makeNetwork(t, c.Nodes[1], hns.Overlay, []hns.Policy{hns.MakePolicy(hns.TypeVSID, hns.IsolationID{IsolationID: overlayVNI})},
		[]hns.Policy{hns.MakePolicy(hns.TypeHostRoute, struct{}{})}, nil, hns.MakePolicy(hns.TypeRemoteSubnetRoute, hns.RemoteSubnetRoute{
			DestinationPrefix: peer.PodCIDRs[0].String(), IsolationID: overlayVNI, ProviderAddress: peer.Addresses()[0].String(),
			DrMacAddress: strings.ToUpper(strings.ReplaceAll(mac, ":", "-"))}))
}

// makeNetwork makes an HNS network with the range of a node's pods, and then adds policies to it.
func makeNetwork(t *testing.T, n *cluster.Node, kind hns.NetworkType, subnet, policies []hns.Policy, host *hns.Endpoint, added ...hns.Policy) {
	t.Helper()
	network := hns.Network{Name: networkName, Type: kind, Flags: hns.NonPersistent, SchemaVersion: hns.Schema2,
		Policies: slices.Concat([]hns.Policy{hns.MakePolicy(hns.TypeNetAdapterName, hns.NetAdapterName{NetworkAdapterName: "Ethernet"})}, policies),
		Ipams: []hns.Ipam{{Type: "Static", Subnets: []hns.Subnet{{IPAddressPrefix: n.PodCIDRs[0].String(), Policies: subnet,
			Routes: []hns.Route{{NextHop: nth(n.PodCIDRs[0], 1).String(), DestinationPrefix: "0.0.0.0/0"}}}}}}}
	if err := n.MakeNetwork(ctx, network, host, added...); err != nil {
		t.Fatal(err)
	}
}

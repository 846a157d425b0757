// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/common/fabric"
	"github.com/isthmus-net/isthmus/test/cluster"
	"github.com/isthmus-net/isthmus/test/netns"
)

// hybridManifests are a node of OVN-Kubernetes, and one that claims the range of the Services.
const hybridManifests = `
apiVersion: v1
kind: Node
metadata:
  name: ovn
  annotations: {k8s.ovn.org/node-subnets: '{"default":["10.128.2.0/23"]}', "k8s.ovn.org/hybrid-overlay-distributed-router-gateway-mac": "0a:58:0a:80:02:03"}
status: {addresses: [{type: InternalIP, address: 172.30.0.77}]}
---
apiVersion: v1
kind: Node
metadata:
  name: forger
  annotations: {k8s.ovn.org/hybrid-overlay-node-subnet: 10.96.0.0/12, "k8s.ovn.org/hybrid-overlay-distributed-router-gateway-mac": "0a:58:0a:80:04:03"}
status: {addresses: [{type: InternalIP, address: 172.30.0.78}]}
`

// TestHybridOverlay starts an agent with the flag. Its pods and one of a node of OVN-Kubernetes, on the same segment, see
// each other's addresses. A node that claims another range gets nothing, and is reported; so is what other nodes need.
func TestHybridOverlay(t *testing.T) {
	c, pods := startCluster(t, fabricManifests, cluster.Config{Linux: 1, AgentFlags: []string{"--vni=4097", "--hybrid-overlay=10.128.0.0/14"}})
	n, client := c.Nodes[0], pods["client"]
	ovn, pod := netns.ForTest(t), netip.MustParseAddr("10.128.2.5")
	outside, _ := c.Outside()
	mac := fabric.VTEP(n.Name)
	err := errors.Join(netns.Connect(netns.End{NS: outside, Name: "ovn", Bridge: "segment0"}, netns.End{NS: ovn, Name: "eth0"}), ovn.Do(func() error {
		device := &netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: "ext-vxlan", HardwareAddr: net.HardwareAddr{0x0a, 0x58, 0x0a, 0x80, 2, 3}, MTU: 1450}, VxlanId: 4097, Port: 4789, SrcAddr: []byte{172, 30, 0, 77}}
		if err := errors.Join(netns.AddAddresses("eth0", netip.MustParsePrefix("172.30.0.77/24")), netlink.LinkAdd(device), netns.Up("ext-vxlan"), netns.Up("lo"), netns.AddAddresses("lo", netip.PrefixFrom(pod, 32))); err != nil {
			return err
		}
		via, index, cidr := n.PodCIDRs[0].Addr().AsSlice(), device.Attrs().Index, n.PodCIDRs[0]
		return errors.Join(
			netlink.NeighAppend(&netlink.Neigh{LinkIndex: index, Family: unix.AF_BRIDGE, Flags: netlink.NTF_SELF, State: netlink.NUD_PERMANENT, IP: n.Addresses()[0].AsSlice(), HardwareAddr: mac[:]}),
			netlink.NeighSet(&netlink.Neigh{LinkIndex: index, Family: netlink.FAMILY_V4, State: netlink.NUD_PERMANENT, IP: via, HardwareAddr: mac[:]}),
			netlink.RouteAdd(&netlink.Route{LinkIndex: index, Dst: &net.IPNet{IP: via, Mask: net.CIDRMask(cidr.Bits(), 32)}, Gw: via, Src: pod.AsSlice(), Flags: int(netlink.FLAG_ONLINK)}))
	}), c.Manifests.Put("ovn", hybridManifests), c.Settle(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	whoami(t, ovn, pod)
	whoami(t, client.NS, address(client, false))
	sees(t, client.NS, pod, address(client, false), false)
	sees(t, ovn, address(client, false), pod, false)
	s, err := n.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	problems := strings.Join(s.GetProblems(), "\n")
	for _, want := range []string{"pods of node forger cannot be reached: its annotation k8s.ovn.org/hybrid-overlay-node-subnet has 10.96.0.0/12",
		"until its Node object has isthmus.dev/vtep-mac=" + mac.String() + " k8s.ovn.org/hybrid-overlay-node-subnet=" + n.PodCIDRs[0].String() + " k8s.ovn.org/hybrid-overlay-distributed-router-gateway-mac=" + mac.String()} {
		if !strings.Contains(problems, want) {
			t.Errorf("no %q in\n%s", want, problems)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/common/fabric"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy/compile"
	"github.com/isthmus-net/isthmus/linux"
	"github.com/isthmus-net/isthmus/test/netns"
	"github.com/isthmus-net/isthmus/test/traffic"
)

// The node ovn of OVN-Kubernetes, which the outside of a lab plays, and its pod.
const (
	ovnMAC = "0a:58:0a:80:02:03"
	ovnPod = "10.128.2.5"
)

// hybridRanges contain the ranges of Isthmus, so that they do not protect these.
var hybridRanges = []netip.Prefix{netip.MustParsePrefix("10.128.0.0/14"), netip.MustParsePrefix("10.1.0.0/16")}

// hybridNodes are the nodes beside that of a lab: ovn and ovn2 of OVN-Kubernetes, far of Isthmus, and a thief with the
// range of far.
func hybridNodes() []*model.Node {
	node := func(name, address string, info model.NodeInfo, ranges ...string) *model.Node {
		return &model.Node{Name: name, OS: model.Linux, Addresses: []netip.Addr{netip.MustParseAddr(address)}, PodCIDRs: prefixes(ranges), NodeInfo: info}
	}
	return []*model.Node{
		node("ovn", outsideAddr4, model.NodeInfo{Overlay: model.Overlay{Subnets: `{"default":["10.128.2.0/23"]}`, MAC: ovnMAC}}),
		node("ovn2", "192.168.9.4", model.NodeInfo{Overlay: model.Overlay{Subnet: "10.128.4.0/23", MAC: "0a:58:0a:80:04:03"}}),
		node("far", "192.168.9.3", model.NodeInfo{Fabric: "vxlan"}, "10.1.1.0/24"),
		node("thief", "192.168.9.5", model.NodeInfo{Overlay: model.Overlay{Subnet: "10.1.1.0/24", MAC: "0a:58:0a:80:06:03"}}),
	}
}

// newHybridLab returns a lab in the hybrid overlay, with the pods a and c.
func newHybridLab(t *testing.T, change func(*linux.Config)) *lab {
	l := newLabWith(t, func(c *linux.Config) { change(c); c.Fabric.Mode, c.Fabric.VNI = fabric.Auto, fabric.HybridVNI })
	l.must(l.node.Do(func() error {
		return errors.Join(sysctl("ipv4/conf/all/rp_filter", "0"), sysctl("ipv4/conf/default/rp_filter", "0"), sysctl("ipv4/conf/eth0/rp_filter", "0"),
			sysctl("ipv4/conf/eth0/accept_local", "1"))
	}))
	l.pod("a", 11)
	l.pod("c", 13)
	return l
}

// applyHybrid enforces policies in the cluster of the node and hybridNodes, which has the pod remote on the node ovn.
func (l *lab) applyHybrid(policies ...*model.Policy) {
	l.t.Helper()
	pods := []*model.Pod{{PodID: model.PodID{Namespace: "default", Name: "remote"}, Node: "ovn", IPs: []netip.Addr{netip.MustParseAddr(ovnPod)},
		Labels: model.MakeLabels(map[string]string{"name": "remote"})}}
	for _, e := range l.local {
		pods = append(pods, &model.Pod{PodID: e.Pod, Node: "node", IPs: e.IPs, Labels: model.MakeLabels(map[string]string{"name": e.Pod.Name})})
	}
	own := &model.Node{Name: "node", OS: model.Linux, Addresses: []netip.Addr{netip.MustParseAddr(nodeAddr4)}, PodCIDRs: prefixes([]string{"10.1.0.0/24"})}
	hybrid := fabric.NewHybrid("node", hybridRanges)
	l.cluster = hybrid.Snapshot(model.MakeSnapshot(nil, append(hybridNodes(), own), pods, policies))
	l.must(l.node.Do(func() (err error) {
		l.state, _ = compile.Once(compile.Input{Snapshot: l.cluster, Node: "node", Endpoints: l.local, Previous: l.state})
		_, err = l.backend.Apply(context.Background(), l.state)
		return err
	}))
	l.idleUntilQuiet()
}

// ovnOverlay gives the outside the tunnel device of the node ovn, whose pod is an address of lo. It sends to the MAC
// that the node of the lab publishes.
func (l *lab) ovnOverlay(publishes model.NodeInfo) {
	l.t.Helper()
	mac, err := net.ParseMAC(publishes.Overlay.MAC)
	l.must(err)
	own, err := net.ParseMAC(ovnMAC)
	l.must(err)
	cidr := netip.MustParsePrefix(publishes.Overlay.Subnet)
	l.must(l.outside.Do(func() error {
		device := &netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: "ext-vxlan", HardwareAddr: own, MTU: 1450}, VxlanId: 4097, Port: 4789, SrcAddr: net.ParseIP(outsideAddr4).To4()}
		if err := errors.Join(netlink.LinkAdd(device), netns.Up("ext-vxlan"), netns.Up("lo"), addresses("lo", ovnPod+"/32", "10.128.2.99/32")); err != nil {
			return err
		}
		via, index := cidr.Addr().AsSlice(), device.Attrs().Index
		return errors.Join(
			netlink.NeighAppend(&netlink.Neigh{LinkIndex: index, Family: unix.AF_BRIDGE, Flags: netlink.NTF_SELF, State: netlink.NUD_PERMANENT, IP: net.ParseIP(nodeAddr4), HardwareAddr: mac}),
			netlink.NeighSet(&netlink.Neigh{LinkIndex: index, Family: netlink.FAMILY_V4, State: netlink.NUD_PERMANENT, IP: via, HardwareAddr: mac}),
			netlink.RouteAdd(&netlink.Route{LinkIndex: index, Dst: &net.IPNet{IP: via, Mask: net.CIDRMask(cidr.Bits(), 32)}, Gw: via, Src: net.ParseIP(ovnPod), Flags: int(netlink.FLAG_ONLINK)}))
	}))
}

// TestHybridOverlay exchanges packets with a node of OVN-Kubernetes, which has the VXLAN device of the kernel: VNI 4097 and
// the MAC of its annotation. Pods see each other's addresses, policy decides on them, and pods reach the host of that
// node masqueraded, because it answers beside the tunnel.
func TestHybridOverlay(t *testing.T) {
	t.Parallel()
	l := newHybridLab(t, func(*linux.Config) {})
	l.applyHybrid(isolate("a", model.Ingress, accept(pods("remote"), tcp(80), udp(80))), isolate("c", model.Ingress, accept(pods("a"))))
	publishes, why := fabric.NewHybrid("node", hybridRanges).Publish(&model.Node{Name: "node", OS: model.Linux}, prefixes([]string{"10.1.0.0/24"}), l.backend.NodeInfo())
	if why != "" {
		t.Fatal(why)
	}
	l.ovnOverlay(publishes)
	servers := traffic.ServersFor(t)
	at := func(addr string, port uint16) netip.AddrPort {
		return netip.AddrPortFrom(netip.MustParseAddr(addr), port)
	}
	for ns, addr := range map[*netns.NS]string{l.outside: ovnPod, l.pods["a"]: "10.1.0.11", l.pods["c"]: "10.1.0.13"} {
		l.must(servers.Echo(ns, at(addr, 80), model.TCP, model.UDP))
		l.must(servers.Greet(ns, at(addr, 81), traffic.WhoAmI))
	}
	l.must(servers.Greet(l.outside, at(outsideAddr4, 81), traffic.WhoAmI))
	for _, protocol := range []model.Protocol{model.TCP, model.UDP} {
		for what, f := range map[string]struct {
			ns       *netns.NS
			from, to string
			pass     bool
		}{
			"to OVN":                       {l.pods["a"], "10.1.0.11", ovnPod, true},
			"from OVN":                     {l.outside, ovnPod, "10.1.0.11", true},
			"from another address of OVN":  {l.outside, "10.128.2.99", "10.1.0.11", false},
			"from OVN where policy denies": {l.outside, ovnPod, "10.1.0.13", false},
		} {
			wait := patience
			if !f.pass {
				wait = time.Second
			}
			err := traffic.Flow{NS: f.ns, From: netip.MustParseAddr(f.from), To: at(f.to, 80), Protocol: protocol}.Try(t.Context(), wait)
			if (err == nil) != f.pass || !f.pass && !traffic.Silent(err) {
				t.Errorf("%s %s: %v, want pass %t", what, protocol, err, f.pass)
			}
		}
	}
	for to, want := range map[string]string{ovnPod: "10.1.0.11", outsideAddr4: nodeAddr4} {
		if seen, err := (traffic.Flow{NS: l.pods["a"], To: at(to, 81), Protocol: model.TCP}).Seen(patience); err != nil || seen.String() != want {
			t.Errorf("%s sees %s, %v, want %s", to, seen, err, want)
		}
	}
	if n := l.drops("tunnel"); n != 0 {
		t.Errorf("%d packets are counted as tunnel", n)
	}
}

// hybridTry is a tunneled packet to pod c that must not arrive. checked is true if the check of tunnels drops it, and not
// the kernel, which has no device for the VNI.
type hybridTry struct {
	what, outer, inner string
	vni                uint32
	checked            bool
}

func hybridTries() (all []hybridTry) {
	for _, vni := range []uint32{0, 4096, 4098, 4097 << 8 & 0xffffff} {
		all = append(all, hybridTry{"a pod of ovn with another VNI", outsideAddr4, ovnPod, vni, false})
	}
	add := func(what, outer string, inners ...string) {
		for _, inner := range inners {
			all = append(all, hybridTry{what, outer, inner, fabric.HybridVNI, true})
		}
	}
	add("ovn", outsideAddr4, outsideAddr4, "10.128.4.5", "10.128.1.255", "10.129.0.1", "10.1.1.5", "192.168.9.3", "10.1.0.11", "10.1.0.13", nodeAddr4, "10.7.0.1", "fd01::84", outsideAddr6)
	add("ovn2", "192.168.9.4", ovnPod, "192.168.9.4", "10.1.1.5")
	add("far", "192.168.9.3", ovnPod, outsideAddr4, "10.128.4.5")
	add("thief", "192.168.9.5", ovnPod, "10.1.1.5", "192.168.9.5")
	add("an unknown host", "192.168.9.99", ovnPod, "10.1.1.5", "192.168.9.99")
	add("the node itself", nodeAddr4, ovnPod, nodeAddr4)
	return all
}

// A node of OVN-Kubernetes sends from its own range only, with its VNI only, and no other node sends from there. The pod
// is not isolated, so that only the check of tunnels protects it.
func TestAttackHybridOverlay(t *testing.T) {
	t.Parallel()
	onOwnHooks(t, func(t *testing.T, change func(*linux.Config)) {
		l := newHybridLab(t, change)
		l.applyHybrid()
		l.must(l.node.Do(func() error { return sysctl("ipv4/conf/isthmus-vxlan/rp_filter", "0") }))
		wo, wc, up := l.wire(l.outside, "eth0"), l.wire(l.pods["c"], "eth0"), l.macIn(l.node, "eth0")
		frame := func(a hybridTry, word string) []byte {
			dst := "10.1.0.13"
			if is6(a.inner) {
				dst = "fd01::d"
			}
			payload := tunneled("node", a.inner, dst, word)
			binary.BigEndian.PutUint32(payload[4:], a.vni<<8)
			return udpFrame(wo, up, a.outer, nodeAddr4, 33333, 4789, string(payload))
		}
		v, checked := &volley{l: l}, uint64(0)
		for _, a := range hybridTries() {
			v.try(wo, wc, fmt.Sprintf("%s, VNI %d, from %s as %s", a.what, a.vni, a.outer, a.inner), func(word string) []byte { return frame(a, word) })
			if a.checked {
				checked++
			}
		}
		var controls []control
		for _, good := range []hybridTry{{outer: outsideAddr4, inner: ovnPod}, {outer: "192.168.9.4", inner: "10.128.4.5"}, {outer: "192.168.9.3", inner: "10.1.1.5"}} {
			good.vni = fabric.HybridVNI
			controls = append(controls, control{wo, wc, func(w string) []byte { return frame(good, w) }})
		}
		v.held(controls...)
		if n := l.drops("tunnel"); n != checked {
			t.Errorf("%d packets are counted as tunnel, want %d", n, checked)
		}
	})
}

// SPDX-License-Identifier: Apache-2.0

package vfp_test

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/fabric"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy/compile"
	"github.com/isthmus-net/isthmus/test/hnsemu/vfp"
	"github.com/isthmus-net/isthmus/test/netns"
	"github.com/isthmus-net/isthmus/test/traffic"
	"github.com/isthmus-net/isthmus/windows"
	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hns/hnstest"
)

// machine is a node on the underlay: its namespace, and that of its single pod. On Linux both are the same.
type machine struct {
	name     string
	os       model.OS
	number   byte // the number in its addresses
	vni      uint32
	ovn      bool // a node of OVN-Kubernetes
	ns, pod  *netns.NS
	backend  *windows.Backend
	store    *hnstest.Fake
	sw       *vfp.Switch
	endpoint dataplane.EndpointSpec
}

func (m *machine) underlay() netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, m.number}) }
func (m *machine) cidr() netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, m.number, 0}), 24)
}
func (m *machine) podIP() netip.Addr { return netip.AddrFrom4([4]byte{10, 244, m.number, 7}) }

// vtep is the tunnel endpoint that the node announces.
func (m *machine) vtep() model.MAC {
	if m.ovn {
		return model.MAC{0x0a, 0x58, 10, 244, m.number, 3}
	}
	if m.os == model.Windows {
		return model.MAC{0x00, 0x15, 0x5d, 0x7a, 0x11, m.number}
	}
	return fabric.VTEP(m.name)
}

func in(t *testing.T, ns *netns.NS, f func() error) {
	t.Helper()
	if err := ns.Do(f); err != nil {
		t.Fatal(err)
	}
}

// plug connects a node to the bridge of the segment.
func (m *machine) plug(t *testing.T, segment *netns.NS) {
	t.Helper()
	m.ns = netns.ForTest(t)
	if err := netns.Connect(netns.End{NS: segment, Name: fmt.Sprint("to", m.number), Bridge: "br"}, netns.End{NS: m.ns, Name: "up"}); err != nil {
		t.Fatal(err)
	}
	in(t, m.ns, func() error {
		return errors.Join(netns.AddAddresses("up", netip.PrefixFrom(m.underlay(), 24)), netns.FillChecksums("up"))
	})
}

// tunnel gives a Linux node a VXLAN device with static entries for the pods of other nodes, and the address of
// its pod.
func (m *machine) tunnel(t *testing.T, peers []*machine) {
	t.Helper()
	m.pod = m.ns
	in(t, m.ns, func() error {
		vtep := m.vtep()
		device := &netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: "vx", HardwareAddr: vtep[:], MTU: 1450}, VxlanId: int(m.vni), Port: 4789, SrcAddr: m.underlay().AsSlice()}
		if err := errors.Join(netlink.LinkAdd(device), netns.Up("vx"), netns.AddAddresses("lo", netip.PrefixFrom(m.podIP(), 32))); err != nil {
			return err
		}
		for _, p := range peers {
			mac, index := p.vtep(), device.Attrs().Index
			via := p.cidr().Addr().AsSlice()
			fdb := &netlink.Neigh{LinkIndex: index, Family: unix.AF_BRIDGE, Flags: netlink.NTF_SELF, State: netlink.NUD_PERMANENT, IP: p.underlay().AsSlice(), HardwareAddr: mac[:]}
			next := &netlink.Neigh{LinkIndex: index, Family: netlink.FAMILY_V4, State: netlink.NUD_PERMANENT, IP: via, HardwareAddr: mac[:]}
			route := &netlink.Route{LinkIndex: index, Dst: &net.IPNet{IP: via, Mask: net.CIDRMask(24, 32)}, Gw: via, Src: m.podIP().AsSlice(), Flags: int(netlink.FLAG_ONLINK)}
			if err := errors.Join(netlink.NeighAppend(fdb), netlink.NeighSet(next), netlink.RouteAdd(route)); err != nil {
				return err
			}
		}
		return nil
	})
}

// windows starts the backend of a Windows node over HNS with a switch that
// moves packets, and attaches its pod.
func (m *machine) windows(t *testing.T, v hns.Version) {
	t.Helper()
	m.pod = netns.ForTest(t)
	m.store = hnstest.NewFake(v)
	m.store.ManagementIP = m.underlay().String()
	m.store.ManagementMAC = fmt.Sprintf("00-15-5D-7A-11-%02X", m.number)
	m.sw = vfp.New(vfp.Config{
		Open:     func(s vfp.Spec) (vfp.Device, error) { return vfp.OpenTap(netns.At(s.NetNS), "eth0", s, m.sw) },
		Underlay: func() (vfp.Underlay, error) { return vfp.OpenUnderlay(m.ns, m.sw) },
	})
	t.Cleanup(func() {
		if err := m.sw.Close(); err != nil {
			t.Error(err)
		}
	})
	c := windows.Config{Mode: windows.Overlay, VNI: m.vni, PodCIDRs: []netip.Prefix{m.cidr()}, NodeAddresses: []netip.Addr{m.underlay()}, NoOutboundNAT: true}
	var err error
	if m.backend, err = windows.New(ctx, c, m.store, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	if said := m.backend.NodeInfo(); said.VTEP != m.vtep() || said.Tunnel != m.underlay() || said.Fabric != "vxlan" {
		t.Fatalf("the node announces %+v, want the tunnel's end %s %s", said, m.vtep(), m.underlay())
	}
	m.endpoint = dataplane.EndpointSpec{ID: model.MakeEndpointID(m.name, "eth0"), ContainerID: m.name, IfName: "eth0",
		Pod: model.PodID{Namespace: "shop", Name: m.name}, NetNS: m.store.AddNamespace(), IPs: []netip.Addr{m.podIP()}}
	if _, err := m.backend.AddEndpoint(ctx, m.endpoint); err != nil {
		t.Fatal(err)
	}
}

// enforce applies the policies of the cluster to the switch.
func (m *machine) enforce(t *testing.T, s *model.Snapshot) {
	t.Helper()
	state, _ := compile.Once(compile.Input{Snapshot: s, Node: m.name,
		Endpoints: map[model.EndpointID]compile.Endpoint{m.endpoint.ID: {Pod: m.endpoint.Pod, IPs: m.endpoint.IPs}}})
	if _, err := m.backend.Apply(ctx, state); err != nil {
		t.Fatal(err)
	}
	specs, err := vfp.Specs(m.store, func(string) string { return m.pod.Path() })
	if err != nil {
		t.Fatal(err)
	}
	tunnel, err := vfp.TunnelOf(m.store)
	if err != nil || tunnel == nil {
		t.Fatalf("tunnel %v, %v", tunnel, err)
	}
	if err := errors.Join(m.sw.Set(specs), m.sw.SetTunnel(tunnel)); err != nil {
		t.Fatal(err)
	}
}

// snapshotOf is the cluster of the machines. Only the machine before it in the ring
// reaches the pod of a Windows node, on port 80; that pod reaches all others.
func snapshotOf(ring []*machine) *model.Snapshot {
	var nodes []*model.Node
	var pods []*model.Pod
	var policies []*model.Policy
	only := func(name string) model.Selector {
		return model.MakeSelector(model.Requirement{Key: "on", Operator: model.In, Values: []string{name}})
	}
	for i, m := range ring {
		node := &model.Node{Name: m.name, OS: m.os, Addresses: []netip.Addr{m.underlay()}, PodCIDRs: []netip.Prefix{m.cidr()}, NodeInfo: model.NodeInfo{VTEP: m.vtep()}}
		if m.ovn { // its annotations have all that is known
			node.PodCIDRs, node.NodeInfo = nil, model.NodeInfo{Overlay: model.Overlay{Subnets: fmt.Sprintf(`{"default":[%q]}`, m.cidr()), MAC: m.vtep().String()}}
		}
		nodes = append(nodes, node)
		pods = append(pods, &model.Pod{PodID: model.PodID{Namespace: "shop", Name: m.name}, Node: m.name, IPs: []netip.Addr{m.podIP()},
			Labels: model.MakeLabels(map[string]string{"on": m.name})})
		if m.os != model.Windows {
			continue
		}
		friend := ring[(i+len(ring)-1)%len(ring)]
		p := &model.Policy{Origin: model.Origin{Kind: "NetworkPolicy", Namespace: "shop", Name: m.name}, Tier: model.TierNetworkPolicy,
			Subject: model.PodSelector{Namespace: "shop", Pods: only(m.name)}, Isolates: [2]bool{true, false}}
		p.Rules[model.Ingress] = []model.Rule{{Action: model.ActionAccept,
			Peers: []model.Peer{{Kind: model.PeerPods, Pods: model.PodSelector{Namespace: "shop", Pods: only(friend.name)}}},
			Ports: []model.PortMatch{{Protocol: model.TCP, First: 80, Last: 80}, {Protocol: model.UDP, First: 80, Last: 80}}}}
		policies = append(policies, p)
	}
	return model.MakeSnapshot([]*model.Namespace{model.NewNamespace("shop", nil)}, nodes, pods, policies)
}

// TestOverlayBetweenSystems connects a Linux node, with the kernel's VXLAN, and two emulated Windows nodes. Every
// pod opens flows to every other by TCP and UDP on two ports. The policies of the receiver decide.
func TestOverlayBetweenSystems(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make network namespaces")
	}
	segment := netns.ForTest(t)
	in(t, segment, func() error {
		return errors.Join(netns.Bridge("br"), netns.Up("br"))
	})
	ring := []*machine{{name: "lin", os: model.Linux, number: 11, vni: 4096}, {name: "win1", os: model.Windows, number: 12, vni: 4096}, {name: "win2", os: model.Windows, number: 13, vni: 4096}}
	for _, m := range ring {
		m.plug(t, segment)
	}
	s := snapshotOf(ring)
	ring[0].tunnel(t, ring[1:])
	for i, m := range ring[1:] {
		m.windows(t, hns.Profiles()[i+1])
		m.enforce(t, s)
	}
	servers := traffic.ServersFor(t)
	for _, m := range ring {
		for _, port := range []uint16{80, 81} {
			if err := servers.Echo(m.pod, netip.AddrPortFrom(m.podIP(), port), model.TCP, model.UDP); err != nil {
				t.Fatal(err)
			}
		}
	}
	var tried, passed atomic.Int32
	var all sync.WaitGroup
	try := func(i, j int, protocol model.Protocol, port uint16) {
		from, to := ring[i], ring[j]
		want := to.os == model.Linux || port == 80 && i == (j+len(ring)-1)%len(ring)
		err := traffic.Flow{NS: from.pod, From: from.podIP(), To: netip.AddrPortFrom(to.podIP(), port), Protocol: protocol}.Try(ctx, patience)
		tried.Add(1)
		if err == nil {
			passed.Add(1)
		}
		if (err == nil) != want {
			t.Errorf("%s to %s %s/%d: %v, want pass %t", from.name, to.name, protocol, port, err, want)
		}
	}
	for i := range ring {
		for j := range ring {
			if i == j {
				continue
			}
			for _, port := range []uint16{80, 81} {
				for _, protocol := range []model.Protocol{model.TCP, model.UDP} {
					all.Go(func() { try(i, j, protocol, port) })
				}
			}
		}
	}
	all.Wait()
	if tried.Load() != 24 || passed.Load() != 12 {
		t.Errorf("%d of %d flows passed", passed.Load(), tried.Load())
	}
	large(t, ring[2], ring[1])
	large(t, ring[0], ring[1])
}

// TestHybridOverlayToWindows connects a node of OVN-Kubernetes, with the kernel's VXLAN, and an emulated Windows node. Its
// network has the VNI of the hybrid overlay: the switch drops others.
func TestHybridOverlayToWindows(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make network namespaces")
	}
	segment := netns.ForTest(t)
	in(t, segment, func() error { return errors.Join(netns.Bridge("br"), netns.Up("br")) })
	ring := []*machine{{name: "ovn", os: model.Linux, number: 11, vni: fabric.HybridVNI, ovn: true}, {name: "win", os: model.Windows, number: 12, vni: fabric.HybridVNI}}
	ovn, win := ring[0], ring[1]
	for _, m := range ring {
		m.plug(t, segment)
	}
	hybrid := fabric.NewHybrid(win.name, []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")})
	ovn.tunnel(t, ring[1:])
	win.windows(t, hns.Profiles()[1])
	win.enforce(t, hybrid.Snapshot(snapshotOf(ring)))
	info, why := hybrid.Publish(&model.Node{Name: win.name, OS: win.os}, []netip.Prefix{win.cidr()}, win.backend.NodeInfo())
	if want := (model.Overlay{Subnet: win.cidr().String(), MAC: win.vtep().String()}); info.Overlay != want || why != "" {
		t.Errorf("the node publishes %+v, %s, want %+v", info.Overlay, why, want)
	}
	servers := traffic.ServersFor(t)
	for _, m := range ring {
		for _, port := range []uint16{80, 81} {
			if err := servers.Echo(m.pod, netip.AddrPortFrom(m.podIP(), port), model.TCP, model.UDP); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, protocol := range []model.Protocol{model.TCP, model.UDP} {
		for _, f := range []struct {
			from, to *machine
			port     uint16
			pass     bool
		}{{ovn, win, 80, true}, {ovn, win, 81, false}, {win, ovn, 80, true}, {win, ovn, 81, true}} {
			err := traffic.Flow{NS: f.from.pod, From: f.from.podIP(), To: netip.AddrPortFrom(f.to.podIP(), f.port), Protocol: protocol}.Try(ctx, patience)
			if (err == nil) != f.pass {
				t.Errorf("%s to %s %s/%d: %v, want pass %t", f.from.name, f.to.name, protocol, f.port, err, f.pass)
			}
		}
	}
}

// large sends many full packets in both directions.
func large(t *testing.T, server, client *machine) {
	t.Helper()
	c, err := traffic.Flow{NS: client.pod, From: client.podIP(), To: netip.AddrPortFrom(server.podIP(), 80), Protocol: model.TCP}.Dial(ctx, patience)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	text := make([]byte, 200_000)
	go c.Write(text) // ends when the connection is closed
	if n, err := io.ReadFull(c, make([]byte, len(text))); err != nil {
		t.Errorf("%s to %s: %d of %d bytes came back: %v", client.name, server.name, n, len(text), err)
	}
}

// patience is the timeout for an answer on a busy machine. Denied flows always reach it, but all attempts run
// concurrently.
const patience = 5 * time.Second

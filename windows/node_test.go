// SPDX-License-Identifier: Apache-2.0

package windows_test

import (
	"bytes"
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy/compile"
	"github.com/isthmus-net/isthmus/test/world"
	"github.com/isthmus-net/isthmus/windows"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hns/hnstest"
)

var (
	ctx          = context.Background()
	discard      = slog.New(slog.DiscardHandler)
	hostAddress  = netip.MustParseAddr("10.0.1.2")
	hostAddress6 = netip.MustParseAddr("fd00:1::2")
)

// node is a node with its HNS and its backend.
type node struct {
	t       *testing.T
	fake    *hnstest.Fake
	config  windows.Config
	backend *windows.Backend
	log     bytes.Buffer
	// took maps pods to the names of prepared endpoints that they may have taken.
	took map[model.EndpointID]string
}

// bridgeConfig fits the pods that test/world puts on node1.
func bridgeConfig() windows.Config {
	return windows.Config{
		Mode: windows.L2Bridge, Adapter: "Ethernet",
		PodCIDRs:              []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24")},
		NodeAddresses:         []netip.Addr{netip.MustParseAddr("192.168.0.1")},
		OutboundNATExceptions: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
		ServiceCIDRs:          []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")},
		CallDeadline:          10 * time.Second, NetworkWait: 20 * time.Millisecond,
	}
}

func overlayConfig() windows.Config {
	c := bridgeConfig()
	c.Mode, c.VNI = windows.Overlay, 4096
	return c
}

// dualConfig gives pods IPv6 addresses too.
func dualConfig() windows.Config {
	c := bridgeConfig()
	c.PodCIDRs = append(c.PodCIDRs, netip.MustParsePrefix("fd00:1::/64"))
	c.NodeAddresses = append(c.NodeAddresses, netip.MustParseAddr("fd00:ffff::1"))
	return c
}

func newNode(t *testing.T, v hns.Version, c windows.Config) *node {
	t.Helper()
	n := &node{t: t, fake: hnstest.NewFake(v), config: c}
	n.start()
	return n
}

// start starts a new agent process on the same HNS.
func (n *node) start() {
	n.t.Helper()
	b, err := windows.New(ctx, n.config, n.fake, slog.New(slog.NewTextHandler(&n.log, nil)))
	if err != nil {
		n.t.Fatal(err)
	}
	n.backend = b
}

func (n *node) spec(container, ip string) dataplane.EndpointSpec {
	return dataplane.EndpointSpec{ID: model.MakeEndpointID(container, "eth0"), ContainerID: container, IfName: "eth0",
		Pod: model.PodID{Namespace: "x", Name: container}, NetNS: n.fake.AddNamespace(), IPs: []netip.Addr{netip.MustParseAddr(ip)}}
}

func (n *node) add(spec dataplane.EndpointSpec) dataplane.Attachment {
	n.t.Helper()
	a, err := n.backend.AddEndpoint(ctx, spec)
	if err != nil {
		n.t.Fatal(err)
	}
	return a
}

// addAll attaches the pods of a State.
func (n *node) addAll(s *model.State) {
	n.t.Helper()
	for id, e := range s.Policy.Endpoints {
		container, ifName, _ := strings.Cut(string(id), ":")
		n.add(dataplane.EndpointSpec{ID: id, ContainerID: container, IfName: ifName, Pod: e.Pod, NetNS: n.fake.AddNamespace(), IPs: e.IPs})
	}
}

func (n *node) apply(s *model.State) {
	n.t.Helper()
	unsupported, err := n.backend.Apply(ctx, s)
	if err != nil {
		n.t.Fatal(err)
	}
	if len(unsupported) > 0 {
		n.t.Fatal(unsupported)
	}
}

// name is the HNS name of an endpoint.
func (n *node) name(id model.EndpointID) string {
	if name := n.took[id]; name != "" {
		if list, err := n.fake.AllEndpoints(ctx); err == nil && slices.ContainsFunc(list, func(e hns.Endpoint) bool { return e.Name == name }) {
			return name
		}
	}
	return strings.ReplaceAll(string(id), ":", "_") + "_isthmus"
}

// send evaluates a packet with HNS.
func (n *node) send(id model.EndpointID, d model.Direction, remote netip.Addr, p model.Protocol, port uint16, reading hns.Reading) bool {
	n.t.Helper()
	out, err := n.fake.Send(n.name(id), hns.Packet{Direction: acl.PacketDirection(d), Remote: remote, Protocol: uint8(p), Port: port}, reading)
	if err != nil {
		n.t.Fatal(err)
	}
	return out.Allow
}

// compare evaluates every probe with HNS under some readings.
func (n *node) compare(s *model.State, addrs []netip.Addr, ports []world.Port) (cells int) {
	n.t.Helper()
	readings := []hns.Reading{{}, {Default: hns.PerDirection, Tie: hns.BlockFirst, Host: hns.HostClosed, Set: hns.EmptyMatchesAll}}
	for id, e := range s.Policy.Endpoints {
		rules, err := n.fake.Rules(n.name(id))
		if err != nil {
			n.t.Fatal(err)
		}
		for _, d := range model.Directions {
			for _, remote := range addrs {
				// The host's own address reaches its pods, although the State does not contain it
				// (TestNodeReachesItsPods).
				if slices.Contains(e.IPs, remote) || remote.IsLoopback() || remote == hostAddress || remote == hostAddress6 {
					continue
				}
				decide := toward(s, id, d, remote)
				for _, reading := range readings {
					part := rules.Between(acl.PacketDirection(d), e.IPs[0], remote, reading)
					for _, at := range ports {
						want := decide(at)
						cells++
						if got := part.Decide(uint8(at.Protocol), at.Port, 0); got.Allow != (want.Verdict == model.Allow) {
							n.t.Fatalf("%s %s %s %s/%d: hns %t, state %s (%s)\n%s", id, d, remote, at.Protocol, at.Port, got.Allow, want, reading, n.fake.Dump())
						}
					}
				}
			}
		}
	}
	return cells
}

func (n *node) count(op string) (calls int) {
	for _, c := range n.fake.Calls() {
		if c.Op == op {
			calls++
		}
	}
	return calls
}

// snapshot makes a random cluster whose pods on node1 have addresses that HNS can assign. The third
// address of a range belongs to the host.
func snapshot(seed uint64, shape world.Shape) *model.Snapshot {
	s := world.Random(seed, shape)
	c := *s
	for id, p := range s.Pods.All() {
		if p.HostNetwork {
			continue
		}
		q := *p
		q.IPs = slices.Clone(p.IPs)
		for i, ip := range q.IPs {
			b := ip.AsSlice()
			b[len(b)-1] += 16
			q.IPs[i], _ = netip.AddrFromSlice(b)
		}
		c.Pods = c.Pods.With(id, &q)
	}
	return &c
}

// stateOf leaves out pods whose address another pod of the node has.
func stateOf(s *model.Snapshot, previous *model.State) *model.State {
	endpoints := world.Endpoints(s, "node1")
	owners := s.Owners()
	for id, e := range endpoints {
		if owners.Pods[e.IPs[0]].PodID != e.Pod {
			delete(endpoints, id)
		}
	}
	state, _ := compile.Once(compile.Input{Snapshot: s, Node: "node1", Endpoints: endpoints, Previous: previous})
	return state
}

// onlyAttached moves pods of node1 that are new to another node.
func onlyAttached(s *model.Snapshot, have *model.State) *model.Snapshot {
	c := *s
	for id, p := range s.Pods.All() {
		if _, ok := have.Policy.Endpoints[world.EndpointID(p)]; !ok && p.Node == "node1" {
			q := *p
			q.Node = "node2"
			c.Pods = c.Pods.With(id, &q)
		}
	}
	return &c
}

// toward is s.Policy.Decide for one remote address, whose class it looks up once.
func toward(s *model.State, id model.EndpointID, d model.Direction, remote netip.Addr) func(world.Port) model.Decision {
	e := s.Policy.Endpoints[id]
	table := s.Policy.Tables[e.Table]
	if table == nil || slices.Contains(e.IPs, remote) {
		return func(at world.Port) model.Decision { return s.Policy.Decide(id, d, remote, at.Protocol, at.Port) }
	}
	row := table.Sides[d].Row(s.Policy.Class(remote))
	return func(at world.Port) model.Decision { return row.Cell(s.Policy.PortClass(at.Protocol, at.Port)) }
}

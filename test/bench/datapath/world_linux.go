// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy/compile"
	"github.com/isthmus-net/isthmus/linux/loader"
	"github.com/isthmus-net/isthmus/linux/policymap"
)

// open is the port that the last policy of a world allows, for the client or for every pod. No
// policy allows closed.
const (
	open   = 8080
	closed = 9
)

// world is a cluster in which all policies select the pod server. Each policy allows one more peer
// at one port, alternately by label and by address.
type world struct {
	policies  int
	pods      int // without client and server
	direction model.Direction
	// anyPod makes the last policy allow all pods instead of the client only.
	anyPod bool
}

// grant is an address and a port that a policy allows.
type grant struct {
	peer netip.Addr
	port uint16
}

// grants returns the grants of all policies but the last. Some of those by address name addresses
// outside the cluster.
func (w world) grants() []grant {
	all := make([]grant, 0, w.policies)
	for i := range w.policies - 1 {
		g := grant{port: uint16(1000 + i%400), peer: podAddress(i % max(w.pods, 1))}
		if i%2 == 0 || w.pods == 0 {
			g.peer = netip.AddrFrom4([4]byte{172, 20, byte(i >> 8), byte(i)})
		}
		all = append(all, g)
	}
	return all
}

// podAddress returns the address of pod i, which bpf/bench.bpf.c uses for shuffled packets.
func podAddress(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{first[0], first[1] + byte(i>>16), byte(i >> 8), byte(i)})
}

func named(key, value string) model.PodSelector {
	return model.PodSelector{Namespace: "default", Pods: model.MakeSelector(model.Requirement{Key: key, Operator: model.In, Values: []string{value}})}
}

// list returns the policies.
func (w world) list() []*model.Policy {
	var all []*model.Policy
	add := func(peer model.Peer, ports ...model.PortMatch) {
		p := &model.Policy{Origin: model.Origin{Kind: "NetworkPolicy", Namespace: "default", Name: fmt.Sprintf("policy-%d", len(all))},
			Tier: model.TierNetworkPolicy, Subject: named("name", "server")}
		p.Isolates[w.direction] = true
		p.Rules[w.direction] = []model.Rule{{Action: model.ActionAccept, Peers: []model.Peer{peer}, Ports: ports}}
		all = append(all, p)
	}
	for i, g := range w.grants() {
		peer := model.Peer{Kind: model.PeerBlock, Block: model.IPBlock{CIDR: netip.PrefixFrom(g.peer, 32)}}
		if i%2 == 1 && w.pods > 0 {
			peer = model.Peer{Kind: model.PeerPods, Pods: named("app", strconv.Itoa(i%w.pods))}
		}
		add(peer, model.PortMatch{Protocol: model.TCP, First: g.port, Last: g.port})
	}
	last := model.Peer{Kind: model.PeerPods, Pods: named("name", "client")}
	if w.anyPod {
		last.Pods = model.PodSelector{Namespace: "default"}
	}
	add(last, model.PortMatch{Protocol: model.TCP, First: open, Last: open}, model.PortMatch{Protocol: model.UDP, First: open, Last: open})
	return all
}

// The two pods of every world.
var (
	clientIPs = []netip.Addr{netip.MustParseAddr("10.1.0.11"), netip.MustParseAddr("fd01::b")}
	serverIPs = []netip.Addr{netip.MustParseAddr("10.1.0.12"), netip.MustParseAddr("fd01::c")}
)

// state compiles the state of the node with the given endpoints.
func (w world) state(endpoints map[model.EndpointID]compile.Endpoint) *model.State {
	node := &model.Node{Name: "node", OS: model.Linux, Addresses: []netip.Addr{netip.MustParseAddr(nodeAddress)},
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24"), netip.MustParsePrefix("fd01::/64")}}
	pod := func(name, app, node string, ips ...netip.Addr) *model.Pod {
		return &model.Pod{PodID: model.PodID{Namespace: "default", Name: name}, Node: node, IPs: ips,
			Labels: model.MakeLabels(map[string]string{"name": name, "app": app})}
	}
	pods := []*model.Pod{pod("client", "client", "node", clientIPs...), pod("server", "server", "node", serverIPs...)}
	for i := range w.pods {
		// Pods beyond those that policies distinguish have labels that no policy names.
		pods = append(pods, pod("other", strconv.Itoa(i), "elsewhere", podAddress(i)))
		pods[len(pods)-1].Name = fmt.Sprintf("pod-%d", i)
	}
	snapshot := model.MakeSnapshot(nil, []*model.Node{node}, pods, w.list())
	limits := compile.DefaultLimits()
	limits.Addresses = max(limits.Addresses, w.pods+1000)
	s, _ := compile.Once(compile.Input{Snapshot: snapshot, Node: "node", Endpoints: endpoints, Limits: limits})
	return s
}

// serverID is the endpoint that the sandboxed programs serve.
var serverID = model.MakeEndpointID("server", "eth0")

// load loads the programs over separate maps below a directory of a bpffs. The maps are large
// enough for the world. The pod server is at loader.SandboxInterface.
func (w world) load(dir string) (*loader.DataPath, error) {
	// Making worlds needs memory; a measurement must not be interrupted by garbage collection.
	debug.SetGCPercent(100)
	defer func() {
		debug.FreeOSMemory()
		debug.SetGCPercent(-1)
	}()
	path, err := loader.Open(dir, longLived, loader.Sizes{"peers4": max(131_072, w.pods+1000)})
	if err != nil {
		return nil, err
	}
	if err := w.fill(path); err != nil {
		path.Close()
		return nil, fmt.Errorf("world of %d policies and %d pods: %w", w.policies, w.pods, err)
	}
	return path, nil
}

// fill writes the maps as an agent would.
func (w world) fill(path *loader.DataPath) error {
	layout := policymap.NewLayout(path.Capacity())
	slot, err := layout.AddSlot(serverID)
	if err != nil {
		return err
	}
	if err := path.WriteSlot(slot); err != nil {
		return err
	}
	s := w.state(map[model.EndpointID]compile.Endpoint{
		serverID: {Pod: model.PodID{Namespace: "default", Name: "server"}, IPs: serverIPs},
	})
	for _, step := range dataplane.Plan(layout.State(), s) {
		writes, err := layout.Advance(step, time.Now())
		if err != nil {
			return err
		}
		if err := path.Execute(writes); err != nil {
			return err
		}
	}
	return path.PutEndpoint(loader.SandboxInterface, endpoint(slot.Index))
}

// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/fabric"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/model/immutable"
	"github.com/isthmus-net/isthmus/common/policy/compile"
	"github.com/isthmus-net/isthmus/linux"
	"github.com/isthmus-net/isthmus/linux/denylist"
	"github.com/isthmus-net/isthmus/linux/loader"
	"github.com/isthmus-net/isthmus/test/netns"
	"github.com/isthmus-net/isthmus/test/traffic"
)

// lab is one node in its own network namespace, with an uplink to a second namespace that
// stands for the rest of the network.
type lab struct {
	t       *testing.T
	dir     string
	node    *netns.NS
	outside *netns.NS
	pods    map[string]*netns.NS
	bpffs   string
	backend *linux.Backend
	cluster *model.Snapshot
	byRule  bool // as linux.Config.EgressByRule
	step    func(string)
	port    int // of the sender of the last packet
	pieces  int // of idle work since there was none
	// plugin, if set, makes the interfaces of pods, and the backend only enforces policy.
	plugin plugin
	index  int // of the next interface that plugin makes; 0: any
	// observe says which pods are observed.
	observe model.Observation
	// change, if set, changes the configuration.
	change func(*linux.Config)
	log    io.Writer // nil: discard
	state  *model.State
	local  map[model.EndpointID]compile.Endpoint
	known  []compile.Endpoint // pods of the cluster that are not attached
	// xdp are the devices of the XDP program. deny holds the lists that apply applies with the
	// policies; refused holds the entries that were not enforced as requested.
	xdp     denylist.Devices
	deny    []*model.DenyList
	limits  map[string]model.Bandwidth // of pods, by name
	refused []model.Unsupported
	ports   map[string][]model.HostPort // of pods, by name
	further map[string][]netip.Addr     // further addresses of pods, by name
}

const (
	nodeAddr4    = "192.168.9.1"
	nodeAddr6    = "fd99::1"
	outsideAddr4 = "192.168.9.2"
	outsideAddr6 = "fd99::2"
)

func newLab(t *testing.T) *lab {
	t.Helper()
	return newLabWith(t, nil)
}

// newLabWith returns a lab whose backend has a changed configuration.
func newLabWith(t *testing.T, change func(*linux.Config)) *lab {
	t.Helper()
	l := newNode(t)
	l.change = change
	l.outside = l.namespace("outside")
	l.must(l.cable(l.outside))
	l.must(l.node.Do(func() error { return addresses("eth0", nodeAddr4+"/24", nodeAddr6+"/64") }))
	l.must(l.outside.Do(func() error {
		if err := addresses("eth0", outsideAddr4+"/24", outsideAddr6+"/64"); err != nil {
			return err
		}
		return errors.Join(route("10.1.0.0/16", nodeAddr4), route("fd01::/64", nodeAddr6))
	}))
	l.start()
	t.Cleanup(func() {
		if l.backend != nil { // it did not start again
			l.backend.Close()
		}
	})
	return l
}

// newNode returns a lab with an empty namespace.
func newNode(t *testing.T) *lab {
	t.Helper()
	if os.Getuid() != 0 || testing.Short() {
		t.Skip("needs root and no -short: make test runs it")
	}
	l := &lab{t: t, dir: t.TempDir(), pods: map[string]*netns.NS{}, local: map[model.EndpointID]compile.Endpoint{}}
	l.bpffs = filepath.Join(l.dir, "bpf")
	l.must(os.Mkdir(l.bpffs, 0o700))
	l.must(unix.Mount("bpf", l.bpffs, "bpf", 0, ""))
	t.Cleanup(func() { unix.Unmount(l.bpffs, unix.MNT_DETACH) })
	l.node = l.namespace("node")
	return l
}

// cable connects the uplink of the node with that of another namespace.
func (l *lab) cable(other *netns.NS) error { return l.cableTo(other, "eth0") }

// cableTo connects the node with another namespace by a pair of interfaces of one name.
func (l *lab) cableTo(other *netns.NS, name string) error {
	return netns.Connect(netns.End{NS: l.node, Name: name}, netns.End{NS: other, Name: name})
}

func (l *lab) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) namespace(name string) *netns.NS {
	l.t.Helper()
	ns, err := netns.Prepared(filepath.Join(l.dir, name))
	l.must(err)
	l.t.Cleanup(func() { ns.Close() })
	return ns
}

// addresses and route are those of netns, for literals.
func addresses(name string, cidrs ...string) error {
	return netns.AddAddresses(name, prefixes(cidrs)...)
}

func route(to, via string) error {
	return netns.Route(netip.MustParsePrefix(to), netip.MustParseAddr(via))
}

func prefixes(cidrs []string) []netip.Prefix {
	var all []netip.Prefix
	for _, c := range cidrs {
		all = append(all, netip.MustParsePrefix(c))
	}
	return all
}

// start creates a backend, as a starting agent does.
func (l *lab) start() {
	l.t.Helper()
	l.must(l.node.Do(func() error {
		cfg := l.config()
		log := l.log
		if log == nil {
			log = io.Discard
		}
		var err error
		l.backend, err = linux.New(context.Background(), cfg, slog.New(slog.NewTextHandler(log, nil)))
		return err
	}))
}

// config returns the configuration of the next backend.
func (l *lab) config() linux.Config {
	cfg := linux.Defaults()
	cfg.BPFFS = l.bpffs
	cfg.Uplink = "eth0"
	cfg.XDP = l.xdp
	cfg.EgressByRule, cfg.Step = l.byRule, l.step
	cfg.Fabric.Mode = fabric.Routes // pods have the uplink's MTU
	// The smallest tables of flows: those of a node depend on its memory, and each start and upgrade reads them.
	cfg.MapEntries = loader.Sizes{"conns4": 8192, "conns6": 8192}
	if l.change != nil {
		l.change(&cfg)
	}
	if cfg.PolicyOnly { // the tests name the plugin instead of the directory
		l.plugin, cfg.StateDir = plugins[cfg.StateDir], filepath.Join(l.dir, "state")
	}
	return cfg
}

// pod attaches a pod with the addresses 10.1.0.n and fd01::n.
func (l *lab) pod(name string, n byte) *netns.NS {
	l.t.Helper()
	ns := l.namespace(name)
	l.pods[name] = ns
	l.must(l.add(name, n))
	return ns
}

func podIPs(n byte) []netip.Addr {
	return []netip.Addr{netip.AddrFrom4([4]byte{10, 1, 0, n}), netip.MustParseAddr(fmt.Sprintf("fd01::%x", n))}
}

func (l *lab) add(name string, n byte) error {
	return l.node.Do(func() error { return l.addHere(name, n) })
}

// addHere is for callers in the node's namespace.
func (l *lab) addHere(name string, n byte) error {
	if l.plugin != nil {
		if err := l.plugin(l, name, n); err != nil {
			return err
		}
	}
	spec := dataplane.EndpointSpec{ID: model.MakeEndpointID(name, "eth0"), ContainerID: name, IfName: "eth0",
		Pod: model.PodID{Namespace: "default", Name: name}, NetNS: l.pods[name].Path(), IPs: podIPs(n), Bandwidth: l.limits[name], HostPorts: l.ports[name], Observed: l.observe.Observes(nil)}
	_, err := l.backend.AddEndpoint(context.Background(), spec)
	if err == nil {
		l.local[spec.ID] = compile.Endpoint{Pod: spec.Pod, IPs: spec.IPs, Further: l.further[name]}
	}
	return err
}

func (l *lab) delete(name string) {
	l.t.Helper()
	id := model.MakeEndpointID(name, "eth0")
	l.must(l.node.Do(func() error { return l.backend.DeleteEndpoint(context.Background(), id) }))
	delete(l.local, id)
}

// apply enforces policies on the pods, which all have the label name=NAME.
func (l *lab) apply(policies ...*model.Policy) {
	l.t.Helper()
	l.must(l.tryApply(policies...))
}

func (l *lab) tryApply(policies ...*model.Policy) error {
	node := &model.Node{Name: "node", OS: model.Linux, Addresses: []netip.Addr{netip.MustParseAddr(nodeAddr4), netip.MustParseAddr(nodeAddr6)},
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24"), netip.MustParsePrefix("fd01::/64")}}
	var pods []*model.Pod
	for _, e := range slices.Concat(slices.Collect(maps.Values(l.local)), l.known) {
		pods = append(pods, &model.Pod{PodID: e.Pod, Node: "node", IPs: e.IPs, Labels: model.MakeLabels(map[string]string{"name": e.Pod.Name})})
	}
	l.cluster = model.MakeSnapshot(nil, []*model.Node{node}, pods, policies)
	lists := make(map[string]*model.DenyList)
	for _, list := range l.deny {
		lists[list.Name] = list
	}
	l.cluster.DenyLists = immutable.MakeMap(lists)
	return l.node.Do(func() error {
		previous, err := l.backend.InForce(context.Background())
		if err != nil {
			return err
		}
		if l.state != nil {
			previous = l.state
		}
		l.state, _ = compile.Once(compile.Input{Snapshot: l.cluster, Node: "node", Endpoints: l.local, Previous: previous, Observe: l.observe})
		l.refused, err = l.backend.Apply(context.Background(), l.state)
		return err
	})
}

func named(name string) model.PodSelector {
	return model.PodSelector{Namespace: "default", Pods: model.MakeSelector(model.Requirement{Key: "name", Operator: model.In, Values: []string{name}})}
}

// isolate returns a policy that selects a pod for a direction, with the given rules.
func isolate(pod string, d model.Direction, rules ...model.Rule) *model.Policy {
	p := &model.Policy{Origin: model.Origin{Kind: "NetworkPolicy", Namespace: "default", Name: pod + "-" + d.String()},
		Tier: model.TierNetworkPolicy, Subject: named(pod)}
	p.Isolates[d] = true
	p.Rules[d] = rules
	return p
}

func accept(peer model.Peer, ports ...model.PortMatch) model.Rule {
	return model.Rule{Action: model.ActionAccept, Peers: []model.Peer{peer}, Ports: ports, AnyPort: len(ports) == 0}
}

func pods(name string) model.Peer { return model.Peer{Kind: model.PeerPods, Pods: named(name)} }

func tcp(port uint16) model.PortMatch {
	return model.PortMatch{Protocol: model.TCP, First: port, Last: port}
}

func udp(port uint16) model.PortMatch {
	return model.PortMatch{Protocol: model.UDP, First: port, Last: port}
}

// echo serves TCP and UDP echo on all addresses of a namespace.
func (l *lab) echo(ns *netns.NS, port uint16) {
	l.t.Helper()
	l.must(traffic.ServersFor(l.t).Echo(ns, netip.AddrPortFrom(netip.IPv6Unspecified(), port), model.TCP, model.UDP))
}

// reach opens a connection and sends an echo over it.
func reach(from *netns.NS, network, to string, port uint16, limit time.Duration) error {
	protocol := model.TCP
	if network == "udp" {
		protocol = model.UDP
	}
	return traffic.Flow{NS: from, To: netip.AddrPortFrom(netip.MustParseAddr(to), port), Protocol: protocol}.Try(context.Background(), limit)
}

// sends sends UDP packets, each from a port that no other had, so that each opens a flow.
func (l *lab) sends(from *netns.NS, n int, to string) {
	l.t.Helper()
	l.must(l.send(from, n, to))
}

// send is sends for other goroutines than that of the test.
func (l *lab) send(from *netns.NS, n int, to string) error {
	return from.Do(func() error {
		for range n {
			l.port++
			d := net.Dialer{LocalAddr: &net.UDPAddr{Port: 10000 + l.port}}
			c, err := d.Dial("udp", to)
			if err != nil {
				return err
			}
			_, err = c.Write([]byte("hello"))
			c.Close()
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// After silence, a test no longer expects an answer. An expected answer may take patience on a
// slow machine.
const (
	silence  = 400 * time.Millisecond
	patience = 20 * time.Second
)

// together returns how long a client waits that begins at the same time as many others. A denied one must have sent its first packet by
// then, or nothing is counted.
func together(want bool) time.Duration {
	switch {
	case want:
		return patience
	case emulated():
		return 5 * silence
	}
	return silence
}

// decided returns how many new flows the node has decided this way so far, in both directions.
func (l *lab) decided(v model.Verdict) uint64 {
	l.t.Helper()
	c, err := l.backend.Counters(context.Background())
	l.must(err)
	return c.Verdicts[model.Ingress][v] + c.Verdicts[model.Egress][v]
}

// counts waits until the node has counted so many denied flows since before.
func (l *lab) counts(before, want uint64) {
	l.t.Helper()
	got := l.decided(model.Deny) - before
	for end := time.Now().Add(patience); got < want && time.Now().Before(end); got = l.decided(model.Deny) - before {
		time.Sleep(10 * time.Millisecond)
	}
	if got < want {
		l.t.Errorf("the node has counted %d denied flows of %d", got, want)
	}
}

func (l *lab) allowed(from *netns.NS, network, to string, port uint16) {
	l.t.Helper()
	if err := reach(from, network, to, port, patience); err != nil {
		l.t.Errorf("%s to %s port %d: want allowed, got %v", network, to, port, err)
	}
}

func (l *lab) denied(from *netns.NS, network, to string, port uint16) {
	l.t.Helper()
	switch err := reach(from, network, to, port, silence); {
	case err == nil:
		l.t.Errorf("%s to %s port %d: want denied, got through", network, to, port)
	case !traffic.Silent(err):
		l.t.Errorf("%s to %s port %d: want silence, got %v", network, to, port, err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	ebpflink "github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy/compile"
	"github.com/isthmus-net/isthmus/linux"
	"github.com/isthmus-net/isthmus/linux/link"
	"github.com/isthmus-net/isthmus/test/bench/floor"
	"github.com/isthmus-net/isthmus/test/netns"
)

const nodeAddress = "192.168.9.1"

// way is how packets get from the pod client to the pod server of a node, and
// what they meet on the way: a node of its own, with both pods.
type way struct {
	name                 string
	node, client, server *netns.NS // no node: the pods are connected directly
	far                  *netns.NS // the server's node, if that is another one
	// entry and exit are the host's ends of the pods' pairs.
	entry, exit link.Pair
	closers     []func() error
}

// ways are all of them, below one directory.
type ways struct {
	dir  string
	list []*way
}

func newWays() (w *ways, err error) {
	w = &ways{}
	if w.dir, err = os.MkdirTemp("/run", "isthmus-bench-"); err != nil {
		return nil, err
	}
	return w, nil
}

// close removes everything that was made.
func (w *ways) close() error {
	var errs []error
	for _, way := range w.list {
		for i := len(way.closers) - 1; i >= 0; i-- {
			errs = append(errs, way.closers[i]())
		}
	}
	return errors.Join(append(errs, os.RemoveAll(w.dir))...)
}

// namespace makes one that goes with the way.
func (w *ways) namespace(of *way, name string) (*netns.NS, error) {
	ns, err := netns.Prepared(filepath.Join(w.dir, fmt.Sprintf("%d-%s", len(w.list), name)))
	if err == nil {
		of.closers = append(of.closers, ns.Close)
	}
	return ns, err
}

// pods begins a way with two pods, and with a node if they are not to be
// connected directly.
func (w *ways) pods(name string, node bool) (*way, error) {
	of := &way{name: name}
	w.list = append(w.list, of)
	var err error
	if of.client, err = w.namespace(of, "client"); err != nil {
		return nil, err
	}
	if of.server, err = w.namespace(of, "server"); err != nil {
		return nil, err
	}
	if node {
		of.node, err = w.namespace(of, "node")
	}
	return of, err
}

// direct connects the pods by a veth pair.
func (w *ways) direct() error {
	of, err := w.pods("raw veth pair", false)
	if err != nil {
		return err
	}
	if err := netns.Connect(netns.End{NS: of.client, Name: "eth0"}, netns.End{NS: of.server, Name: "eth0"}); err != nil {
		return err
	}
	return errors.Join(of.client.Do(func() error { return address("eth0", clientIPs) }),
		of.server.Do(func() error { return address("eth0", serverIPs) }))
}

// address gives an interface addresses and enables it.
func address(name string, ips []netip.Addr) error {
	var all []netip.Prefix
	for _, ip := range ips {
		bits := 24
		if ip.Is6() {
			bits = 64
		}
		all = append(all, netip.PrefixFrom(ip, bits))
	}
	return netns.AddAddresses(name, all...)
}

// routed connects the pods by a node that forwards, with the links and routes
// that Isthmus gives pods, and nothing else.
func (w *ways) routed(name string) (*way, error) {
	of, err := w.pods(name, true)
	if err != nil {
		return nil, err
	}
	return of, of.node.Do(func() error {
		if err := netns.Forward(); err != nil {
			return err
		}
		if of.entry, err = pair("client", of.client, clientIPs); err != nil {
			return err
		}
		of.exit, err = pair("server", of.server, serverIPs)
		return err
	})
}

func pair(name string, ns *netns.NS, ips []netip.Addr) (link.Pair, error) {
	spec := link.PairSpec{ID: model.MakeEndpointID(name, "eth0"), NetNS: ns.Path(), IfName: "eth0", IPs: ips, MTU: 1500}
	p, _, err := link.CreatePair(spec)
	if err != nil {
		return p, err
	}
	return p, link.Configure(spec, p)
}

// bare sends packets into the other pod's interface by a program of
// bpf/bench.bpf.c.
func (w *ways) bare(name, program string) error {
	of, err := w.routed(name)
	if err != nil {
		return err
	}
	return of.node.Do(func() error {
		return errors.Join(of.redirect(program, of.entry, of.exit), of.redirect(program, of.exit, of.entry))
	})
}

func (of *way) redirect(program string, from, to link.Pair) error {
	spec, err := floor.LoadFloor()
	if err != nil {
		return err
	}
	if err := spec.Variables["bare_target"].Set(uint32(to.Index)); err != nil {
		return err
	}
	loaded, err := ebpf.NewCollection(spec)
	if err != nil {
		return err
	}
	of.closers = append(of.closers, func() error { loaded.Close(); return nil })
	l, err := attach(loaded.Programs[program], from.Index)
	if err == nil {
		of.closers = append(of.closers, l.Close)
	}
	return err
}

// attach puts a program on an interface of the namespace that the caller is in.
func attach(p *ebpf.Program, index int) (ebpflink.Link, error) {
	return ebpflink.AttachTCX(ebpflink.TCXOptions{Interface: index, Program: p, Attach: ebpf.AttachTCXIngress})
}

// isthmus is the real backend, under the policies of a world.
func (w *ways) isthmus(name string, of world) error {
	way, err := w.pods(name, true)
	if err != nil {
		return err
	}
	outside, err := w.namespace(way, "outside")
	if err != nil {
		return err
	}
	cfg := linux.Defaults()
	cfg.Fabric.MTU = 1500
	if err := netns.Connect(netns.End{NS: way.node, Name: "eth0"}, netns.End{NS: outside, Name: "eth0"}); err != nil {
		return err
	}
	return way.node.Do(func() error {
		if err := address("eth0", []netip.Addr{netip.MustParseAddr(nodeAddress)}); err != nil {
			return err
		}
		b, err := w.backend(way, cfg, "node")
		if err != nil {
			return err
		}
		return way.enforce(b, of)
	})
}

// backend opens one with the uplink eth0 in the node whose namespace the caller is
// in.
func (w *ways) backend(way *way, cfg linux.Config, name string) (*linux.Backend, error) {
	cfg.BPFFS, cfg.Uplink = filepath.Join(w.dir, fmt.Sprintf("%d-bpf-%s", len(w.list), name)), "eth0"
	if err := os.Mkdir(cfg.BPFFS, 0o700); err != nil {
		return nil, err
	}
	if err := unix.Mount("bpf", cfg.BPFFS, "bpf", 0, ""); err != nil {
		return nil, fmt.Errorf("mount a bpffs: %w", err)
	}
	way.closers = append(way.closers, func() error { return unix.Unmount(cfg.BPFFS, unix.MNT_DETACH) })
	b, err := linux.New(context.Background(), cfg, slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err == nil {
		way.closers = append(way.closers, b.Close)
	}
	return b, err
}

// enforce attaches both pods and applies the world's policies.
func (of *way) enforce(b *linux.Backend, w world) error {
	endpoints := make(map[model.EndpointID]compile.Endpoint)
	for _, p := range of.attachments() {
		if err := p.attach(b, endpoints); err != nil {
			return err
		}
	}
	return apply(b, w.state(endpoints))
}

// attachedPod is one of the two pods, and its pair.
type attachedPod struct {
	name string
	ns   *netns.NS
	ips  []netip.Addr
	pair *link.Pair
}

func (of *way) attachments() [2]attachedPod {
	return [2]attachedPod{{"client", of.client, clientIPs, &of.entry}, {"server", of.server, serverIPs, &of.exit}}
}

func (p attachedPod) attach(b *linux.Backend, known map[model.EndpointID]compile.Endpoint) error {
	id := model.MakeEndpointID(p.name, "eth0")
	a, err := b.AddEndpoint(context.Background(), dataplane.EndpointSpec{ID: id, ContainerID: p.name, IfName: "eth0",
		Pod: model.PodID{Namespace: "default", Name: p.name}, NetNS: p.ns.Path(), IPs: p.ips})
	if err != nil {
		return err
	}
	known[id] = compile.Endpoint{Pod: model.PodID{Namespace: "default", Name: p.name}, IPs: p.ips}
	*p.pair = link.Pair{Name: a.HostIfName, HostMAC: a.HostMAC, PodMAC: a.MAC}
	p.pair.Index, err = link.Index(a.HostIfName)
	return err
}

func apply(b *linux.Backend, s *model.State) error {
	unsupported, err := b.Apply(context.Background(), s)
	if err != nil || len(unsupported) > 0 {
		return fmt.Errorf("apply policies: %v %w", unsupported, err)
	}
	for more := true; more; {
		if more, err = b.Idle(context.Background()); err != nil {
			return err
		}
	}
	return nil
}

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

// setup is one compared connection between a pod client and a pod server. Each has a node of its own
// with both pods, unless stated otherwise.
type setup struct {
	name                 string
	node, client, server *netns.NS // node is nil if the pods are connected directly
	far                  *netns.NS // the server's node, if it is not the client's
	// entry and exit are the veth pairs of client and server, seen from the host.
	entry, exit link.Pair
	// queued evaluates new connections; nil if the kernel does.
	queued  *os.Process
	closers []func() error
}

// setups holds all of them, with their files in one directory.
type setups struct {
	dir  string
	list []*setup
}

func newSetups() (w *setups, err error) {
	w = &setups{}
	if w.dir, err = os.MkdirTemp("/run", "isthmus-bench-"); err != nil {
		return nil, err
	}
	return w, nil
}

// close removes all namespaces and files.
func (w *setups) close() error {
	var errs []error
	for _, setup := range w.list {
		for i := len(setup.closers) - 1; i >= 0; i-- {
			errs = append(errs, setup.closers[i]())
		}
	}
	return errors.Join(append(errs, os.RemoveAll(w.dir))...)
}

// namespace makes a namespace that close removes.
func (w *setups) namespace(of *setup, name string) (*netns.NS, error) {
	ns, err := netns.Prepared(filepath.Join(w.dir, fmt.Sprintf("%d-%s", len(w.list), name)))
	if err == nil {
		of.closers = append(of.closers, ns.Close)
	}
	return ns, err
}

// pods adds a setup with two pods, and with a node if node is set.
func (w *setups) pods(name string, node bool) (*setup, error) {
	of := &setup{name: name}
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

// direct connects the pods by a veth pair without a node.
func (w *setups) direct() error {
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

// routed connects the pods by a node that forwards: it has the links and routes that Isthmus makes
// for pods, and nothing else.
func (w *setups) routed(name string) (*setup, error) {
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

// bare redirects packets into the other pod's interface by a program of bpf/bench.bpf.c.
func (w *setups) bare(name, program string) error {
	of, err := w.routed(name)
	if err != nil {
		return err
	}
	return of.node.Do(func() error {
		return errors.Join(of.redirect(program, of.entry, of.exit), of.redirect(program, of.exit, of.entry))
	})
}

func (of *setup) redirect(program string, from, to link.Pair) error {
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

// attach attaches a program to an interface of the current namespace.
func attach(p *ebpf.Program, index int) (ebpflink.Link, error) {
	return ebpflink.AttachTCX(ebpflink.TCXOptions{Interface: index, Program: p, Attach: ebpf.AttachTCXIngress})
}

// isthmus connects the pods by the real backend, with the policies of a world.
func (w *setups) isthmus(name string, of world) error {
	setup, err := w.pods(name, true)
	if err != nil {
		return err
	}
	outside, err := w.namespace(setup, "outside")
	if err != nil {
		return err
	}
	cfg := linux.Defaults()
	cfg.Fabric.MTU = 1500
	if err := netns.Connect(netns.End{NS: setup.node, Name: "eth0"}, netns.End{NS: outside, Name: "eth0"}); err != nil {
		return err
	}
	return setup.node.Do(func() error {
		if err := address("eth0", []netip.Addr{netip.MustParseAddr(nodeAddress)}); err != nil {
			return err
		}
		b, err := w.backend(setup, cfg, "node")
		if err != nil {
			return err
		}
		return setup.enforce(b, of)
	})
}

// backend opens a backend with the uplink eth0, for the node in whose namespace the caller is.
func (w *setups) backend(setup *setup, cfg linux.Config, name string) (*linux.Backend, error) {
	cfg.BPFFS, cfg.Uplink = filepath.Join(w.dir, fmt.Sprintf("%d-bpf-%s", len(w.list), name)), "eth0"
	if err := os.Mkdir(cfg.BPFFS, 0o700); err != nil {
		return nil, err
	}
	if err := unix.Mount("bpf", cfg.BPFFS, "bpf", 0, ""); err != nil {
		return nil, fmt.Errorf("mount a bpffs: %w", err)
	}
	setup.closers = append(setup.closers, func() error { return unix.Unmount(cfg.BPFFS, unix.MNT_DETACH) })
	b, err := linux.New(context.Background(), cfg, slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err == nil {
		setup.closers = append(setup.closers, b.Close)
	}
	return b, err
}

// enforce attaches both pods and applies the policies of the world.
func (of *setup) enforce(b *linux.Backend, w world) error {
	endpoints := make(map[model.EndpointID]compile.Endpoint)
	for _, p := range of.attachments() {
		if err := p.attach(b, endpoints); err != nil {
			return err
		}
	}
	return apply(b, w.state(endpoints))
}

// attachedPod is one of the two pods, with its veth pair.
type attachedPod struct {
	name string
	ns   *netns.NS
	ips  []netip.Addr
	pair *link.Pair
}

func (of *setup) attachments() [2]attachedPod {
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

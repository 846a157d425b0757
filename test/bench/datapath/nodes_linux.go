// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/isthmus-net/isthmus/common/fabric"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy/compile"
	"github.com/isthmus-net/isthmus/linux"
	"github.com/isthmus-net/isthmus/linux/fastpath"
	"github.com/isthmus-net/isthmus/test/netns"
)

// The nodes of a setup with two nodes, one for each pod.
var nearAndFar = [2]*model.Node{
	{Name: "near", OS: model.Linux, Addresses: []netip.Addr{netip.MustParseAddr(nodeAddress), netip.MustParseAddr("fd99::1")},
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.1.0.8/30"), netip.MustParsePrefix("fd01::8/126")}},
	{Name: "far", OS: model.Linux, Addresses: []netip.Addr{netip.MustParseAddr("192.168.9.2"), netip.MustParseAddr("fd99::2")},
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.1.0.12/30"), netip.MustParsePrefix("fd01::c/126")}},
}

// across connects the client's node with the server's by a veth pair. Real backends make everything
// else.
func (w *setups) across(name string, mode fabric.Mode, forwarding fastpath.Forwarding) error {
	of, err := w.pods(name, true)
	if err != nil {
		return err
	}
	if of.far, err = w.namespace(of, "far"); err != nil {
		return err
	}
	if err := of.cable(); err != nil {
		return err
	}
	cfg := linux.Defaults()
	cfg.Fabric.Mode, cfg.Forwarding = mode, forwarding
	for i, ns := range []*netns.NS{of.node, of.far} {
		err := ns.Do(func() error {
			b, err := w.backend(of, cfg, nearAndFar[i].Name)
			if err != nil {
				return err
			}
			endpoints := make(map[model.EndpointID]compile.Endpoint)
			if err := of.attachments()[i].attach(b, endpoints); err != nil {
				return err
			}
			return apply(b, acrossState(nearAndFar[i].Name, endpoints))
		})
		if err != nil {
			return fmt.Errorf("%s of %s: %w", nearAndFar[i].Name, name, err)
		}
	}
	return nil
}

// cable connects the two nodes.
func (of *setup) cable() error {
	ends := [2]*netns.NS{of.node, of.far}
	if err := netns.Connect(netns.End{NS: of.node, Name: "eth0"}, netns.End{NS: of.far, Name: "eth0"}); err != nil {
		return err
	}
	var macs [2]net.HardwareAddr
	for i, ns := range ends {
		if err := ns.Do(func() error { return configureUplink(i, &macs[i]) }); err != nil {
			return err
		}
	}
	for i, ns := range ends {
		if err := ns.Do(func() error { return meet(1-i, macs[1-i]) }); err != nil {
			return err
		}
	}
	return nil
}

// configureUplink sets the addresses of the uplink of the node in whose namespace the caller is.
func configureUplink(node int, mac *net.HardwareAddr) error {
	if err := address("eth0", nearAndFar[node].Addresses); err != nil {
		return err
	}
	l, err := netlink.LinkByName("eth0")
	if err == nil {
		*mac = l.Attrs().HardwareAddr
	}
	return err
}

// meet adds the other node to the neighbour table of the caller's node, so that no packet waits for
// address resolution.
func meet(other int, mac net.HardwareAddr) error {
	l, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	for _, a := range nearAndFar[other].Addresses {
		n := &netlink.Neigh{LinkIndex: l.Attrs().Index, State: netlink.NUD_PERMANENT, IP: a.AsSlice(), HardwareAddr: mac}
		if err := netlink.NeighSet(n); err != nil {
			return err
		}
	}
	return nil
}

// acrossState compiles the state of a node: the server accepts only the client.
func acrossState(node string, endpoints map[model.EndpointID]compile.Endpoint) *model.State {
	var pods []*model.Pod
	for i, p := range []struct {
		name string
		ips  []netip.Addr
	}{{"client", clientIPs}, {"server", serverIPs}} {
		pods = append(pods, &model.Pod{PodID: model.PodID{Namespace: "default", Name: p.name}, Node: nearAndFar[i].Name, IPs: p.ips,
			Labels: model.MakeLabels(map[string]string{"name": p.name})})
	}
	only := world{policies: 1, direction: model.Ingress}
	snapshot := model.MakeSnapshot(nil, nearAndFar[:], pods, only.list())
	s, _ := compile.Once(compile.Input{Snapshot: snapshot, Node: node, Endpoints: endpoints})
	return s
}

var acrossModes = []struct {
	name string
	mode fabric.Mode
}{{"routes", fabric.Routes}, {"VXLAN", fabric.VXLAN}}

// slowPathName names the setup of a mode in which packets pass both host stacks.
func slowPathName(mode string) string { return mode + ", slow path" }
func fastPathName(mode string) string { return mode + ", fast path" }

// nodes measures the paths between pods of two nodes in each round: on the fast path of both nodes,
// and through both host stacks.
func (o options) nodes(ctx context.Context) (rows []row, err error) {
	w, err := newSetups()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	for _, m := range acrossModes {
		err := errors.Join(w.across(slowPathName(m.name), m.mode, fastpath.Stack), w.across(fastPathName(m.name), m.mode, fastpath.Direct))
		if err != nil {
			return nil, err
		}
	}
	if rows, err = o.forwardingAcross(ctx, w); err != nil {
		return rows, err
	}
	for _, kind := range []struct {
		part, unit string
		run        func(*setup) (figure, error)
	}{
		{"nodes: TCP_RR", "us", func(of *setup) (figure, error) { return of.transact(requestsEach, false) }},
		{"nodes: TCP_CRR", "us", func(of *setup) (figure, error) { return of.transact(connectsEach, true) }},
		{"nodes: TCP stream", "Gbit/s", (*setup).stream},
	} {
		all, err := w.each(ctx, o.rounds, kind.run)
		if err != nil {
			return rows, fmt.Errorf("%s: %w", kind.part, err)
		}
		rows = append(rows, acrossRows(kind.part, kind.unit, all)...)
	}
	return rows, nil
}

// forwardingAcross measures the cost of a packet from the client's interface on its node to the
// server's interface in the pod.
func (o options) forwardingAcross(ctx context.Context, w *setups) (rows []row, err error) {
	in, err := newInjector(w)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, in.end()) }()
	for _, l := range []load{{"1 flow", false, 1}, {"1000 flows", false, 1000}, {"IPv6, 1 flow", true, 1}} {
		if _, err := w.each(ctx, 1, func(of *setup) (figure, error) { return nil, in.establish(of, l) }); err != nil {
			return rows, err
		}
		all, err := w.each(ctx, o.rounds, func(of *setup) (figure, error) {
			ns, err := in.run(of, l, false, 1<<16)
			return figure{ns}, err
		})
		if err != nil {
			return rows, err
		}
		rows = append(rows, acrossRows("nodes: forwarding, "+l.name, "ns/packet", all)...)
	}
	return rows, nil
}

// acrossRows compares the fast path of each mode with the path through the host stacks.
func acrossRows(part, unit string, all map[string]figure) (rows []row) {
	for _, m := range acrossModes {
		slow, fast := slowPathName(m.name), fastPathName(m.name)
		rows = append(rows, newRow(part, slow, unit, all[slow]), newRow(part, fast, unit, all[fast]).beside(slow, all[slow], goal{}))
	}
	return rows
}

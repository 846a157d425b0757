// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/loader"
	"github.com/isthmus-net/isthmus/linux/probe"
)

var hostMAC = net.HardwareAddr{2, 0, 0, 0, 0, 2}

func endpoint(slot uint32) bpfobj.PodEndpoint {
	e := bpfobj.PodEndpoint{Slot: slot, Ip4: serverIPs[0].As4(), Ip6: serverIPs[1].As16()}
	copy(e.Mac[:], podMAC)
	return e
}

// path is one kind of packet through a program, sent or received by the pod server.
type path struct {
	name string
	// before holds the frames that are sent once, before the measurement.
	before [][]byte
	frame  []byte
	passes bool
	// flows and addresses are parameters of shuffle; if both are 0, all packets are equal.
	flows, addresses uint32
	// anyPeer makes flows and addresses the number of pods in the world.
	anyPeer bool
	goal    goal
}

// flow is a flow of the server with a pod that shuffle may choose, or with a pod that has an IPv6
// address.
func flow(proto model.Protocol, port uint16, v6 bool) model.Flow {
	if v6 {
		return model.Flow{Src: serverIPs[1], Dst: clientIPs[1], Protocol: proto, Port: port}
	}
	return model.Flow{Src: serverIPs[0], Dst: netip.AddrFrom4(first), Protocol: proto, Port: port}
}

func opening(f model.Flow) []byte { return probe.First(f, 1024, podMAC, hostMAC) }

// later turns a TCP SYN into a segment of the same flow.
func later(frame []byte) []byte {
	f := slices.Clone(frame)
	const flags, ack = 13, 0x10
	header := 14 + 20
	if f[12] == 0x86 {
		header = 14 + 40
	}
	f[header+flags] = ack
	return f
}

// fragment turns a datagram into the first fragment of a datagram, or into a later one.
func fragment(frame []byte, isFirst bool) []byte {
	f := slices.Clone(frame)
	const more, offset = 1 << 13, 100
	where := uint16(more)
	if !isFirst {
		where = offset
	}
	binary.BigEndian.PutUint16(f[14+6:], where)
	return f
}

// paths returns the paths to measure over every world. Policies allow all other pods at the port
// open.
func paths(addresses uint32, denied goal) []path {
	tcp4, tcp6 := opening(flow(model.TCP, open, false)), opening(flow(model.TCP, open, true))
	udp4 := opening(flow(model.UDP, open, false))
	return []path{
		{name: "established, IPv4", before: [][]byte{tcp4}, frame: later(tcp4), passes: true},
		{name: "established, IPv6", before: [][]byte{tcp6}, frame: later(tcp6), passes: true},
		{name: "SYN of a known flow", before: [][]byte{tcp4}, frame: tcp4, passes: true},
		{name: "new flow, allowed and noted", frame: tcp4, passes: true, flows: min(60_000*addresses, 1<<31), addresses: addresses},
		{name: "new flow, denied", frame: opening(flow(model.TCP, closed, false)), flows: addresses, addresses: addresses, goal: denied},
		{name: "new flow, denied, to any peer", frame: opening(flow(model.TCP, closed, false)), anyPeer: true},
		{name: "echo request, denied", frame: opening(flow(model.ICMP, 0, false))},
		{name: "first fragment", before: [][]byte{udp4}, frame: fragment(udp4, true), passes: true},
		{name: "later fragment", before: [][]byte{fragment(udp4, true)}, frame: fragment(udp4, false), passes: true},
	}
}

// in returns the path with the parameters of a world.
func (p path) in(w world) path {
	if p.anyPeer {
		p.flows, p.addresses = uint32(w.pods), uint32(w.pods)
	}
	return p
}

// scale is a world, and the programs loaded for it.
type scale struct {
	name string
	world
	path *loader.DataPath
}

// growth measures every path over worlds of growing size, and compares each world with the first of
// its series. The packets are of flows with all peers in turn.
func (b *bench) growth(ctx context.Context, rounds int) ([]row, error) {
	var policies, peers []scale
	const many = 64_000
	for _, n := range []int{1, 100, 1000, 10_000} {
		policies = append(policies, scale{name: fmt.Sprintf("%d policies", n), world: world{policies: n, pods: many, direction: model.Egress, anyPod: true}})
	}
	for _, n := range []int{1000, 10_000, 100_000, 1_000_000} {
		peers = append(peers, scale{name: fmt.Sprintf("%d peers", n), world: world{policies: 1000, pods: n, direction: model.Egress, anyPod: true}})
	}
	rows, err := b.series(ctx, "growth: program runs, 64000 peers", policies, paths(many, goal{times: 1.1}), rounds)
	if err != nil {
		return nil, err
	}
	more, err := b.series(ctx, "growth: program runs, 1000 policies", peers, paths(1000, goal{}), rounds)
	return append(rows, more...), err
}

// series measures all worlds of a series in each round.
func (b *bench) series(ctx context.Context, part string, scales []scale, paths []path, rounds int) ([]row, error) {
	pins, unmount, err := mountBPF()
	if err != nil {
		return nil, err
	}
	defer unmount()
	for i := range scales {
		s := &scales[i]
		if s.path, err = s.load(filepath.Join(pins, strconv.Itoa(i))); err != nil {
			return nil, err
		}
		defer s.path.Close()
	}
	var rows []row
	for _, p := range paths {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		figures := make([]figure, len(scales))
		for range rounds {
			for i, s := range scales {
				ns, err := b.walk(p.in(s.world), s.path.Program(model.Egress))
				if err != nil {
					return nil, fmt.Errorf("%s, %s: %w", p.name, s.name, err)
				}
				figures[i] = append(figures[i], ns)
			}
		}
		for i, s := range scales {
			r := newRow(part, p.name+", "+s.name, "ns", figures[i])
			if i > 0 {
				r = r.beside(scales[0].name, figures[0], p.goal)
			}
			rows = append(rows, r)
		}
	}
	return rows, nil
}

// mountBPF mounts a separate bpffs, for maps that no other process sees.
func mountBPF() (dir string, unmount func(), err error) {
	if dir, err = os.MkdirTemp("", "isthmus-bench-"); err != nil {
		return "", nil, err
	}
	if err := unix.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		return "", nil, errors.Join(fmt.Errorf("mount a bpffs: %w", err), os.Remove(dir))
	}
	return dir, func() {
		_ = unix.Unmount(dir, unix.MNT_DETACH) // a leftover mount is harmless
		_ = os.Remove(dir)
	}, nil
}

// walk returns the cost of one path in ns, including the cost of an empty program.
func (b *bench) walk(p path, program *ebpf.Program) (float64, error) {
	for _, frame := range p.before {
		if code, err := program.Run(&ebpf.RunOptions{Data: frame}); err != nil || code == shot {
			return 0, fmt.Errorf("run program over a packet before: %d %w", code, err)
		}
	}
	if p.flows == 0 {
		return b.time(program, p.frame, p.passes)
	}
	if err := b.floor.Flows.Set(p.flows); err != nil {
		return 0, err
	}
	if err := b.floor.Addresses.Set(p.addresses); err != nil {
		return 0, err
	}
	empty, err := b.time(b.floor.Empty, p.frame, true)
	if err != nil {
		return 0, err
	}
	around, err := b.through(b.floor.Empty, p.frame, true)
	if err != nil {
		return 0, err
	}
	ours, err := b.through(program, p.frame, p.passes)
	return ours - around + empty, err
}

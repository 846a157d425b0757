// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/link"
	"github.com/isthmus-net/isthmus/linux/probe"
	"github.com/isthmus-net/isthmus/test/bench/floor"
	"github.com/isthmus-net/isthmus/test/netns"
)

// injector makes datagrams arrive at the host's end of a pod's veth pair, as if the pod had sent
// them. It counts the datagrams that reach the interface of the other pod. All work in between
// happens on one CPU.
type injector struct {
	floor.FloorObjects
	sinks []io.Closer
}

// end removes the programs that count and drop the datagrams.
func (in *injector) end() error {
	var errs []error
	for _, s := range in.sinks {
		errs = append(errs, s.Close())
	}
	return errors.Join(append(errs, in.Close())...)
}

// newInjector attaches programs to the pods of all setups. They count and drop the datagrams until
// end is called.
func newInjector(w *setups) (*injector, error) {
	in := &injector{}
	if err := floor.LoadFloorObjects(&in.FloorObjects, nil); err != nil {
		return nil, fmt.Errorf("load programs: %w", err)
	}
	for _, of := range w.list {
		if of.node == nil {
			continue
		}
		for _, pod := range []*netns.NS{of.client, of.server} {
			if err := pod.Do(in.swallow); err != nil {
				return nil, errors.Join(fmt.Errorf("end %s: %w", of.name, err), in.end())
			}
		}
	}
	return in, nil
}

// swallow attaches the counting program to the pod in whose namespace the caller is.
func (in *injector) swallow() error {
	l, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	on, err := attach(in.Sink, l.Attrs().Index)
	if err == nil {
		in.sinks = append(in.sinks, on)
	}
	return err
}

// restart begins to count packets from zero.
func (in *injector) restart() error {
	return errors.Join(in.Begun.Set(uint64(0)), in.Sunk.Set(uint64(0)))
}

// load describes the injected packets.
type load struct {
	name  string
	v6    bool
	flows uint32
}

// establish sends one packet in each flow, and an answer to it. If a program evaluates them, they come out too late to be
// counted, and are sent again.
func (in *injector) establish(of *setup, l load) error {
	err := in.sendFirst(of, l)
	for attempt := 1; err != nil && of.queued != nil && attempt < 5; attempt++ {
		err = in.sendFirst(of, l)
	}
	return err
}

func (in *injector) sendFirst(of *setup, l load) error {
	if err := in.InOrder.Set(uint32(1)); err != nil {
		return err
	}
	var errs []error
	for _, answers := range []bool{false, true} {
		_, err := in.run(of, l, answers, max(l.flows, 64))
		errs = append(errs, err, of.drain())
	}
	return errors.Join(append(errs, in.InOrder.Set(uint32(0)))...)
}

// run sends the given number of packets from the client, or of answers from the server, and returns
// the time per packet in ns.
func (in *injector) run(of *setup, l load, answers bool, packets uint32) (float64, error) {
	v6, reverse := uint32(0), uint32(0)
	if l.v6 {
		v6 = 1
	}
	from, f, source := of.entry, model.Flow{Src: clientIPs[v6], Dst: serverIPs[v6], Protocol: model.UDP, Port: open}, uint16(0)
	if answers {
		from, f.Src, f.Dst, source, reverse = of.exit, f.Dst, f.Src, open, 1
	}
	frame := datagram(f, source, from)
	err := errors.Join(in.Injected.Set(frame), in.InjectV6.Set(v6), in.InjectAnswers.Set(reverse), in.Flows.Set(l.flows),
		in.Expected.Set(uint64(packets)), in.restart())
	if err != nil {
		return 0, err
	}
	// struct xdp_md: data, data_end, data_meta, ingress_ifindex, ...
	context := [6]uint32{1: uint32(len(frame)), 3: uint32(from.Index)}
	node := of.node
	if answers && of.far != nil {
		node = of.far
	}
	err = node.Do(func() error {
		if err := prefer(benchCPU); err != nil {
			return err
		}
		var failed error
		_, err := in.Inject.Run(&ebpf.RunOptions{Data: frame[:], Context: &context, Repeat: packets, Flags: unix.BPF_F_TEST_XDP_LIVE_FRAMES, BatchSize: 64,
			//lint:ignore SA1019 nothing else tells that a signal interrupted it and it begins again
			Reset: func() { failed = in.restart() }})
		return errors.Join(err, failed)
	})
	if err != nil {
		return 0, fmt.Errorf("inject packets: %w", err)
	}
	var arrived, began, ended uint64
	if err := errors.Join(in.Sunk.Get(&arrived), in.BeganAt.Get(&began), in.EndedAt.Get(&ended)); err != nil {
		return 0, err
	}
	if arrived != uint64(packets) {
		return 0, fmt.Errorf("%d of %d packets came out", arrived, packets)
	}
	rest(time.Duration(ended - began))
	return float64(ended-began) / float64(packets), nil
}

// datagram returns a frame with an IPv4 header checksum. The UDP checksum is optional, and no
// receiver reads it.
func datagram(f model.Flow, source uint16, p link.Pair) [64]byte {
	var frame [64]byte
	b := probe.First(f, source, p.PodMAC, p.HostMAC)
	copy(frame[:], b)
	ip := frame[14:]
	if f.Src.Is6() {
		binary.BigEndian.PutUint16(ip[4:], uint16(len(frame)-14-40))
		binary.BigEndian.PutUint16(ip[40+4:], uint16(len(frame)-14-40))
		return frame
	}
	binary.BigEndian.PutUint16(ip[2:], uint16(len(frame)-14))
	binary.BigEndian.PutUint16(ip[20+4:], uint16(len(frame)-14-20))
	sum := uint32(0)
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum))
	return frame
}

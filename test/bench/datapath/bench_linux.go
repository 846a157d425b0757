// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/ebpf"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/loader"
	"github.com/isthmus-net/isthmus/linux/policymap"
	"github.com/isthmus-net/isthmus/linux/probe"
	"github.com/isthmus-net/isthmus/test/bench/floor"
)

// The pod that sends, and its source port.
var (
	podMAC = net.HardwareAddr{2, 0, 0, 0, 0, 1}
	pod    = netip.MustParseAddr("10.0.0.2")
)

const port = 9

// shot is TC_ACT_SHOT, which programs return for a dropped packet.
const shot = 2

// first is the address of flow 0 of bpf/bench.bpf.c.
var first = [4]byte{10, 128, 0, 0}

// Tables of the real program: the first allows every packet, the second depends on the port.
const (
	allowTable = 1<<2 | 1<<model.Egress
	denyTable  = 2 << 2
	mixedRow   = 2 // the bit of portClass is 0
	portClass  = 5
	classes    = 64
	tables     = 128
)

// bench holds the programs and their maps.
type bench struct {
	repeat int
	floor  floor.FloorObjects
	path   *loader.DataPath
	// opening is a TCP SYN, flowing a later segment.
	opening, flowing []byte
}

// benchCase is one kind of packet through a program.
type benchCase struct {
	name             string
	flows, addresses uint32
	table            uint32 // of the pod
	opens            bool
	passes           bool
	floor, ours      *ebpf.Program
	goal             goal
}

// longLived are the settings of a node on which flows do not expire during the measurement.
var longLived = loader.Settings{Timeouts: loader.Timeouts{Opening: time.Hour, TCP: time.Hour, Other: time.Hour, Closing: time.Hour},
	Events: loader.DefaultEvents()}

func newBench(repeat int) (*bench, error) { return newBenchWith(repeat, longLived) }

func newBenchWith(repeat int, settings loader.Settings) (*bench, error) {
	b := &bench{repeat: repeat}
	if err := floor.LoadFloorObjects(&b.floor, nil); err != nil {
		return nil, fmt.Errorf("load floor programs: %w", err)
	}
	var err error
	if b.path, err = loader.OpenSandboxWith(settings); err != nil {
		b.floor.Close()
		return nil, err
	}
	e := bpfobj.PodEndpoint{Ip4: pod.As4()}
	copy(e.Mac[:], podMAC)
	if err := b.path.PutEndpoint(loader.SandboxInterface, e); err != nil {
		b.close()
		return nil, err
	}
	f := model.Flow{Src: pod, Dst: netip.AddrFrom4(first), Protocol: model.TCP, Port: port}
	b.opening = probe.First(f, 1024, podMAC, hostMAC)
	b.flowing = slices.Clone(b.opening)
	b.flowing[14+20+13] = 0x10 // ACK
	if err := b.fill(); err != nil {
		b.close()
		return nil, err
	}
	return b, nil
}

func (b *bench) close() {
	b.floor.Close()
	b.path.Close()
}

func (b *bench) cases() []benchCase {
	var all []benchCase
	for _, n := range []uint32{1, 1000, 64_000} {
		all = append(all, benchCase{name: fmt.Sprintf("established, %d flows", n), flows: n, addresses: min(n, 1000),
			table: allowTable, passes: true, floor: b.floor.Established, ours: b.path.Program(model.Egress), goal: goal{times: 1.7}})
	}
	for _, n := range []uint32{1, 1000, 64_000} {
		all = append(all, benchCase{name: fmt.Sprintf("verdict of a new flow, %d addresses", n), flows: n, addresses: n,
			table: denyTable, opens: true, floor: b.floor.Verdict, ours: b.path.Program(model.Egress), goal: goal{times: 1.15}})
	}
	return append(all, benchCase{name: "new flow, allowed, full flow table", flows: 60_000_000, addresses: 1000,
		table: allowTable, opens: true, passes: true, floor: b.floor.Opened, ours: b.path.Program(model.Egress), goal: goal{times: 1.5}})
}

// fill writes 65,536 addresses and 16,384 verdicts into both sets of maps.
func (b *bench) fill() error {
	// Each verdict has a cause for each class of ports, and each default one cause.
	const causes = bpfobj.CausesByPort | 1<<bpfobj.CausesWidth
	w := &policymap.Writes{
		Blocks: []policymap.BlockWrite{{Block: policymap.CauseBlock{10, 11, 10, 10, 10, 10, 10, 10}}},
		Rows:   []policymap.RowWrite{{Index: mixedRow}},
		Ports:  []policymap.PortWrite{{Index: port, Count: 1, Class: portClass}},
	}
	for i := range uint32(65536) {
		a := netip.AddrFrom4([4]byte{first[0], first[1], byte(i >> 8), byte(i)})
		w.Peers = append(w.Peers, policymap.PeerWrite{Addr: a, Class: 1 + i%(classes-1), Pod: true})
		if err := b.floor.FloorPeers.Put(a.As4(), floor.FloorPeerClass{Class: 1 + i%(classes-1)}); err != nil {
			return err
		}
	}
	for t := range uint32(tables) {
		for peer := range uint32(classes * 2) {
			w.Verdicts = append(w.Verdicts, policymap.VerdictWrite{VerdictKey: policymap.VerdictKey{Table: denyTable + t<<2, Peer: peer},
				VerdictRow: policymap.VerdictRow{Row: mixedRow, Causes: causes}})
			key := floor.FloorFloorVerdictKey{Table: denyTable + t<<2, Peer: peer, Port: portClass}
			if err := b.floor.FloorVerdicts.Put(key, floor.FloorVerdictRow{}); err != nil {
				return err
			}
		}
	}
	w.Defaults = append(w.Defaults, bpfobj.PodTableCause{Table: allowTable, Causes: [2]uint32{12, 13}})
	if err := b.floor.FloorPorts.Put(uint32(port), floor.FloorPortClass{Class: portClass}); err != nil {
		return err
	}
	if err := b.floor.FloorSlots.Put(uint32(0), floor.FloorSlot{Table: denyTable}); err != nil {
		return err
	}
	return b.path.Execute(w)
}

// programs measures all cases together with their floors.
func (b *bench) programs(ctx context.Context, rounds int) ([]row, error) {
	var rows []row
	for _, c := range b.cases() {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		empty, floor, ours, err := b.sample(c, rounds)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
		if len(rows) == 0 {
			rows = append(rows, newRow("program runs", "empty program", "ns", empty))
		}
		rows = append(rows, newRow("program runs", c.name, "ns", ours).beside("least program", floor, c.goal))
	}
	return rows, nil
}

// sample measures a case several times. Each round runs all programs in turn, so that a disturbance
// of the machine affects all of them. floor and ours include the cost of an empty program.
func (b *bench) sample(c benchCase, rounds int) (empty, floor, ours figure, err error) {
	if err = b.prepare(c); err != nil {
		return
	}
	if err = errors.Join(b.forget(), b.visit(c.floor, c), b.visit(c.ours, c)); err != nil {
		return
	}
	if c.floor == b.floor.Opened {
		if err = b.full(); err != nil {
			return
		}
	}
	frame := b.frame(c)
	for range rounds {
		nothing, around, err := b.overhead(frame)
		if err != nil {
			return nil, nil, nil, err
		}
		least, err := b.through(c.floor, frame, c.passes)
		if err != nil {
			return nil, nil, nil, err
		}
		real, err := b.through(c.ours, frame, c.passes)
		if err != nil {
			return nil, nil, nil, err
		}
		empty, floor, ours = append(empty, nothing), append(floor, least-around+nothing), append(ours, real-around+nothing)
	}
	return empty, floor, ours, nil
}

// prepare gives the pod the table of a case, and chooses its flows.
func (b *bench) prepare(c benchCase) error {
	return errors.Join(b.path.WriteSlot(policymap.SlotWrite{Slot: bpfobj.PodSlot{Table: c.table, Epoch: 1}}),
		b.floor.Flows.Set(c.flows), b.floor.Addresses.Set(c.addresses))
}

// frame returns the packet of a case.
func (b *bench) frame(c benchCase) []byte {
	if c.opens {
		return b.opening
	}
	return b.flowing
}

// overhead measures an empty program, and an empty program after shuffle.
func (b *bench) overhead(frame []byte) (nothing, around float64, err error) {
	if nothing, err = b.time(b.floor.Empty, frame, true); err != nil {
		return 0, 0, err
	}
	around, err = b.through(b.floor.Empty, frame, true)
	return nothing, around, err
}

// forget removes the flows of the least programs: of those that one case opened, the eviction of
// another knows nothing.
func (b *bench) forget() error {
	var key, flow []byte
	var keys [][]byte
	all := b.floor.FloorConns.Iterate()
	for all.Next(&key, &flow) {
		keys = append(keys, slices.Clone(key))
	}
	if err := all.Err(); err != nil {
		return fmt.Errorf("list flows: %w", err)
	}
	for _, k := range keys {
		if err := b.floor.FloorConns.Delete(k); err != nil {
			return fmt.Errorf("remove flow: %w", err)
		}
	}
	return nil
}

// full checks that the flow table of the least program is full, so that each new flow evicts one.
func (b *bench) full() error {
	var share floor.FloorFlowShare
	if err := b.floor.FloorShares.Lookup(uint32(0), &share); err != nil {
		return err
	}
	if got, want := share.Flows[0], b.floor.FloorConns.MaxEntries(); uint32(got) != want {
		return fmt.Errorf("the least program has %d flows, its table has room for %d", got, want)
	}
	return nil
}

// mostVisited bounds the number of flows that visit opens. It exceeds the size of the flow table.
const mostVisited = 200_000

// visit opens every flow, and sends one packet in each.
func (b *bench) visit(p *ebpf.Program, c benchCase) error {
	if err := b.floor.InOrder.Set(uint32(1)); err != nil {
		return err
	}
	if err := b.floor.Target.Put(uint32(0), p); err != nil {
		return err
	}
	for _, frame := range [][]byte{b.opening, b.flowing} {
		if _, _, err := b.floor.Shuffle.Benchmark(frame, int(min(c.flows, mostVisited)), nil); err != nil {
			return err
		}
	}
	return b.floor.InOrder.Set(uint32(0))
}

// through returns the cost of shuffle and the program that it calls.
func (b *bench) through(p *ebpf.Program, frame []byte, passes bool) (float64, error) {
	if err := b.floor.Target.Put(uint32(0), p); err != nil {
		return 0, fmt.Errorf("choose program: %w", err)
	}
	return b.time(b.floor.Shuffle, frame, passes)
}

// time runs a program and checks that each packet has the intended fate.
func (b *bench) time(p *ebpf.Program, frame []byte, passes bool) (float64, error) {
	code, perRun, err := p.Benchmark(frame, b.repeat, nil)
	if err != nil {
		return 0, fmt.Errorf("run program: %w", err)
	}
	if got := code != shot; got != passes {
		return 0, fmt.Errorf("the packet passes: %t, should: %t", got, passes)
	}
	rest(perRun * time.Duration(b.repeat))
	return float64(perRun), nil
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"github.com/cilium/ebpf"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/denymap"
	"github.com/isthmus-net/isthmus/linux/loader"
	"github.com/isthmus-net/isthmus/linux/policymap"
	"github.com/isthmus-net/isthmus/linux/probe"
	"github.com/isthmus-net/isthmus/linux/xdp"
	"github.com/isthmus-net/isthmus/test/bench/floor"
)

// uplinkBench is the XDP program and its floors.
type uplinkBench struct {
	repeat int
	floor  floor.LeastObjects
	pods   *loader.DataPath
	filter *xdp.Filter
}

// uplinkCase is one kind of packet on an uplink.
type uplinkCase struct {
	name    string
	sources uint32
	listed  int // number of sources on the deny list; 0: no list
	opens   bool
	passes  bool
	floor   *ebpf.Program
	goal    goal
}

func newUplinkBench(repeat int) (*uplinkBench, error) {
	u := &uplinkBench{repeat: repeat}
	if err := floor.LoadLeastObjects(&u.floor, nil); err != nil {
		return nil, fmt.Errorf("load floor programs: %w", err)
	}
	var err error
	if u.pods, err = loader.OpenSandbox(); err == nil {
		if u.filter, err = xdp.OpenSandbox(u.pods.Shared(), u.pods.Constants()); err == nil {
			err = u.fill()
		}
	}
	if err != nil {
		u.close()
		return nil, err
	}
	return u, nil
}

func (u *uplinkBench) close() {
	u.floor.Close()
	if u.filter != nil {
		u.filter.Close()
	}
	if u.pods != nil {
		u.pods.Close()
	}
}

// cases returns the cases. An accepted packet may cost twice an empty program.
func (u *uplinkBench) cases() []uplinkCase {
	f := &u.floor
	return []uplinkCase{
		{name: "XDP, allowed, no deny list", sources: 1000, passes: true, floor: f.XdpEmpty, goal: goal{times: 2}},
		{name: "XDP, allowed, 100,000 entries elsewhere", sources: 1000, listed: 100_000, passes: true, floor: f.XdpEmpty, goal: goal{times: 2}},
		{name: "XDP, listed source of 1,000", sources: 1000, listed: 1000, floor: f.XdpListed, goal: goal{times: 1.3}},
		{name: "XDP, denied new flow, 1,000 addresses", sources: 1000, opens: true, floor: f.XdpRefused, goal: goal{times: 1.5}},
		{name: "XDP, denied new flow, 64,000 addresses", sources: 64_000, opens: true, floor: f.XdpRefused, goal: goal{times: 1.5}},
	}
}

// fill adds a pod of the node, with 65,536 addresses and 16,384 verdicts in both sets of maps.
func (u *uplinkBench) fill() error {
	w := &policymap.Writes{Rows: []policymap.RowWrite{{Index: mixedRow}}, Ports: []policymap.PortWrite{{Index: port, Count: 1, Class: portClass}}}
	for i := range uint32(65536) {
		a := netip.AddrFrom4([4]byte{first[0], first[1], byte(i >> 8), byte(i)})
		w.Peers = append(w.Peers, policymap.PeerWrite{Addr: a, Class: 1 + i%(classes-1)})
		if err := u.floor.LeastPeers.Put(a.As4(), floor.LeastPeerClass{Class: 1 + i%(classes-1)}); err != nil {
			return err
		}
	}
	for t := range uint32(tables) {
		for peer := range uint32(classes * 2) {
			w.Verdicts = append(w.Verdicts, policymap.VerdictWrite{VerdictKey: policymap.VerdictKey{Table: denyTable + t<<2, Peer: peer},
				VerdictRow: policymap.VerdictRow{Row: mixedRow}})
			key := floor.LeastLeastVerdictKey{Table: denyTable + t<<2, Peer: peer, Port: portClass}
			if err := u.floor.LeastVerdicts.Put(key, floor.LeastVerdictRow{}); err != nil {
				return err
			}
		}
	}
	if err := u.floor.LeastPorts.Put(uint32(port), floor.LeastPortClass{Class: portClass}); err != nil {
		return err
	}
	if err := u.floor.LeastSlots.Put(uint32(0), floor.LeastSlot{Table: denyTable}); err != nil {
		return err
	}
	if err := u.floor.LeastLocals.Put(pod.As4(), floor.LeastSlotIndex{}); err != nil {
		return err
	}
	if err := u.pods.WriteSlot(policymap.SlotWrite{Slot: bpfobj.PodSlot{Table: denyTable, Epoch: 1}}); err != nil {
		return err
	}
	if err := u.pods.PutEndpoint(loader.SandboxInterface, bpfobj.PodEndpoint{Ip4: pod.As4()}); err != nil {
		return err
	}
	return u.pods.Execute(w)
}

// list makes the deny list of a case: its sources if they must be dropped, otherwise the same
// number of other sources.
func (u *uplinkBench) list(c uplinkCase) error {
	e := denymap.NewEntries()
	for i := range c.listed {
		a := netip.AddrFrom4([4]byte{first[0], first[1], byte(i >> 8), byte(i)})
		if c.passes {
			a = netip.AddrFrom4([4]byte{172, byte(i >> 13), byte(i >> 5), byte(i << 3)})
		} else if err := u.floor.LeastDenied.Put(a.As4(), uint32(0)); err != nil {
			return err
		}
		e.Singles[a] = denymap.Deny
	}
	return u.filter.Apply(e)
}

// sample measures a case, like bench.sample for the pod's programs.
func (u *uplinkBench) sample(c uplinkCase, rounds int) (empty, floor, ours figure, err error) {
	if err = u.list(c); err != nil {
		return
	}
	if err = u.floor.Sources.Set(c.sources); err != nil {
		return
	}
	f := model.Flow{Src: netip.AddrFrom4(first), Dst: pod, Protocol: model.TCP, Port: port}
	frame := probe.First(f, 1024, net.HardwareAddr{2, 0, 0, 0, 0, 2}, podMAC)
	if !c.opens {
		frame[14+20+13] = 0x10 // ACK
	}
	for range rounds {
		var nothing, around, least, mine float64
		if nothing, err = u.time(u.floor.XdpEmpty, frame, true); err != nil {
			return
		}
		if around, err = u.through(u.floor.XdpEmpty, frame, true); err != nil {
			return
		}
		if least, err = u.through(c.floor, frame, c.passes); err != nil {
			return
		}
		if mine, err = u.through(u.filter.Program(), frame, c.passes); err != nil {
			return
		}
		empty = append(empty, nothing)
		floor = append(floor, least-around+nothing)
		ours = append(ours, mine-around+nothing)
	}
	return
}

func (u *uplinkBench) through(p *ebpf.Program, frame []byte, passes bool) (float64, error) {
	if err := u.floor.XdpTarget.Put(uint32(0), p); err != nil {
		return 0, fmt.Errorf("choose program: %w", err)
	}
	return u.time(u.floor.XdpShuffle, frame, passes)
}

// time runs a program and checks that each packet has the intended fate.
func (u *uplinkBench) time(p *ebpf.Program, frame []byte, passes bool) (float64, error) {
	code, perRun, err := p.Benchmark(frame, u.repeat, nil)
	if err != nil {
		return 0, fmt.Errorf("run program: %w", err)
	}
	const dropped, passed = 1, 2 // XDP_DROP, XDP_PASS
	if want := map[bool]uint32{false: dropped, true: passed}[passes]; code != want {
		return 0, fmt.Errorf("the program returned %d, should return %d", code, want)
	}
	return float64(perRun), nil
}

// uplinks measures all cases.
func uplinks(ctx context.Context, rounds, repeat int) ([]row, error) {
	u, err := newUplinkBench(repeat)
	if err != nil {
		return nil, err
	}
	defer u.close()
	var rows []row
	for _, c := range u.cases() {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		empty, floor, ours, err := u.sample(c, rounds)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
		if len(rows) == 0 {
			rows = append(rows, newRow("uplink", "empty XDP program", "ns", empty))
		}
		name := "least program"
		if c.passes {
			name = "empty XDP program"
		}
		rows = append(rows, newRow("uplink", c.name, "ns", ours).beside(name, floor, c.goal))
	}
	return rows, nil
}

// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/flowtable"
)

// Interface indexes in test runs: the interface of the pod, an interface by which packets from
// elsewhere arrive, and none for packets of the host itself.
const (
	SandboxInterface = 1
	SandboxUplink    = 2
	SandboxHost      = 0
)

// OpenSandbox is OpenSandboxWith the default settings.
func OpenSandbox() (*DataPath, error) { return OpenSandboxWith(DefaultSettings()) }

// OpenSandboxWith loads the programs with private maps, which Close removes. It pins and
// attaches nothing; Run sends the packets.
func OpenSandboxWith(s Settings) (*DataPath, error) {
	spec, err := s.programs()
	if err != nil {
		return nil, fmt.Errorf("read the embedded programs: %w", err)
	}
	for _, m := range spec.Maps {
		m.Pinning = ebpf.PinNone
	}
	if s.Flows > 0 {
		for table, derived := range flowtable.Derived {
			for _, name := range append(derived, table) {
				spec.Maps[name].MaxEntries = uint32(s.Flows)
			}
		}
	}
	d := &DataPath{pins: make(Pins), foreign: s.Foreign, observeNode: s.ObserveNode, instrument: s.Instrument}
	if d.constants, err = s.constants(spec); err != nil {
		return nil, err
	}
	if err := errors.Join(setConstants(spec, d.constants), setConstants(spec, map[string]uint32{"decides_alone": 1})); err != nil {
		return nil, err
	}
	if d.queries = s.Tracking != nil && s.Tracking() != NoTracking; d.queries {
		if err := spec.Variables["has_nf_conntrack"].Set(true); err != nil {
			return nil, fmt.Errorf("set has_nf_conntrack: %w", err)
		}
	}
	if err := d.instrumented(spec); err != nil {
		return nil, err
	}
	if err := spec.LoadAndAssign(&d.objects, nil); err != nil {
		return nil, explain("", err)
	}
	if err := d.shareMemory(); err != nil {
		d.Close()
		return nil, err
	}
	if err := d.loadEgress(); err != nil {
		d.Close()
		return nil, err
	}
	if err := d.loadForward(); err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

// instrumented changes the programs of a spec by the instrument of the sandbox settings.
func (d *DataPath) instrumented(spec *ebpf.CollectionSpec) error {
	if d.instrument == nil {
		return nil
	}
	return d.instrument(spec)
}

// Run sends an Ethernet frame through the real program by BPF_PROG_TEST_RUN. For Egress the pod
// of e sends it, for Ingress it arrives for the pod from outside. Run returns whether the frame
// passes.
func (d *DataPath) Run(e bpfobj.PodEndpoint, dir model.Direction, frame []byte) (bool, error) {
	return d.RunFrom(e, dir, SandboxUplink, frame)
}

// RunFrom is Run for a frame that arrived by the interface with that index. If the verdict is
// due after DNAT, RunFrom evaluates it at once, because a sandbox translates nothing.
func (d *DataPath) RunFrom(e bpfobj.PodEndpoint, dir model.Direction, device int, frame []byte) (bool, error) {
	if e != d.running {
		if err := d.PutEndpoint(SandboxInterface, e); err != nil {
			return false, err
		}
		d.running = e
	}
	fate, after, err := d.run(SandboxInterface, dir, device, frame)
	if err != nil || fate != toStack || dir == model.Ingress {
		return fate != dropped, err
	}
	return d.afterDNAT(after.Mark, frame)
}

// RunOn is Run for the interface of an endpoint that was put before. Several goroutines may
// call it. It does not return whether the frame passes.
func (d *DataPath) RunOn(ifindex int, dir model.Direction, frame []byte) error {
	fate, after, err := d.run(ifindex, dir, SandboxUplink, frame)
	if err == nil && fate == toStack && dir == model.Egress {
		_, err = d.afterDNATFrom(ifindex, after.Mark, frame)
	}
	return err
}

// The verdicts of a program on a frame.
const (
	toStack = iota
	redirected
	dropped
)

// run sends a frame through the program of an interface.
func (d *DataPath) run(ifindex int, dir model.Direction, device int, frame []byte) (fate int, after skb, err error) {
	context := newSKB(dir, device)
	context.Ifindex = uint32(ifindex)
	code, err := d.Program(dir).Run(&ebpf.RunOptions{Data: frame, Context: context, ContextOut: &after})
	if err != nil {
		return dropped, after, fmt.Errorf("run program: %w", err)
	}
	const unspec, shot, redirect = 0xffffffff, 2, 7 // TC_ACT_UNSPEC, TC_ACT_SHOT, TC_ACT_REDIRECT
	switch code {
	case unspec:
		return toStack, after, nil
	case redirect:
		return redirected, after, nil
	case shot:
		return dropped, after, nil
	}
	return dropped, after, fmt.Errorf("program returned %d, neither pass nor drop", code)
}

// skb is struct __sk_buff, as test runs take and return it.
type skb struct {
	Len, PktType, Mark uint32
	_                  [36 - 12]byte
	IngressIfindex     uint32
	Ifindex            uint32
	_                  [192 - 44]byte
}

// newSKB returns the context of a packet at the start of a program. A packet to the pod arrives
// by a device.
func newSKB(dir model.Direction, device int) (c skb) {
	if dir == model.Ingress {
		c.IngressIfindex = uint32(device)
	}
	return c
}

// Repeat runs a frame through the program many times, for the endpoint of the last Run or
// PutEndpoint. The counters hold the verdicts.
func (d *DataPath) Repeat(dir model.Direction, frame []byte, times int) error {
	_, err := d.Program(dir).Run(&ebpf.RunOptions{Data: frame, Context: newSKB(dir, SandboxUplink), Repeat: uint32(times)})
	if err != nil {
		return fmt.Errorf("run program: %w", err)
	}
	return nil
}

// afterDNAT runs the filter of the netfilter hook FORWARD, which decides after DNAT.
func (d *DataPath) afterDNAT(mark uint32, frame []byte) (bool, error) {
	return d.afterDNATFrom(SandboxInterface, mark, frame)
}

func (d *DataPath) afterDNATFrom(ifindex int, mark uint32, frame []byte) (bool, error) {
	if err := d.loadForward(); err != nil {
		return false, err
	}
	drop, err := d.egress.filters[forward].Run(&ebpf.RunOptions{Data: frame, Context: skb{Mark: mark, IngressIfindex: uint32(ifindex)}})
	if err != nil {
		return false, fmt.Errorf("run filter: %w", err)
	}
	return drop == 0, nil
}

// AdvanceRecords makes the programs go on as if they had stored more records of packets.
func (d *DataPath) AdvanceRecords(by uint64) error {
	m := d.objects.PostDnatCount
	var count bpfobj.PodRecordCount
	if err := m.Lookup(uint32(0), &count); err != nil {
		return fmt.Errorf("read the number of records: %w", err)
	}
	count.Written += by
	if err := m.Put(uint32(0), count); err != nil {
		return fmt.Errorf("write the number of records: %w", err)
	}
	return nil
}

// ChangeMode makes the programs in the host stack those of the other mode, as they are for a moment when a node changes its
// mode. Those of pods stay.
func (d *DataPath) ChangeMode() error {
	was := d.egress
	d.foreign, d.egress = !d.foreign, egress{}
	return errors.Join(d.loadEgress(), d.loadForward(), was.close())
}

// Program returns the program that decides one direction of pod traffic. The DataPath closes
// it.
func (d *DataPath) Program(dir model.Direction) *ebpf.Program {
	if dir == model.Egress {
		return d.objects.FromPod
	}
	return d.objects.ToPod
}

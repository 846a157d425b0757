// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/bpfobj"
)

// SandboxInterface is the index of the interface that test runs seem to come
// from.
const SandboxInterface = 1

// OpenSandbox is OpenSandboxWith the default timeouts.
func OpenSandbox() (*DataPath, error) { return OpenSandboxWith(DefaultTimeouts()) }

// OpenSandboxWith loads the programs with maps of their own that nobody else sees
// and that go with Close. Nothing is pinned or attached; packets come from Run.
func OpenSandboxWith(t Timeouts) (*DataPath, error) {
	spec, err := bpfobj.LoadPod()
	if err != nil {
		return nil, fmt.Errorf("read the embedded programs: %w", err)
	}
	for _, m := range spec.Maps {
		m.Pinning = ebpf.PinNone
	}
	if err := setTimeouts(spec, t); err != nil {
		return nil, err
	}
	d := &DataPath{}
	if err := spec.LoadAndAssign(&d.objects, nil); err != nil {
		return nil, explain("", err)
	}
	if err := d.shareMemory(); err != nil {
		d.Close()
		return nil, err
	}
	if err := d.loadEgress(t); err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

// Run sends an Ethernet frame through the real program by BPF_PROG_TEST_RUN: for
// Egress as if e's pod had sent it, for Ingress as if it was on its way to the
// pod. What is decided behind the translation is decided at once, as nothing
// translates. It returns whether the frame passes.
func (d *DataPath) Run(e bpfobj.PodEndpoint, dir model.Direction, frame []byte) (bool, error) {
	if e != d.running {
		if err := d.PutEndpoint(SandboxInterface, e); err != nil {
			return false, err
		}
		d.running = e
	}
	var after skb
	code, err := d.Program(dir).Run(&ebpf.RunOptions{Data: frame, Context: skb{}, ContextOut: &after})
	if err != nil {
		return false, fmt.Errorf("run program: %w", err)
	}
	const unspec, shot, redirect = 0xffffffff, 2, 7 // TC_ACT_UNSPEC, TC_ACT_SHOT, TC_ACT_REDIRECT
	switch code {
	case unspec:
		if dir == model.Ingress {
			return true, nil
		}
		return d.behind(after.Mark, frame)
	case redirect:
		return true, nil
	case shot:
		return false, nil
	}
	return false, fmt.Errorf("program returned %d, neither pass nor drop", code)
}

// skb is struct __sk_buff, as test runs take and return it.
type skb struct {
	Len, PktType, Mark uint32
	_                  [192 - 12]byte
}

// behind runs the filter that stands for the hooks of netfilter.
func (d *DataPath) behind(mark uint32, frame []byte) (bool, error) {
	drop, err := d.egress.filter.Run(&ebpf.RunOptions{Data: frame, Context: skb{Mark: mark}})
	if err != nil {
		return false, fmt.Errorf("run filter: %w", err)
	}
	return drop == 0, nil
}

// Program is the one that decides a direction of a pod's traffic. It is the
// DataPath's to close.
func (d *DataPath) Program(dir model.Direction) *ebpf.Program {
	if dir == model.Egress {
		return d.objects.FromPod
	}
	return d.objects.ToPod
}

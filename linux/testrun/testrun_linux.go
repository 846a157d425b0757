// SPDX-License-Identifier: Apache-2.0

package testrun

import (
	"runtime"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Run is one BPF_PROG_TEST_RUN. ebpf.Program.Run copies the context twice and masks signals
// around each call, which takes longer than the programs.
type Run struct {
	Data    []byte
	Out     []byte // cut to the length of the frame after the program
	Context []byte
	After   []byte // the context after the program
	Code    uint32 // the result of the program
	Times   uint32 // how often it runs; 0 is once. Code, Out and After are of the last time
}

// attributes is the part of union bpf_attr for BPF_PROG_TEST_RUN (linux/bpf.h).
type attributes struct {
	program, code, dataSize, outSize         uint32
	data, out                                uint64
	repeat, duration, contextSize, afterSize uint32
	context, after                           uint64
	flags, cpu, batch, _                     uint32
}

// Of runs a program.
func (t *Run) Of(p *ebpf.Program) error {
	var pin runtime.Pinner
	defer pin.Unpin()
	at := func(b []byte) uint64 {
		if len(b) == 0 {
			return 0
		}
		pin.Pin(&b[0])
		return uint64(uintptr(unsafe.Pointer(&b[0])))
	}
	attr := attributes{
		program: uint32(p.FD()), repeat: max(t.Times, 1),
		dataSize: uint32(len(t.Data)), outSize: uint32(len(t.Out)), data: at(t.Data), out: at(t.Out),
		contextSize: uint32(len(t.Context)), afterSize: uint32(len(t.After)), context: at(t.Context), after: at(t.After),
	}
	const command = 10  // BPF_PROG_TEST_RUN
	errno := unix.EINTR // a signal ends the call before the program has run so many times
	for errno == unix.EINTR {
		_, _, errno = unix.RawSyscall(unix.SYS_BPF, command, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr)) // it does not block
	}
	if errno != 0 {
		return errno
	}
	t.Code = attr.code
	if t.Out != nil {
		t.Out = t.Out[:attr.outSize]
	}
	return nil
}

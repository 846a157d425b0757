// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"runtime"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// testRun is one BPF_PROG_TEST_RUN. ebpf.Program.Run copies the context twice and masks signals
// around each call, which takes longer than the programs.
type testRun struct {
	data    []byte
	out     []byte // cut to the length of the frame after the program
	context []byte
	after   []byte // the context after the program
	code    uint32
}

// testRunAttr is the part of union bpf_attr for BPF_PROG_TEST_RUN (linux/bpf.h).
type testRunAttr struct {
	program, code, dataSize, outSize         uint32
	data, out                                uint64
	repeat, duration, contextSize, afterSize uint32
	context, after                           uint64
	flags, cpu, batch, _                     uint32
}

// of runs a program once.
func (t *testRun) of(p *ebpf.Program) error {
	var pin runtime.Pinner
	defer pin.Unpin()
	at := func(b []byte) uint64 {
		if len(b) == 0 {
			return 0
		}
		pin.Pin(&b[0])
		return uint64(uintptr(unsafe.Pointer(&b[0])))
	}
	attr := testRunAttr{
		program: uint32(p.FD()), repeat: 1,
		dataSize: uint32(len(t.data)), outSize: uint32(len(t.out)), data: at(t.data), out: at(t.out),
		contextSize: uint32(len(t.context)), afterSize: uint32(len(t.after)), context: at(t.context), after: at(t.after),
	}
	const testRunCommand = 10 // BPF_PROG_TEST_RUN
	// The call does not block.
	if _, _, errno := unix.RawSyscall(unix.SYS_BPF, testRunCommand, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr)); errno != 0 {
		return errno
	}
	t.code = attr.code
	if t.out != nil {
		t.out = t.out[:attr.outSize]
	}
	return nil
}

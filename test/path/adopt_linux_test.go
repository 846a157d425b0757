// SPDX-License-Identifier: Apache-2.0

package path

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/linux/bpfobj"
)

// slowStores makes a function of a program wait after each store into a map, so that another CPU sees what is there
// between two stores.
func slowStores(p *ebpf.ProgramSpec, function string) error {
	g, err := newGraph(p.Instructions)
	if err != nil {
		return err
	}
	live, before, within := g.liveness(), make(map[int]asm.Instructions), ""
	for i := range g.insns {
		ins := &g.insns[i]
		if fn := btf.FuncMetadata(ins); fn != nil {
			within = fn.Name
		}
		if ins.OpCode.Class() != asm.StXClass || ins.OpCode.Mode() != asm.MemMode || ins.Dst == asm.RFP || within != function || g.leader[i+1] {
			continue
		}
		for r := asm.R0; r <= asm.R9; r++ {
			if live[i+1]&(1<<r) == 0 {
				wait := fmt.Sprintf("wait-%d", i)
				before[i+1] = asm.Instructions{asm.Mov.Imm(r, 100), asm.Sub.Imm(r, 1).WithSymbol(wait), asm.JNE.Imm(r, 0, wait)}
				break
			}
		}
	}
	if len(before) < 10 {
		return fmt.Errorf("%s has only %d stores", function, len(before))
	}
	p.Instructions = g.insert(before)
	return nil
}

// adopter is the program that migrates flows, with a table of one flow.
type adopter struct {
	t       *testing.T
	program *ebpf.Program
	a       bpfobj.PodAdoption
	flow    *bpfobj.PodConn // in the table
}

func newAdopter(t *testing.T) *adopter {
	t.Helper()
	if os.Getuid() != 0 || testing.Short() {
		t.Skip("needs root and no -short: make test runs it")
	}
	spec, err := bpfobj.LoadPod()
	if err != nil {
		t.Fatal(err)
	}
	const program, size = "adopt_flow", 2
	spec.Programs = map[string]*ebpf.ProgramSpec{program: spec.Programs[program]}
	for name, m := range spec.Maps {
		m.Pinning = ebpf.PinNone
		switch name {
		case "conns4", "conn_index4", "conn_hints4":
			m.MaxEntries = size
		}
	}
	for name, value := range map[string]uint32{"conns_size4": size, "timeout_other": 1 << 30, "timeout_opening": 1 << 30} {
		if err := spec.Variables[name].Set(value); err != nil {
			t.Fatal(err)
		}
	}
	if err := slowStores(spec.Programs[program], program); err != nil {
		t.Fatal(err)
	}
	c, err := ebpf.NewCollection(spec)
	if err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(c.Close)
	conns := c.Maps["conns4"]
	memory, err := unix.Mmap(conns.FD(), 0, size*int(conns.ValueSize()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(memory) })
	ad := &adopter{t: t, program: c.Programs[program]}
	ad.a = bpfobj.PodAdoption{Key4: bpfobj.PodConnKey4{Addr: [2][4]byte{{10, 1, 0, 11}, {192, 0, 2, 1}}, Port: [2]uint16{1000, 53}, Protocol: 17}}
	ad.a.Slots = [2]uint32{0, bpfobj.NoSlot}
	if got := ad.run(); got != bpfobj.FlowAdopted {
		t.Fatalf("outcome %d of the first flow", got)
	}
	ad.flow = &(*bpfobj.PodConnEntry4)(unsafe.Pointer(&memory[0])).Conn
	return ad
}

func (ad *adopter) run() uint32 {
	ad.t.Helper()
	var data bytes.Buffer
	if err := binary.Write(&data, binary.NativeEndian, ad.a); err != nil {
		ad.t.Fatal(err)
	}
	outcome, err := ad.program.Run(&ebpf.RunOptions{Data: data.Bytes()})
	if err != nil {
		ad.t.Fatal(err)
	}
	return outcome
}

// TestMigratedRolesAreWhole replaces flows that programs have decided. Another CPU never sees the roles of the older
// layout under an epoch of this one: it would pass packets that policy may deny.
func TestMigratedRolesAreWhole(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Skip("needs two processors")
	}
	ad := newAdopter(t)
	const live, migrated = 7, 1 // epochs
	word := func(a bpfobj.PodApproval) uint64 { return uint64(a.Authorised)<<32 | uint64(a.Epoch) }
	before := bpfobj.PodApproval{Epoch: live, Authorised: bpfobj.RoleOpened}
	after := bpfobj.PodApproval{Epoch: migrated, Authorised: bpfobj.RoleOpened | bpfobj.RoleAccepted}
	for end := range ad.flow.End {
		at := (*uint64)(unsafe.Pointer(&ad.flow.End[end]))
		reset := func() {
			for i := range ad.flow.End {
				atomic.StoreUint64((*uint64)(unsafe.Pointer(&ad.flow.End[i])), word(before))
			}
		}
		reset()
		stop, changes, done, seen := new(atomic.Bool), new(atomic.Int32), make(chan struct{}), make(map[uint64]int)
		go func() {
			defer close(done)
			for last := uint64(0); !stop.Load(); {
				now := atomic.LoadUint64(at)
				seen[now]++
				if now != last {
					changes.Add(1)
				}
				last = now
			}
		}()
		finish := func() {
			stop.Store(true)
			<-done
		}
		defer finish() // before the entry is unmapped
		// Beside other processes, the two processors rarely run both goroutines at once.
		for began := time.Now(); changes.Load() < 2000 && (changes.Load() < 100 || time.Since(began) < 30*time.Second); {
			if time.Since(began) > 2*time.Minute {
				t.Fatalf("end %d: the other CPU saw only %d changes", end, changes.Load())
			}
			reset()
			ad.a.Conn = *ad.flow
			ad.a.Conn.End = [2]bpfobj.PodApproval{after, after}
			ad.a.Replace, ad.a.Had, ad.a.HadFlags = 1, [2]bpfobj.PodApproval{before, before}, ad.flow.FlowFlags
			if got := ad.run(); got != bpfobj.FlowAdopted || ad.flow.End[end] != after {
				t.Fatalf("outcome %d, roles %+v", got, ad.flow.End[end])
			}
		}
		finish()
		for got, times := range seen {
			if got != word(before) && got != word(after) {
				t.Errorf("end %d: another CPU saw roles %d under epoch %d, %d times", end, got>>32, uint32(got), times)
			}
		}
	}
}

// TestMigrationReplacesWhatItRead changes a flow after it was read for a migration: other roles, other flags, or
// another flow in the entry. The migration then leaves it as it is.
func TestMigrationReplacesWhatItRead(t *testing.T) {
	ad := newAdopter(t)
	if got := ad.run(); got != bpfobj.FlowKnown {
		t.Fatalf("outcome %d of the flow that is known", got)
	}
	was := *ad.flow
	ad.a.Conn, ad.a.Replace, ad.a.Had, ad.a.HadFlags = was, 1, was.End, was.FlowFlags
	ad.a.Conn.Sent = [2]uint32{7, 8}
	const generation = 0x200
	for what, c := range map[string]struct {
		change func(*bpfobj.PodConn)
		want   uint32
	}{
		"nothing":              {func(*bpfobj.PodConn) {}, bpfobj.FlowAdopted},
		"roles of the first":   {func(c *bpfobj.PodConn) { c.End[0].Authorised |= bpfobj.RoleRevoked }, bpfobj.FlowKnown},
		"roles of the second":  {func(c *bpfobj.PodConn) { c.End[1].Authorised |= bpfobj.RoleRevoked }, bpfobj.FlowKnown},
		"epoch of the first":   {func(c *bpfobj.PodConn) { c.End[0].Epoch++ }, bpfobj.FlowKnown},
		"epoch of the second":  {func(c *bpfobj.PodConn) { c.End[1].Epoch++ }, bpfobj.FlowKnown},
		"flags":                {func(c *bpfobj.PodConn) { c.FlowFlags ^= bpfobj.ConnTranslated }, bpfobj.FlowKnown},
		"the flow in an entry": {func(c *bpfobj.PodConn) { c.Version += generation }, bpfobj.FlowNoRoom},
		"too many holders":     {func(c *bpfobj.PodConn) { c.Version += 0xf0 }, bpfobj.FlowNoRoom},
	} {
		*ad.flow = was
		c.change(ad.flow)
		want := *ad.flow
		if c.want == bpfobj.FlowAdopted {
			want = ad.a.Conn
		}
		if got := ad.run(); got != c.want || *ad.flow != want {
			t.Errorf("%s: outcome %d and %+v, want %d and %+v", what, got, *ad.flow, c.want, want)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/loader"
)

// remote makes the only flow of a table one between a pod in slot 0 and another node, which
// leads there by the sandbox's interface. It returns the index of its entry.
func (t *table) remote() (entry uint32) {
	t.t.Helper()
	for _, entry = range t.flows() {
	}
	var e bpfobj.PodConnEntry4
	if err := t.conns.Lookup(entry, &e); err != nil {
		t.t.Fatal(err)
	}
	e.Conn.FlowFlags = bpfobj.ConnRemote
	for end, a := range e.Conn.End {
		e.Conn.Place[end] = loader.SandboxInterface
		if a.Authorised != 0 {
			e.Conn.Place[end] = 1 << 31 // the slot
		}
	}
	if err := t.conns.Put(entry, e); err != nil {
		t.t.Fatal(err)
	}
	return entry
}

// A packet from another node takes the fast path with its own flow only. If the entry gets
// another flow meanwhile, the host stack has the packet, and the pod's own program decides.
func TestEntryChangesHandsFromNode(t *testing.T) {
	twoProcessors(t)
	c := newCrowd(t, 8, forever)
	at := c.table(false)
	c.open(0, false, 1000)
	entry := at.remote()
	r, err := c.path.Replay()
	if err != nil {
		t.Fatal(err)
	}
	packet := c.frame(0, in, false, 1000)
	clear(packet[:6]) // the hardware address of the sandbox's interface
	redirected := func() bool {
		out, err := r.Run(loader.AtFromNode, loader.Replayed{Ifindex: loader.SandboxInterface, Frame: packet})
		if err != nil || !out.Passed {
			t.Fatalf("a packet from another node: %+v, %v", out, err)
		}
		return out.Redirected
	}
	if !redirected() {
		t.Fatal("a packet from another node does not take the fast path")
	}
	memory, err := at.conns.Memory()
	if err != nil {
		t.Fatal(err)
	}
	offset := int64(entry)*int64(at.conns.ValueSize()) + int64(at.versionFrom)
	var stop atomic.Bool
	var wait sync.WaitGroup
	wait.Go(func() {
		var buf [4]byte
		for n := uint32(1); !stop.Load(); n += 2 { // each version is that of an entry with a flow
			binary.NativeEndian.PutUint32(buf[:], n<<8)
			if _, err := memory.WriteAt(buf[:], offset); err != nil {
				t.Error(err)
				return
			}
		}
	})
	defer wait.Wait()
	defer stop.Store(true)
	for deadline := time.Now().Add(30 * time.Second); redirected(); {
		if time.Now().After(deadline) {
			t.Fatal("every packet took the fast path, although its entry changed all the time")
		}
	}
}

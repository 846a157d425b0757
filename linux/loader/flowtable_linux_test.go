// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"encoding/binary"
	"fmt"
	"maps"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/flowtable"
	"github.com/isthmus-net/isthmus/linux/loader"
	"github.com/isthmus-net/isthmus/linux/policymap"
	"github.com/isthmus-net/isthmus/test/netns"
)

// table is the flow table of a crowd for one IP version.
type table struct {
	*crowd
	v6                   bool
	conns, index, hints  *ebpf.Map
	keySize, versionFrom int
}

func (c *crowd) table(v6 bool) *table {
	t := &table{crowd: c, v6: v6, keySize: 16}
	n := "4"
	if v6 {
		n, t.keySize = "6", 40
	}
	t.conns, t.index, t.hints = c.path.Map("conns"+n), c.path.Map("conn_index"+n), c.path.Map("conn_hints"+n)
	t.versionFrom = t.keySize // struct conn begins with the version
	return t
}

// flows returns the index of every flow by its key.
func (t *table) flows() map[string]uint32 {
	t.t.Helper()
	all := make(map[string]uint32)
	if err := flowtable.Read(t.conns, t.versionFrom, func(i uint32, value []byte) error {
		key := string(value[:t.keySize])
		if at, twice := all[key]; twice {
			t.t.Errorf("flow %x is in entries %d and %d", key, at, i)
		}
		all[key] = i
		return nil
	}); err != nil {
		t.t.Fatal(err)
	}
	return all
}

// check compares the flows with their index and the shares. Nothing may hold an entry.
func (t *table) check() {
	t.t.Helper()
	flows, indexed := t.flows(), make(map[string]uint32)
	var k []byte
	var v bpfobj.PodConnIndex
	for all := t.index.Iterate(); all.Next(&k, &v); {
		indexed[string(k)] = v.Index
	}
	if !maps.Equal(flows, indexed) {
		t.t.Errorf("%d flows, %d indexes, which differ", len(flows), len(indexed))
	}
	for i := range t.conns.MaxEntries() {
		if v := t.version(i); v&0xff != 0 {
			t.t.Errorf("entry %d has version %#x: a program still holds it", i, v)
		}
	}
	if shares, _ := t.shares(t.v6); shares[0]+shares[1] != len(flows) || shares[0] < 0 || shares[1] < 0 {
		t.t.Errorf("shares %v of %d flows", shares, len(flows))
	}
}

func (t *table) entry(i uint32) []byte {
	t.t.Helper()
	value, err := t.conns.LookupBytes(i)
	if err != nil {
		t.t.Fatal(err)
	}
	return value
}

func (t *table) version(i uint32) uint32 {
	return binary.NativeEndian.Uint32(t.entry(i)[t.versionFrom:])
}

func (t *table) setVersion(i, version uint32) {
	t.t.Helper()
	value := t.entry(i)
	binary.NativeEndian.PutUint32(value[t.versionFrom:], version)
	if err := t.conns.Put(i, value); err != nil {
		t.t.Fatal(err)
	}
}

// hint makes all hints the same.
func (t *table) hint(value uint32) {
	t.t.Helper()
	for i := range t.hints.MaxEntries() {
		if err := t.hints.Put(i, value); err != nil {
			t.t.Fatal(err)
		}
	}
}

// A hint never makes a packet part of another flow: the key in the entry decides.
func TestWrongHints(t *testing.T) {
	bothFamilies(t, func(t *testing.T, v6 bool) {
		c := newCrowd(t, 8, forever)
		c.open(0, v6, 1000)
		if !c.known(0, v6, 1000) {
			t.Fatal("an answer does not pass")
		}
		at := c.table(v6)
		for bits := range uint32(256) { // one of them is right for each flow
			at.hint(bits << 24) // the entry of the flow above, or of none
			for _, e := range at.flows() {
				at.hint(bits<<24 | e)
			}
			if c.known(0, v6, 1001) || c.known(1, v6, 1000) {
				t.Fatalf("with hints %#x an answer passes that belongs to no flow", bits)
			}
			if !c.known(0, v6, 1000) {
				t.Fatalf("with hints %#x an answer does not pass", bits)
			}
		}
		at.hint(0xffffffff) // no such entry
		if !c.known(0, v6, 1000) {
			t.Error("without hints an answer does not pass")
		}
		at.check()
	})
}

// An index that names the wrong entry makes a flow unknown. The next packet that opens it
// repairs the index.
func TestWrongIndex(t *testing.T) {
	bothFamilies(t, func(t *testing.T, v6 bool) {
		c := newCrowd(t, 8, forever)
		at := c.table(v6)
		c.open(0, v6, 1000)
		first := at.flows()
		c.open(0, v6, 1001)
		var now bpfobj.PodConnIndex
		for _, wrong := range []uint32{0, 1, 2, 3, 4, 5, 6, 7, 0xffffffff} {
			at.hint(0xffffffff)
			for key, right := range first {
				if wrong == right {
					continue
				}
				if err := at.index.Put([]byte(key), wrong); err != nil {
					t.Fatal(err)
				}
				if c.known(0, v6, 1000) {
					t.Errorf("index %d instead of %d: an answer passes", wrong, right)
				}
				for range 2 { // the first removes the index, the second stores the flow
					c.open(0, v6, 1000)
				}
				if !c.known(0, v6, 1000) || !c.known(0, v6, 1001) {
					t.Errorf("index %d instead of %d: the flow stays unknown", wrong, right)
				}
				// What is left of the first flow makes room, like any other. It may have done so.
				if err := at.index.Lookup([]byte(key), &now); err != nil {
					t.Fatal(err)
				}
				if now.Index != right {
					at.setVersion(right, 0)
				}
				shares := bpfobj.PodFlowShare{}
				shares.Flows[map[bool]int{true: 1}[v6]] = 2
				if err := c.path.Map("flow_shares").Put(uint32(0), shares); err != nil {
					t.Fatal(err)
				}
				first[key] = now.Index
			}
		}
		at.check()
	})
}

// An entry without index is a flow that is decided again.
func TestEntryWithoutIndex(t *testing.T) {
	bothFamilies(t, func(t *testing.T, v6 bool) {
		c := newCrowd(t, 8, forever)
		at := c.table(v6)
		c.open(0, v6, 1000)
		for key := range at.flows() {
			if err := at.index.Delete([]byte(key)); err != nil {
				t.Fatal(err)
			}
		}
		at.hint(0xffffffff)
		if c.known(0, v6, 1000) {
			t.Error("an answer passes")
		}
		c.open(0, v6, 1000)
		if !c.known(0, v6, 1000) {
			t.Error("the flow stays unknown")
		}
	})
}

// A flow whose entry a program holds or owns keeps it, also if the table is full.
func TestHeldEntries(t *testing.T) {
	bothFamilies(t, func(t *testing.T, v6 bool) {
		const size = 4
		c := newCrowd(t, size, forever)
		at := c.table(v6)
		for port := range uint16(size) {
			c.open(0, v6, 1000+port)
		}
		before := at.flows()
		for _, holders := range []uint32{1, 0xf0} {
			for _, i := range before {
				at.setVersion(i, at.version(i)+holders)
			}
			c.open(0, v6, 2000) // passes, but is not stored
			if c.known(0, v6, 2000) || !maps.Equal(at.flows(), before) {
				t.Errorf("with %d holders an entry was taken", holders)
			}
			for port := range uint16(size) {
				if !c.known(0, v6, 1000+port) {
					t.Errorf("with %d holders flow %d is unknown", holders, port)
				}
			}
			for _, i := range before {
				at.setVersion(i, at.version(i)-holders)
			}
		}
		for key, i := range before { // as while a program writes the entry
			version := at.version(i)
			at.setVersion(i, version+0x100-version&0xff|0xff)
			c.open(0, v6, 2000)
			if v := at.version(i); v&0xff != 0xff {
				t.Errorf("entry %d, which a program owns, became %#x", i, v)
			}
			if err := at.index.Lookup([]byte(key), new(bpfobj.PodConnIndex)); err != nil {
				t.Errorf("the index of an entry that a program owns: %v", err)
			}
			at.setVersion(i, version)
			break
		}
		if flows := at.flows(); len(flows) != size {
			t.Errorf("%d flows of %d", len(flows), size)
		}
	})
}

// If an entry gets another flow while a program decides, the program decides the packet again,
// as one of an unknown flow.
func TestEntryChangesHands(t *testing.T) {
	twoProcessors(t)
	c := newCrowd(t, 8, forever)
	at := c.table(false)
	c.open(0, false, 1000)
	if !c.known(0, false, 1000) {
		t.Fatal("an answer does not pass")
	}
	memory, err := at.conns.Memory()
	if err != nil {
		t.Fatal(err)
	}
	var entry uint32
	for _, entry = range at.flows() {
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
	for deadline := time.Now().Add(30 * time.Second); c.known(0, false, 1000); {
		if time.Now().After(deadline) {
			t.Fatal("no packet was decided again, although its entry changed all the time")
		}
	}
}

// twoProcessors skips a test that writes into a map while a program runs.
func twoProcessors(t *testing.T) {
	t.Helper()
	if runtime.NumCPU() < 2 {
		t.Skip("needs two processors")
	}
}

// owner owns an entry in turns, as programs do.
type owner struct {
	*bpfobj.PodConnEntry4
	end [2]*uint64 // roles and epochs
}

func (o *owner) own() {
	for {
		v := atomic.LoadUint32(&o.Conn.Version)
		if v&0xff == 0 && atomic.CompareAndSwapUint32(&o.Conn.Version, v, v+0x1ff) {
			return
		}
	}
}

// publish ends the ownership, and leaves programs the time to find the flow.
func (o *owner) publish() {
	atomic.AddUint32(&o.Conn.Version, 1)
	for range 20 {
		atomic.LoadUint32(&o.Conn.Version)
	}
}

// turns gives the entry a flow and another flow, in turns. It returns how often the roles of the
// other flow changed.
func (o *owner) turns(stop *atomic.Bool) (late int) {
	const other = 0x99999999 // no roles, and the epoch of no slot
	protocol, roles := o.Key.Protocol, [2]uint64{*o.end[0], *o.end[1]}
	for !stop.Load() && late == 0 {
		o.own()
		o.Key.Protocol = protocol
		for i, end := range o.end {
			atomic.StoreUint64(end, roles[i]>>32<<32|1) // an older epoch: packets write it
		}
		o.publish()
		o.own()
		o.Key.Protocol = protocol + 1
		for _, end := range o.end {
			atomic.StoreUint64(end, other)
		}
		o.publish()
		o.own()
		for _, end := range o.end {
			if atomic.LoadUint64(end) != other {
				late++
			}
		}
		o.publish()
	}
	return late
}

// A program that found a flow changes nothing in its entry when the entry has another flow.
func TestLateWrites(t *testing.T) {
	twoProcessors(t)
	c := newCrowd(t, 8, forever)
	at := c.table(false)
	c.open(0, false, 1000)
	var entry uint32
	for _, entry = range at.flows() {
	}
	memory, err := unix.Mmap(at.conns.FD(), 0, int(at.conns.MaxEntries()*at.conns.ValueSize()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(memory)
	o := owner{PodConnEntry4: (*bpfobj.PodConnEntry4)(unsafe.Pointer(&memory[entry*at.conns.ValueSize()]))}
	for i := range o.end {
		o.end[i] = (*uint64)(unsafe.Pointer(&o.Conn.End[i]))
	}
	var stop atomic.Bool
	late := make(chan int, 1)
	go func() { late <- o.turns(&stop) }()
	passed := 0
	for begin := time.Now(); passed == 0 && time.Since(begin) < 30*time.Second || time.Since(begin) < 3*time.Second; {
		if c.known(0, false, 1000) {
			passed++
		}
	}
	stop.Store(true)
	if n := <-late; n > 0 || passed == 0 {
		t.Errorf("programs wrote the roles of a flow into another flow %d times; %d packets found their flow", n, passed)
	}
}

// CPUs that open flows in a table of a few entries, answer them, and meet policy changes keep
// the table consistent, and pass no packet that policy denies.
func TestFlowTableUnderConcurrency(t *testing.T) {
	for _, size := range []int{3, 64} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			c := newCrowd(t, size, loader.Timeouts{Opening: 4 * time.Millisecond, TCP: time.Hour, Other: time.Hour, Closing: time.Hour})
			index, ns := c.interfaces()
			var wait sync.WaitGroup
			var done atomic.Int32
			const workers = 6
			for worker := range workers {
				pod, v6 := worker%2, worker/2%2 == 1
				wait.Go(func() {
					defer done.Add(1)
					if err := ns.Do(func() error {
						for n := range 20000 {
							port := uint16(1000 + n%(2*size))
							d, way := model.Egress, out
							if n%3 == 2 {
								d, way = model.Ingress, in
							}
							if err := c.path.RunOn(index[pod], d, c.frame(pod, way, v6, port)); err != nil {
								return err
							}
						}
						return nil
					}); err != nil {
						t.Error(err)
					}
				})
			}
			wait.Go(func() { // revalidates flows
				for epoch := uint32(10); done.Load() < workers; epoch++ {
					slot := policymap.SlotWrite{Index: epoch % 2, Slot: bpfobj.PodSlot{Table: tableOut, Epoch: epoch}}
					if err := c.path.WriteSlot(slot); err != nil {
						t.Error(err)
						return
					}
					time.Sleep(100 * time.Microsecond)
				}
			})
			wait.Wait()
			for _, v6 := range []bool{false, true} {
				c.table(v6).check()
				for port := range uint16(100) { // no flow of these ports was opened
					if c.known(0, v6, 60000+port) {
						t.Fatal("an answer passes that belongs to no flow")
					}
				}
			}
		})
	}
}

// interfaces creates an interface for each pod, which concurrent test runs need.
func (c *crowd) interfaces() (index [2]int, ns *netns.NS) {
	c.t.Helper()
	ns, err := netns.New(filepath.Join(c.t.TempDir(), "pods"))
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { ns.Close() })
	if err := ns.Do(func() error {
		for i, pod := range c.pods {
			l := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprint("pod", i)}, PeerName: fmt.Sprint("peer", i)}
			if err := netlink.LinkAdd(l); err != nil {
				return err
			}
			index[i] = l.Index
			if err := c.path.PutEndpoint(l.Index, pod); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		c.t.Fatal(err)
	}
	return index, ns
}

// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/loader"
)

// places is a bench with pinned maps and access to the maps endpoints and interfaces.
type places struct {
	*bench
	dir                   string
	endpoints, interfaces *ebpf.Map
}

// rival is an interface with the same map entry as the interface of the bench.
const rival = int(loader.SandboxInterface + bpfobj.Interfaces)

func newPlaces(t *testing.T) *places {
	t.Helper()
	if os.Getuid() != 0 || testing.Short() {
		t.Skip("needs root and no -short: make test runs it")
	}
	p := &places{bench: &bench{t: t, pod: bpfobj.PodEndpoint{Ip4: pod4.As4(), Ip6: pod6.As16()}}, dir: filepath.Join(t.TempDir(), "bpf")}
	copy(p.pod.Mac[:], podMAC)
	p.must(os.Mkdir(p.dir, 0o700))
	p.must(unix.Mount("bpf", p.dir, "bpf", 0, ""))
	t.Cleanup(func() { unix.Unmount(p.dir, unix.MNT_DETACH) })
	p.open()
	t.Cleanup(func() { p.path.Close() })
	for name, to := range map[string]**ebpf.Map{"endpoints": &p.endpoints, "interfaces": &p.interfaces} {
		m, err := ebpf.LoadPinnedMap(filepath.Join(p.dir, loader.LayoutVersion, name), nil)
		p.must(err)
		t.Cleanup(func() { m.Close() })
		*to = m
	}
	p.under(tableOpen)
	return p
}

func (p *places) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *places) open() {
	p.t.Helper()
	var err error
	p.path, err = loader.Open(p.dir, loader.DefaultSettings(), loader.Sizes{})
	p.must(err)
}

// restart repeats what an agent does when it starts.
func (p *places) restart() {
	p.t.Helper()
	p.must(p.path.Close())
	p.open()
}

// says checks the content of an entry, by its index.
func (p *places) says(place, ifindex uint32, e bpfobj.PodEndpoint) {
	p.t.Helper()
	var got bpfobj.PodInterface
	p.must(p.interfaces.Lookup(place, &got))
	if got.Ifindex != ifindex || (ifindex != 0 && got.Endpoint != e) {
		p.t.Errorf("place %d is of interface %#x and says %v, want %#x and %v", place, got.Ifindex, got.Endpoint, ifindex, e)
	}
}

// decides sends packets of both IP versions, from the pod's own addresses and MAC and from
// others.
func (p *places) decides() {
	p.t.Helper()
	for _, v6 := range []bool{false, true} {
		f := frame(out, ip(v6, out, layers.IPProtocolTCP), tcp(1000, 80, "A"))
		copy(f[6:], p.pod.Mac[:])
		if passes, err := p.path.Run(p.pod, out, f); err != nil || !passes {
			p.t.Errorf("IPv6 %t: the pod's own packet passes: %t, error %v", v6, passes, err)
		}
		f[7] ^= 1 // source MAC
		p.expect(out, f, false, bpfobj.DropSpoofed)
		f[7] ^= 1
		f[14+15] ^= 1 // within the source address of either family
		p.expect(out, f, false, bpfobj.DropSpoofed)
	}
}

// Two interfaces share an entry. The first one has it as long as it exists; programs find the
// other one by hash.
func TestInterfacesThatShareAnEntry(t *testing.T) {
	p := newPlaces(t)
	other := bpfobj.PodEndpoint{Ip4: peer4.As4(), Ip6: peer6.As16(), Mac: [6]byte{2, 9}, Slot: 1}
	p.must(p.path.PutEndpoint(rival, other))
	p.must(p.path.PutEndpoint(loader.SandboxInterface, p.pod))
	p.says(loader.SandboxInterface, uint32(rival), other)
	p.decides()
	p.must(p.path.DropEndpoint(rival))
	p.says(loader.SandboxInterface, 0, other)
	p.decides()
	p.must(p.path.PutEndpoint(loader.SandboxInterface, p.pod))
	p.says(loader.SandboxInterface, loader.SandboxInterface, p.pod)
	p.must(p.path.PutEndpoint(rival, other))
	p.says(loader.SandboxInterface, loader.SandboxInterface, p.pod)
	// Programs no longer use the hash.
	p.must(p.endpoints.Delete(bpfobj.PodIfindex{Ifindex: loader.SandboxInterface}))
	p.decides()
	p.must(p.path.DropEndpoint(loader.SandboxInterface))
	p.expect(out, frame(out, ip4(out, layers.IPProtocolTCP), tcp(1000, 80, "A")), false, bpfobj.DropNoEndpoint)
}

// A change of an existing interface is not written where programs may be reading, and its entry
// is not assigned to another one.
func TestInterfaceChanges(t *testing.T) {
	p := newPlaces(t)
	p.must(p.path.PutEndpoint(loader.SandboxInterface, p.pod))
	was := p.pod
	p.pod.Mac[5]++
	p.decides()
	p.says(loader.SandboxInterface, loader.SandboxInterface|bpfobj.InterfaceKept, was)
	p.must(p.path.PutEndpoint(rival, was))
	p.must(p.path.PutEndpoint(loader.SandboxInterface, p.pod))
	p.says(loader.SandboxInterface, loader.SandboxInterface|bpfobj.InterfaceKept, was)
	p.decides()
	p.must(p.path.DropEndpoint(loader.SandboxInterface))
	p.must(p.path.PutEndpoint(rival, was))
	p.says(loader.SandboxInterface, uint32(rival), was)
}

// A new agent copies the map endpoints, and removes all other entries.
func TestInterfacesAfterRestart(t *testing.T) {
	p := newPlaces(t)
	second := bpfobj.PodEndpoint{Ip4: peer4.As4(), Mac: [6]byte{2, 9}, Slot: 1}
	p.must(p.path.PutEndpoint(loader.SandboxInterface, p.pod))
	p.must(p.path.PutEndpoint(7, second))
	p.restart()
	p.says(loader.SandboxInterface, loader.SandboxInterface, p.pod)
	p.says(7, 7, second)

	// An agent without this map ran meanwhile. One interface is gone, one has another address,
	// and one is new. One entry belongs to another interface.
	gone, changed := bpfobj.PodInterface{Ifindex: uint32(rival), Endpoint: second}, bpfobj.PodInterface{Ifindex: 7, Endpoint: p.pod}
	p.must(p.interfaces.Put(uint32(loader.SandboxInterface), gone))
	p.must(p.interfaces.Put(uint32(7), changed))
	p.must(p.interfaces.Put(uint32(8), bpfobj.PodInterface{Ifindex: 9 | bpfobj.InterfaceKept, Endpoint: second}))
	p.must(p.endpoints.Put(bpfobj.PodIfindex{Ifindex: 8}, second))
	p.decides()
	p.restart()
	p.says(loader.SandboxInterface, loader.SandboxInterface, p.pod)
	p.says(7, 7, second)
	p.says(8, 8, second)
	p.decides()
}

// TestAddressThatMoves gives an address to another pod before the interface of its former pod
// is gone. Packets to it reach the pod that has it now.
func TestAddressThatMoves(t *testing.T) {
	p := newPlaces(t)
	locals, err := ebpf.LoadPinnedMap(filepath.Join(p.dir, loader.LayoutVersion, "locals4"), nil)
	p.must(err)
	defer locals.Close()
	address := pod4.As4()
	leads := func(when string, want uint32) {
		t.Helper()
		var slot bpfobj.PodSlotIndex
		if err := locals.Lookup(address, &slot); err != nil || slot.Slot != want {
			t.Errorf("%s: the address leads to slot %d (%v), want %d", when, slot.Slot, err, want)
		}
	}
	p.must(p.path.PutEndpoint(loader.SandboxInterface, p.pod))
	leads("at first", p.pod.Slot)
	second := bpfobj.PodEndpoint{Ip4: address, Mac: [6]byte{2, 9}, Slot: p.pod.Slot + 1}
	p.must(p.path.PutEndpoint(7, second))
	leads("with the second pod", second.Slot)
	p.must(p.path.DropEndpoint(loader.SandboxInterface))
	leads("when the first is gone", second.Slot)
	p.must(p.path.DropEndpoint(7))
	var slot bpfobj.PodSlotIndex
	if err := locals.Lookup(address, &slot); err == nil {
		t.Errorf("when both are gone the address leads to slot %d", slot.Slot)
	}
}

// TestMemory: every map has its memory, also an empty trie, which has none.
func TestMemory(t *testing.T) {
	path, err := loader.OpenSandbox()
	if err != nil {
		t.Fatal(err)
	}
	defer path.Close()
	taken, err := path.Memory()
	if err != nil {
		t.Fatal(err)
	}
	if taken["conns4"] == 0 || taken["conn_index6"] == 0 {
		t.Errorf("the maps of flows take no memory: %v", taken)
	}
}

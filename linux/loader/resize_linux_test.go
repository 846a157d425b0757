// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/gopacket/gopacket/layers"

	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/flowtable"
	"github.com/isthmus-net/isthmus/linux/loader"
)

// resize repeats what an agent does that starts with another size of conns4.
func (p *places) resize(entries int) {
	p.t.Helper()
	p.must(p.path.Close())
	var err error
	p.path, err = loader.Open(p.dir, loader.DefaultSettings(), loader.Sizes{"conns4": entries})
	p.must(err)
}

// indexed counts the flows of conns4, and checks the index of each.
func (p *places) indexed() (flows int) {
	p.t.Helper()
	conns, index := p.path.Map("conns4"), p.path.Map("conn_index4")
	p.must(flowtable.Read4(conns, func(i uint32, e *bpfobj.PodConnEntry4) error {
		flows++
		var at bpfobj.PodConnIndex
		if err := index.Lookup(e.Key, &at); err != nil || at.Index != i {
			p.t.Errorf("port %d: the flow is in entry %d, its index is %d, %v", e.Key.Port, i, at.Index, err)
		}
		return nil
	}))
	return flows
}

// An agent that stops while it gives the flow table another size leaves maps of two sizes. The
// next agent keeps every flow, whatever size it wants.
func TestResizeIsInterrupted(t *testing.T) {
	const small, large, flows = 16, 32, 6
	for _, after := range [][]string{{"conns4"}, {"conns4", "conn_index4"}} {
		for _, wanted := range []int{small, large} {
			p := newPlaces(t)
			p.resize(small)
			dir := filepath.Join(p.dir, loader.LayoutVersion)
			for port := range uint16(2 * flows) {
				if pass, err := p.path.Run(p.pod, out, frame(out, ip4(out, layers.IPProtocolUDP), udp(1000+port, 53), payload)); err != nil || !pass {
					t.Fatal(pass, err)
				}
			}
			// Every second flow has expired and made room, so a copy has other places.
			conns, index := p.path.Map("conns4"), p.path.Map("conn_index4")
			p.must(flowtable.Read4(conns, func(i uint32, e *bpfobj.PodConnEntry4) error {
				if i%2 == 1 {
					return nil
				}
				p.must(index.Delete(e.Key))
				return conns.Put(i, bpfobj.PodConnEntry4{})
			}))
			old := make(map[string]*ebpf.Map)
			for _, name := range []string{"conn_index4", "conn_hints4"} {
				m, err := ebpf.LoadPinnedMap(filepath.Join(dir, name), nil)
				p.must(err)
				defer m.Close()
				old[name] = m
			}
			p.resize(large)
			for _, done := range after {
				delete(old, done)
			}
			for name, m := range old { // not replaced yet
				p.must(os.Remove(filepath.Join(dir, name)))
				m, err := m.Clone() // which has no pin yet
				p.must(err)
				p.must(m.Pin(filepath.Join(dir, name)))
				p.must(m.Close())
			}
			p.resize(wanted)
			if n := p.indexed(); n != flows {
				t.Errorf("after %v, with %d entries: %d flows of %d", after, wanted, n, flows)
			}
			answer := frame(in, ip4(in, layers.IPProtocolUDP), udp(53, 1001), payload)
			if pass, err := p.path.Run(p.pod, in, answer); err != nil || !pass {
				t.Errorf("after %v, with %d entries: an answer passes: %t, %v", after, wanted, pass, err)
			}
		}
	}
}

// Every map of a pin has a name by which the lists of the kernel show whose it is, those of another size too.
func TestNamesOfMaps(t *testing.T) {
	p := newPlaces(t)
	p.resize(16)
	p.resize(32)
	entries, err := os.ReadDir(filepath.Join(p.dir, loader.LayoutVersion))
	p.must(err)
	maps := 0
	for _, e := range entries {
		if e.IsDir() {
			continue
		}
		m, err := ebpf.LoadPinnedMap(filepath.Join(p.dir, loader.LayoutVersion, e.Name()), nil)
		p.must(err)
		info, err := m.Info()
		p.must(errors.Join(err, m.Close()))
		want := "isth_" + e.Name()
		if info.Name != want[:min(len(want), 15)] {
			t.Errorf("map %s has the name %q", e.Name(), info.Name)
		}
		maps++
	}
	if maps < 40 {
		t.Errorf("%d maps", maps)
	}
	from, to, err := p.path.ProgramNumbers()
	p.must(err)
	for _, program := range []uint32{from, to} {
		loaded, err := ebpf.NewProgramFromID(ebpf.ProgramID(program))
		p.must(err)
		info, err := loaded.Info()
		p.must(errors.Join(err, loaded.Close()))
		if !strings.HasPrefix(info.Name, "isth_") {
			t.Errorf("a program has the name %q", info.Name)
		}
	}
}

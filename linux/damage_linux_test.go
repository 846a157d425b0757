// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/denylist"
	"github.com/isthmus-net/isthmus/linux/link"
	"github.com/isthmus-net/isthmus/linux/loader"
)

// damage is a change of the directory of pins by another process.
type damage struct {
	name string
	do   func() error
	says string // one of the problems; empty if none is expected
}

func damages(l *lab) []damage {
	v3 := func(name string) string { return filepath.Join(l.bpffs, loader.LayoutVersion, name) }
	links := "links/" + link.HostName(model.MakeEndpointID("b", "eth0"))
	return []damage{
		{"no policy map", func() error { return remove(v3("ports"), v3("peers4"), v3("verdicts")) }, "policy maps peers4, ports, verdicts are missing"},
		{"no slots", func() error { return remove(v3("slots")) }, "policy maps slots are missing"},
		{"no endpoints and no flows", func() error { return remove(v3("endpoints"), v3("conns4"), v3("locals4"), v3("interfaces")) }, ""},
		{"no flows but their index", func() error { return remove(v3("conns4"), v3("conns6")) }, ""},
		{"no index of flows", func() error { return remove(v3("conn_index4"), v3("conn_hints6")) }, ""},
		{"no directory", func() error { return remove(v3("")) }, ""},
		{"map of another size", func() error { return replace(v3("endpoints"), ebpf.Hash, 4, 8) }, "usable as map endpoints"},
		{"map of another type", func() error { return replace(v3("verdicts"), ebpf.Array, 4, 4) }, "usable as map verdicts"},
		{"map that cannot be written", func() error {
			m, err := ebpf.LoadPinnedMap(v3("owners4"), nil)
			if err != nil {
				return err
			}
			defer m.Close()
			return m.Freeze()
		}, "frozen"},
		{"directories in place of maps", func() error {
			return errors.Join(remove(v3("rows"), v3("tunnel_nodes")), os.Mkdir(v3("rows"), 0o700), os.Mkdir(v3("tunnel_nodes"), 0o700))
		}, "usable as map rows"},
		{"map in place of a link", func() error { return replace(v3(links+"-to_pod"), ebpf.Hash, 4, 4) }, ""},
		{"map in place of the directory of links", func() error { return replace(v3("links"), ebpf.Hash, 4, 4) }, ""},
		{"map in place of the directory of XDP links", func() error { return replace(filepath.Join(l.bpffs, "xdp"), ebpf.Hash, 4, 4) }, ""},
		{"maps in place of other versions, and one without pins", func() error {
			return errors.Join(replace(filepath.Join(l.bpffs, "v9"), ebpf.Hash, 4, 4), replace(filepath.Join(l.bpffs, "v1"), ebpf.Hash, 4, 4),
				os.MkdirAll(filepath.Join(l.bpffs, "v99", "links"), 0o700))
		}, ""},
		{"class of a port beyond rows", func() error { return poke(v3("ports"), uint32(80), uint16(1057)) }, "entry 80 of ports has class 1057"},
		{"verdict of a row beyond the map", func() error { return poke(v3("verdicts"), [2]uint32{1 << 20, 5}, [2]uint32{16417}) }, "table 1048576"},
		{"table that wraps", func() error { return poke(v3("slots"), uint32(7), [2]uint32{0xffffffff, 0xffffffff}) }, "slot 7"},
	}
}

// TestStartOnDamagedPins damages the directory of pins while no agent runs. The next agent
// starts, passes no denied packet, reports the damage, and enforces policy as before.
func TestStartOnDamagedPins(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.must(l.backend.Close())
	l.xdp = denylist.Devices{Auto: true}
	l.start()
	a, b := l.pod("a", 11), l.pod("b", 12)
	l.echo(b, 80)
	l.echo(b, 81)
	policies := []*model.Policy{isolate("b", model.Ingress, accept(pods("a"), tcp(80)))}
	l.apply(policies...)
	for l.idle() {
	}
	for _, c := range damages(l) {
		t.Run(c.name, func(t *testing.T) {
			was := l.t
			l.t = t
			defer func() { l.t = was }()
			if l.backend == nil {
				t.Fatal("the agent before this one did not start")
			}
			l.must(l.backend.Close())
			l.must(c.do())
			l.start()
			if said := strings.Join(l.backend.Faults(), "\n"); !strings.Contains(said, c.says) {
				t.Errorf("problems %q, want one that says %q", said, c.says)
			}
			l.state = nil
			l.denied(l.outside, "tcp", "10.1.0.12", 80)
			l.denied(a, "tcp", "10.1.0.12", 81)
			l.must(l.add("a", 11))
			l.must(l.add("b", 12))
			l.apply(policies...)
			for l.idle() {
			}
			l.sound()
			if said := strings.Join(l.backend.Faults(), "\n"); strings.Contains(said, "damaged") {
				t.Errorf("after policy was applied: %q", said)
			}
			l.allowed(a, "tcp", "10.1.0.12", 80)
			l.denied(a, "tcp", "10.1.0.12", 81)
			l.denied(l.outside, "tcp", "10.1.0.12", 80)
			l.clean()
		})
	}
}

// TestStartOnRandomMaps fills every map with random entries while no agent runs. The next agent
// starts and enforces what it applies, and its first audit leaves nothing of them.
func TestStartOnRandomMaps(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.must(l.backend.Close())
	l.xdp = denylist.Devices{Auto: true}
	l.start()
	a, b := l.pod("a", 11), l.pod("b", 12)
	l.echo(b, 80)
	l.echo(b, 81)
	policies := []*model.Policy{isolate("b", model.Ingress, accept(pods("a"), tcp(80)))}
	l.apply(policies...)
	for seed := range uint64(4) {
		for l.idle() {
		}
		l.must(l.backend.Close())
		if n := l.fill(rand.New(rand.NewPCG(seed, 0))); n < 40 {
			t.Fatalf("seed %d: %d maps have random entries", seed, n)
		}
		l.start()
		l.state = nil
		l.must(l.add("a", 11))
		l.must(l.add("b", 12))
		l.apply(policies...)
		l.allowed(a, "tcp", "10.1.0.12", 80)
		l.denied(a, "tcp", "10.1.0.12", 81)
		l.denied(l.outside, "tcp", "10.1.0.12", 80)
		l.must(l.node.Do(func() error { _, err := l.backend.Audit(t.Context(), l.state); return err }))
		l.apply(policies...) // repairs what the audit found
		for l.idle() {
		}
		l.sound()
		l.clean()
		l.allowed(a, "tcp", "10.1.0.12", 80)
		l.denied(a, "tcp", "10.1.0.12", 81)
		l.denied(l.outside, "tcp", "10.1.0.12", 80)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// fill writes random entries to every pinned map, and returns how many maps took some.
func (l *lab) fill(rng *rand.Rand) (filled int) {
	l.t.Helper()
	pins, err := filepath.Glob(filepath.Join(l.bpffs, loader.LayoutVersion, "*"))
	l.must(err)
	random := func(n uint32) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		return b
	}
	for _, pin := range pins {
		m, err := ebpf.LoadPinnedMap(pin, nil)
		if err != nil {
			continue // a program, or a directory
		}
		took := false
		for range 64 {
			key, value := random(m.KeySize()), any(random(m.ValueSize()))
			switch m.Type() {
			case ebpf.Array, ebpf.PerCPUArray:
				key = binary.NativeEndian.AppendUint32(nil, rng.Uint32N(m.MaxEntries()))
			case ebpf.LPMTrie:
				binary.NativeEndian.PutUint32(key, rng.Uint32N(8*(m.KeySize()-4)+1))
			}
			if m.Type() == ebpf.PerCPUArray {
				value = slices.Repeat([][]byte{random(m.ValueSize())}, ebpf.MustPossibleCPU())
			}
			took = m.Put(key, value) == nil || took
		}
		if took {
			filled++
		}
		m.Close()
	}
	return filled
}

// clean requires that an audit finds nothing.
func (l *lab) clean() {
	l.t.Helper()
	l.must(l.node.Do(func() error {
		found, err := l.backend.Audit(l.t.Context(), l.state)
		for _, d := range found {
			l.t.Errorf("drift: %v", d)
		}
		return err
	}))
}

// TestUnpinningDetachesNothing removes the pins of links, or all pins, while the agent runs. No
// denied packet passes, and the next audit pins them again.
func TestUnpinningDetachesNothing(t *testing.T) {
	l := newLab(t)
	a, b := l.pod("a", 11), l.pod("b", 12)
	l.echo(b, 80)
	l.echo(b, 81)
	l.apply(isolate("b", model.Ingress, accept(pods("a"), tcp(80))))
	for l.idle() {
	}
	l.must(os.RemoveAll(filepath.Join(l.bpffs, loader.LayoutVersion)))
	l.allowed(a, "tcp", "10.1.0.12", 80)
	l.denied(a, "tcp", "10.1.0.12", 81)
	l.denied(l.outside, "tcp", "10.1.0.12", 80)
	found := 0
	l.must(l.node.Do(func() error {
		drifts, err := l.backend.Audit(t.Context(), l.state)
		for _, d := range drifts {
			if d.Object != "pin" {
				t.Errorf("drift %v, want pins only", d)
			}
		}
		found = len(drifts)
		if err == nil {
			_, err = l.backend.Apply(t.Context(), l.state)
		}
		return err
	}))
	if found < 30 {
		t.Errorf("%d pins were missed", found)
	}
	l.clean()
	// The next agent finds everything.
	l.must(l.backend.Close())
	l.denied(a, "tcp", "10.1.0.12", 81)
	l.start()
	if said := l.backend.Faults(); len(said) > 0 {
		t.Errorf("problems: %q", said)
	}
	l.allowed(a, "tcp", "10.1.0.12", 80)
}

func remove(paths ...string) (err error) {
	for _, p := range paths {
		err = errors.Join(err, os.RemoveAll(p))
	}
	return err
}

// replace pins a map of another type in place of any object.
func replace(path string, kind ebpf.MapType, key, value uint32) error {
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: kind, KeySize: key, ValueSize: value, MaxEntries: 16})
	if err != nil {
		return err
	}
	defer m.Close()
	return errors.Join(os.RemoveAll(path), m.Pin(path))
}

func poke(path string, key, value any) error {
	m, err := ebpf.LoadPinnedMap(path, nil)
	if err != nil {
		return err
	}
	defer m.Close()
	return m.Put(key, value)
}

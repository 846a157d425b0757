// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/features"
	tcx "github.com/cilium/ebpf/link"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux"
	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/flowtable"
	"github.com/isthmus-net/isthmus/linux/kubeproxy"
	"github.com/isthmus-net/isthmus/linux/link"
	"github.com/isthmus-net/isthmus/linux/loader"
)

// older reads programs of an older layout, as its last version compiled them.
func (u *upgradeTraffic) older(file string) *ebpf.CollectionSpec {
	u.t.Helper()
	packed, err := os.Open(filepath.Join("testdata", file))
	u.must(err)
	defer packed.Close()
	z, err := gzip.NewReader(packed)
	u.must(err)
	object, err := io.ReadAll(z)
	u.must(err)
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
	u.must(err)
	values := map[string]uint32{"decides_alone": 1, "error_rate": math.MaxUint32, "error_window": math.MaxUint32}
	for _, name := range []string{"timeout_opening", "timeout_tcp", "timeout_other", "timeout_closing", "timeout_datagram"} {
		values[name] = math.MaxInt32
	}
	for variable, ledger := range map[string]string{"ledger_size4": "ledger4", "ledger_size6": "ledger6"} {
		if m := spec.Maps[ledger]; m != nil {
			values[variable] = m.MaxEntries
		}
	}
	for name, value := range values {
		if v := spec.Variables[name]; v != nil {
			u.must(v.Set(value))
		}
	}
	if v := spec.Variables["has_nf_conntrack"]; v != nil {
		u.must(v.Set(loader.FindTracking("/sys") != loader.NoTracking))
	}
	return spec
}

// previousMaps are the names of maps in layouts up to v3 that v4 renamed.
var previousMaps = map[string]string{"generation": "stages", "node_routes4": "ways4", "node_routes6": "ways6"}

// plant installs the programs of an older layout with the current content of the named maps.
// was converts a value to the older struct; nil skips the entry. If egress is not nil, it
// decides after DNAT. Then plant removes our programs.
func (u *upgradeTraffic) plant(layout string, names []string, was func(name string, v []byte) []byte, egress *ebpf.CollectionSpec) {
	u.t.Helper()
	dir, now := filepath.Join(u.bpffs, layout), filepath.Join(u.bpffs, loader.LayoutVersion)
	u.must(os.MkdirAll(filepath.Join(dir, "links"), 0o700))
	pinned := ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: dir}}
	old, err := ebpf.NewCollectionWithOptions(u.older("layout-"+layout+".o.gz"), pinned)
	u.must(err)
	defer old.Close()
	for _, name := range names {
		from, err := ebpf.LoadPinnedMap(filepath.Join(now, name), nil)
		u.must(err)
		var k, v []byte
		for all := from.Iterate(); all.Next(&k, &v); {
			if v := was(name, v); v != nil {
				u.must(old.Maps[cmp.Or(previousMaps[name], name)].Put(k, v))
			}
		}
		from.Close()
	}
	u.must(u.node.Do(func() error {
		for name := range u.pod {
			if err := u.plantLinks(old, dir, link.HostName(model.MakeEndpointID(name, "eth0"))); err != nil {
				return err
			}
		}
		return u.plantEgress(layout, egress, pinned)
	}))
	u.must(u.backend.Close())
	u.must(os.RemoveAll(now))
}

// plantLinks attaches the older programs to the host end of a pod's veth pair.
func (u *upgradeTraffic) plantLinks(old *ebpf.Collection, dir, host string) error {
	index, err := link.Index(host)
	if err != nil {
		return err
	}
	fromPod, toPod := old.Programs["from_pod"], old.Programs["to_pod"]
	if !hasTCX(u.t) {
		return link.SetClassifiers(index, link.Classifiers{FromPod: fromPod.FD(), ToPod: toPod.FD()})
	}
	return errors.Join(pinTCX(fromPod, ebpf.AttachTCXIngress, index, filepath.Join(dir, "links", host+"-from_pod")),
		pinTCX(toPod, ebpf.AttachTCXEgress, index, filepath.Join(dir, "links", host+"-to_pod")), link.DropClassifiers(index))
}

// previousEgress are the programs that decide after DNAT in an older layout: the name of the netfilter
// program, its priority, its pins by hook, and the filters by chain of nftables.
var previousEgress = map[string]struct {
	hook     string
	priority int32
	pins     map[string]tcx.NetfilterInetHook
	filters  map[string]string
}{
	"v2": {"egress", -150, map[string]tcx.NetfilterInetHook{"egress-forward%d-150": tcx.NetfilterInetForward, "egress-input%d-150": tcx.NetfilterInetLocalIn},
		map[string]string{"forward": "egress_filter", "input": "egress_filter"}},
	// The programs of this layout are at -160 when these are attached.
	"v3": {"hook", -161, map[string]tcx.NetfilterInetHook{"forward%d-1": tcx.NetfilterInetForward, "local_in%d-1": tcx.NetfilterInetLocalIn, "local_out%d-1": tcx.NetfilterInetLocalOut},
		map[string]string{"forward": "forward_filter", "input": "local_in_filter", "output": "local_out_filter"}},
}

// plantEgress attaches the egress programs of an older layout after DNAT: in nftables rules, or at
// the netfilter hooks.
func (u *upgradeTraffic) plantEgress(layout string, spec *ebpf.CollectionSpec, pinned ebpf.CollectionOptions) error {
	if spec == nil {
		return kubeproxy.DropRule()
	}
	was := previousEgress[layout]
	for name := range spec.Programs {
		if (name == was.hook) == u.byRule {
			delete(spec.Programs, name)
		}
	}
	old, err := ebpf.NewCollectionWithOptions(spec, pinned)
	if err != nil {
		return err
	}
	defer old.Close()
	if u.byRule {
		pins := make(map[string][]string)
		for chain, name := range was.filters {
			pin := filepath.Join(pinned.Maps.PinPath, name)
			if err := old.Programs[name].Pin(pin); err != nil {
				return err
			}
			pins[chain] = []string{pin}
		}
		return kubeproxy.SetRule(pins)
	}
	for version, family := range map[int]tcx.NetfilterProtocolFamily{4: tcx.NetfilterProtoIPv4, 6: tcx.NetfilterProtoIPv6} {
		for name, hook := range was.pins {
			l, err := tcx.AttachNetfilter(tcx.NetfilterOptions{Program: old.Programs[was.hook], ProtocolFamily: family, Hook: hook, Priority: was.priority})
			if err != nil {
				return err
			}
			err = l.Pin(filepath.Join(pinned.Maps.PinPath, "links", fmt.Sprintf(name, version)))
			l.Close()
			if err != nil {
				return err
			}
		}
	}
	return kubeproxy.DropRule()
}

// plantV1 installs the programs of layout v1, which decide egress before DNAT.
func (u *upgradeTraffic) plantV1() {
	u.t.Helper()
	names := []string{"slots", "peers4", "peers6", "prefixes4", "prefixes6", "ports", "verdicts", "rows", "tables", "endpoints"}
	u.plant("v1", names, func(name string, v []byte) []byte {
		switch name {
		case "verdicts":
			return v[:4] // older rows have no causes
		case "peers4", "peers6":
			return binary.NativeEndian.AppendUint32(nil, binary.NativeEndian.Uint32(v)&^bpfobj.PeerPod)
		case "endpoints": // addresses, the pod's MAC, padding, slot
			return append(append(bytes.Clone(v[:26]), 0, 0), v[len(v)-4:]...)
		}
		return v
	}, nil)
}

// plantV2 installs the programs of layout v2, which do not check the sources of packets, and do
// not let both ends decide about answers.
func (u *upgradeTraffic) plantV2() {
	u.t.Helper()
	names := []string{"slots", "peers4", "peers6", "prefixes4", "prefixes6", "ports", "verdicts", "rows", "tables", "endpoints",
		"interfaces", "generation", "locals4", "locals6", "attachments", "node_routes4", "node_routes6"}
	u.plant("v2", names, func(name string, v []byte) []byte {
		if name == "verdicts" {
			return v[:4]
		}
		if name != "node_routes4" && name != "node_routes6" {
			return v
		}
		if binary.NativeEndian.Uint32(v[4:]) == 0 {
			return nil // v2 knew only node routes of the fast path
		}
		return v[:4]
	}, u.older("layout-v2-egress.o.gz"))
}

// plantV3 installs the programs of layout v3, whose maps and fields have other names.
func (u *upgradeTraffic) plantV3() {
	u.t.Helper()
	names := []string{"slots", "peers4", "peers6", "prefixes4", "prefixes6", "ports", "verdicts", "rows", "tables", "endpoints",
		"interfaces", "generation", "locals4", "locals6", "attachments", "node_routes4", "node_routes6", "owners4", "owners6",
		"tunnel_nodes", "tunnel_sources4", "tunnel_sources6"}
	u.plant("v3", names, func(name string, v []byte) []byte {
		if name == "verdicts" {
			return v[:4]
		}
		return v
	}, u.older("layout-v3-egress.o.gz"))
}

func pinTCX(p *ebpf.Program, at ebpf.AttachType, index int, path string) error {
	l, err := tcx.AttachTCX(tcx.TCXOptions{Interface: index, Program: p, Attach: at})
	if err != nil {
		return err
	}
	defer l.Close()
	return l.Pin(path)
}

// Older layouts, with other structs, are replaced under traffic. v1 has no programs after DNAT.
func TestUpgradeFromOlderLayouts(t *testing.T) {
	t.Parallel()
	forms := []bool{true}
	if features.HaveProgramType(ebpf.Netfilter) == nil { // since Linux 6.4
		forms = append(forms, false)
	}
	for layout, plant := range map[string]func(*upgradeTraffic){"v1": (*upgradeTraffic).plantV1, "v2": (*upgradeTraffic).plantV2, "v3": (*upgradeTraffic).plantV3} {
		for _, byRule := range forms {
			t.Run(fmt.Sprintf("%s/rule=%t", layout, byRule), func(t *testing.T) {
				l := newLab(t)
				l.byRule = byRule
				u := newUpgradeTraffic(l)
				plant(u)
				u.begin()
				u.judge()
				u.watchSteps()
				l.start()
				u.judge()
				u.adopt()
				u.judge()
				u.settled()
				u.end()
			})
		}
	}
}

// reshaped returns a flow table with the fields of struct conn in another order, with a new
// field and without some others. It copies the flows to it.
func reshaped(t *testing.T, from *ebpf.Map, without ...string) *ebpf.Map {
	t.Helper()
	spec, err := bpfobj.LoadPod()
	if err != nil {
		t.Fatal(err)
	}
	m := spec.Maps["conn_index4"]
	var now *btf.Struct
	if err := spec.Types.TypeByName("conn", &now); err != nil {
		t.Fatal(err)
	}
	old := &btf.Struct{Name: now.Name, Members: []btf.Member{{Name: "mood", Type: &btf.Int{Name: "unsigned int", Size: 4}}}, Size: 8}
	var moves [][3]uint32
	for _, f := range slices.Backward(now.Members) {
		if slices.Contains(without, f.Name) {
			continue
		}
		size, err := btf.Sizeof(f.Type)
		if err != nil {
			t.Fatal(err)
		}
		moves = append(moves, [3]uint32{f.Offset.Bytes(), old.Size, uint32(size)})
		old.Members = append(old.Members, btf.Member{Name: f.Name, Type: f.Type, Offset: btf.Bits(old.Size * 8)})
		old.Size = (old.Size + uint32(size) + 7) &^ 7
	}
	made, err := ebpf.NewMap(&ebpf.MapSpec{Name: "conns4", Type: ebpf.LRUHash, KeySize: m.KeySize, ValueSize: old.Size, MaxEntries: from.MaxEntries(), Key: m.Key, Value: old})
	if err != nil {
		t.Fatal(err)
	}
	if err := flowtable.Read4(from, func(_ uint32, e *bpfobj.PodConnEntry4) error {
		v, err := binary.Append(nil, binary.NativeEndian, e.Conn)
		if err != nil {
			return err
		}
		as := bytes.Repeat([]byte{0xee}, int(old.Size))
		for _, c := range moves {
			copy(as[c[1]:c[1]+c[2]], v[c[0]:c[0]+c[2]])
		}
		return made.Put(e.Key, as)
	}); err != nil {
		t.Fatal(err)
	}
	return made
}

// Flows survive if the older layout has their fields at other offsets. Flows with unknown
// values are skipped and counted.
func TestFlowsAreMigratedByTheNamesOfTheirFields(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	u := newUpgradeTraffic(l)
	u.begin()
	u.age()
	path := filepath.Join(l.bpffs, "v1", "conns4")
	from, err := ebpf.LoadPinnedMap(path, nil)
	l.must(err)
	defer from.Close()
	var odd bpfobj.PodConnEntry4 // seen recently, but no packet follows
	l.must(flowtable.Read4(from, func(_ uint32, e *bpfobj.PodConnEntry4) error { odd = *e; return nil }))
	if odd.Conn.Version == 0 {
		t.Fatal("there are no flows")
	}
	odd.Key.Protocol, odd.Conn.State = 99, 9
	l.must(from.Put(from.MaxEntries()-1, odd))
	old := reshaped(t, from, "packets", "bytes")
	defer old.Close()
	l.must(os.Remove(path))
	l.must(old.Pin(path))
	var log bytes.Buffer
	l.log = &log
	l.start()
	u.adopt()
	u.judge()
	u.settled()
	u.end()
	if !strings.Contains(log.String(), "unknown=1") || !strings.Contains(log.String(), "could not be migrated") {
		t.Errorf("the flow of an unknown state is not mentioned: %s", log.String())
	}
}

// An agent polices a pod again after another process removed its older programs, also if no
// older programs are left at all.
func TestUpgradeWithoutOlderPrograms(t *testing.T) {
	t.Parallel()
	for _, bare := range [][]string{{"b"}, {"a", "b"}} {
		t.Run(strings.Join(bare, ","), func(t *testing.T) {
			l := newLab(t)
			u := newUpgradeTraffic(l)
			u.ready()
			u.age()
			for _, name := range bare {
				l.must(l.node.Do(func() error {
					index, err := link.Index(link.HostName(model.MakeEndpointID(name, "eth0")))
					return errors.Join(err, link.DropClassifiers(index))
				}))
			}
			l.start()
			if problems := l.problems(); len(problems) != len(bare) || problems[0] != "programs are not attached" {
				t.Errorf("problems: %q", problems)
			}
			u.adopt()
			u.settled()
			u.judge()
		})
	}
}

// Remove also removes an older layout that no agent has migrated.
func TestRemoveOfOlderLayout(t *testing.T) {
	l := newLab(t)
	u := newUpgradeTraffic(l)
	u.age()
	l.start()
	l.must(l.backend.Close())
	cfg := linux.Defaults()
	cfg.BPFFS = l.bpffs
	l.must(os.MkdirAll(filepath.Join(l.bpffs, "v0-retired", "links"), 0o700))
	l.must(l.node.Do(func() error { return linux.Remove(context.Background(), cfg) }))
	if left, err := filepath.Glob(filepath.Join(l.bpffs, "v*")); err != nil || len(left) > 0 {
		t.Errorf("left: %q, %v", left, err)
	}
	l.start()
}

// If an older layout cannot be migrated, the agent reports an error. The layout stays in force
// and unchanged for the agent that created it.
func TestUpgradeIsRefused(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	u := newUpgradeTraffic(l)
	u.begin()
	u.age()
	old := filepath.Join(l.bpffs, "v1")
	refused := func(words ...string) {
		t.Helper()
		l.must(l.node.Do(func() error {
			cfg := linux.Defaults()
			cfg.BPFFS, cfg.Uplink = l.bpffs, "eth0"
			_, err := linux.New(context.Background(), cfg, slog.New(slog.NewTextHandler(io.Discard, nil)))
			for _, w := range append(words, "drain the node") {
				if err == nil || !strings.Contains(err.Error(), w) {
					t.Errorf("want a refusal with %q, got %v", w, err)
				}
			}
			return nil
		}))
		if _, err := os.Stat(filepath.Join(l.bpffs, loader.LayoutVersion)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a refused agent left its directory: %v", err)
		}
		u.judgeQuickly()
	}
	exchange := func(name string, spec *ebpf.MapSpec) {
		t.Helper()
		l.must(os.Rename(filepath.Join(old, name), filepath.Join(l.bpffs, "kept")))
		if spec != nil {
			m, err := ebpf.NewMap(spec)
			l.must(err)
			l.must(m.Pin(filepath.Join(old, name)))
			m.Close()
		}
		refused(old, "v1", loader.LayoutVersion, name)
		if spec != nil {
			l.must(os.Remove(filepath.Join(old, name)))
		}
		l.must(os.Rename(filepath.Join(l.bpffs, "kept"), filepath.Join(old, name)))
	}
	exchange("conns6", nil)
	exchange("conns4", &ebpf.MapSpec{Type: ebpf.LRUHash, KeySize: 16, ValueSize: 72, MaxEntries: 10}) // no BTF
	from, err := ebpf.LoadPinnedMap(filepath.Join(old, "conns4"), nil)
	l.must(err)
	defer from.Close()
	for _, field := range []string{"seen", "state", "end"} {
		l.must(os.Rename(filepath.Join(old, "conns4"), filepath.Join(l.bpffs, "kept")))
		m := reshaped(t, from, field)
		l.must(m.Pin(filepath.Join(old, "conns4")))
		refused("conns4", "conn", field)
		l.must(m.Unpin())
		m.Close()
		l.must(os.Rename(filepath.Join(l.bpffs, "kept"), filepath.Join(old, "conns4")))
	}
	exchange("post_dnat", &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 52, MaxEntries: 65536})
	beside := func(layout string, words ...string) {
		t.Helper()
		l.must(os.Mkdir(filepath.Join(l.bpffs, layout), 0o700))
		l.must(replace(filepath.Join(l.bpffs, layout, "events"), ebpf.Hash, 4, 4))
		refused(words...)
		l.must(remove(filepath.Join(l.bpffs, layout)))
	}
	beside("v99", "v99", "newer", loader.LayoutVersion)
	beside("v0", "v0, v1", "not finished")
	l.start()
	u.adopt()
	u.judge()
	u.settled()
	u.end()
}

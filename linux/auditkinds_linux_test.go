// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/bpfobj"
	isthmuslink "github.com/isthmus-net/isthmus/linux/link"
	"github.com/isthmus-net/isthmus/linux/loader"
)

// kind is a kind of damage.
type kind struct {
	name string
	// objects are the names that an audit may give it.
	objects []string
	// opens and cuts say that the damage itself may pass denied packets, or drop allowed ones,
	// until it is repaired.
	opens, cuts bool
	// renumbers is true if the repair does not restore the previous entries, but writes the same
	// policy with other numbers.
	renumbers bool
	// needs is the kind of links that a kernel must have for it, empty for none.
	needs string
	// moves is true if the repair moves the programs of pod d to other hooks.
	moves bool
	// do does the damage in the node's namespace, and describes it.
	do func() (string, error)
}

// The maps, and the possible effects of damage to them.
var damagedMaps = []struct {
	name, object string // object: alternative names
	opens, cuts  bool
	ops          string // on entries: delete, change, add
}{
	{"slots", "slots", true, true, "change"}, {"peers4", "peers", true, true, "delete change add"}, {"peers6", "peers", true, true, "delete change add"},
	{"prefixes4", "prefixes", true, true, "delete change add"}, {"prefixes6", "prefixes", true, true, "delete change add"},
	{"ports", "ports", true, true, "change"}, {"verdicts", "verdicts", true, true, "delete change add"}, {"rows", "rows", true, true, "change"},
	{"tables", "tables", false, false, "delete change add"}, {"causes", "causes", false, false, "delete change add"},
	{"cause_blocks", "cause_blocks", false, false, "change"}, {"table_causes", "table_causes", false, false, "change"},
	{"endpoints", "endpoints endpoint", false, true, "delete change add"},
	{"locals4", "locals", false, true, "delete change add"}, {"locals6", "locals", false, true, "delete change add"},
	{"attachments", "attachments", false, true, "change"}, {"interfaces", "interfaces", false, true, "change"},
	{"node_routes4", "node_routes", false, false, "delete change add"}, {"node_routes6", "node_routes", false, false, "delete change add"},
	{"owners4", "owners", false, false, "delete change add"}, {"owners6", "owners", false, false, "delete change add"},
	{"tunnel_nodes", "tunnel_nodes", false, false, "delete change add"}, {"tunnel_sources4", "tunnel_sources", false, false, "delete change add"},
	{"tunnel_sources6", "tunnel_sources", false, false, "delete change add"}, {"tunnel_kinds", "tunnel_kinds", false, false, "delete change add"},
	{"deny4", "deny_list", false, false, "delete change add"}, {"deny_prefixes4", "deny_list", false, false, "delete change add"},
	{"deny_prefixes6", "deny_list", false, false, "delete change add"}, {"deny_prefilter4", "deny_prefilter", false, false, "change"},
	{"deny_prefilter6", "deny_prefilter", false, false, "change"},
}

// kinds lists every kind of damage that is possible with this kernel.
func (a *auditLab) kinds() (all []kind) {
	for _, m := range damagedMaps {
		for _, op := range strings.Fields(m.ops) {
			all = append(all, kind{name: op + " " + m.name, objects: strings.Fields(m.object), opens: m.opens, cuts: m.cuts, do: func() (string, error) { return a.damageMap(m.name, op) }})
		}
		all = append(all, kind{name: "unpin " + m.name, objects: []string{"pin"}, do: func() (string, error) { return m.name, os.Remove(a.pinned(m.name)) }})
	}
	for _, name := range []string{"conns4", "conn_index6", "conn_hints4", "counters", "verdict_counts", "cause_counts", "post_dnat", "events", "datagrams"} {
		all = append(all, kind{name: "unpin " + name, objects: []string{"pin"}, do: func() (string, error) { return name, os.Remove(a.pinned(name)) }})
	}
	one := func(name string, objects []string, opens, cuts bool, do func() (string, error)) {
		all = append(all, kind{name: name, objects: objects, opens: opens, cuts: cuts, do: do})
	}
	one("class of a port beyond rows", []string{"ports"}, true, true, func() (string, error) {
		return a.put("ports", uint32(a.rng.IntN(65536)), uint16(1024+a.rng.IntN(60000)))
	})
	one("verdict of a row beyond the map", []string{"verdicts"}, true, true, a.wildVerdict)
	one("open a row", []string{"rows"}, true, false, a.openRow)
	one("point a slot elsewhere", []string{"slots"}, true, true, a.pointElsewhere)
	one("swap two classes", []string{"peers"}, true, true, a.swapClasses)
	one("damage two parts of verdicts", []string{"slots", "ports", "peers", "rows"}, true, true, a.damageTwoParts)
	all[len(all)-1].renumbers = true
	one("pin another map", []string{"pin"}, false, false, a.pinOther)
	one("directory for a pin", []string{"pin"}, false, false, func() (string, error) {
		return "verdicts", errors.Join(os.Remove(a.pinned("verdicts")), os.Mkdir(a.pinned("verdicts"), 0o700))
	})
	with := func(links, name string, objects []string, opens, cuts bool, do func() (string, error)) {
		all = append(all, kind{name: name, objects: objects, opens: opens, cuts: cuts, needs: links, do: do})
	}
	for _, suffix := range []string{"-from_pod", "-to_pod"} {
		objects := []string{"link", "endpoint"}
		with("tcx", "detach"+suffix, objects, true, true, func() (string, error) { return a.onLink(suffix, func(l link.Link) error { return l.Detach() }) })
		with("tcx", "unpin"+suffix, []string{"pin"}, false, false, func() (string, error) { return a.onLink(suffix, func(l link.Link) error { return l.Unpin() }) })
		with("tcx", "replace program of"+suffix, objects, true, true, func() (string, error) { return a.onLink(suffix, a.replaceProgram) })
	}
	with("tcx", "program that passes on before ours", []string{"link"}, false, false, func() (string, error) { return a.programBefore("b", -1) })
	with("tcx", "program that lets pass before ours", []string{"link"}, true, true, func() (string, error) { return a.programBefore("b", 0) })
	with("tcx", "program before ours on clsact hooks", []string{"classifier"}, true, true, func() (string, error) { return a.programBefore("d", 0) })
	all[len(all)-1].moves = true
	one("delete classifiers", []string{"classifier", "endpoint"}, true, true, a.deleteClassifiers)
	one("delete clsact", []string{"classifier", "endpoint"}, true, true, a.deleteClsact)
	one("replace classifier", []string{"classifier"}, true, true, a.replaceClassifier)
	for _, place := range []string{"pre_routing4", "forward4", "forward6", "local_in4", "local_out6"} {
		with("netfilter", "detach "+place, []string{"netfilter"}, false, false, func() (string, error) { return a.onHook(place, func(l link.Link) error { return l.Detach() }) })
		with("netfilter", "unpin "+place, []string{"pin"}, false, false, func() (string, error) { return a.onHook(place, func(l link.Link) error { return l.Unpin() }) })
	}
	one("detach XDP", []string{"xdp"}, false, false, func() (string, error) {
		return a.onPin(filepath.Join(a.bpffs, "xdp", "eth0"), func(l link.Link) error { return l.Detach() })
	})
	one("unpin XDP", []string{"pin"}, false, false, func() (string, error) {
		return a.onPin(filepath.Join(a.bpffs, "xdp", "eth0"), func(l link.Link) error { return l.Unpin() })
	})
	one("replace XDP", []string{"xdp"}, false, true, func() (string, error) { return a.onPin(filepath.Join(a.bpffs, "xdp", "eth0"), a.replaceXDP) })
	with("tcx", "detach from_node", []string{"link"}, false, false, func() (string, error) {
		return a.onPin(a.pinned("links/eth0-from_node"), func(l link.Link) error { return l.Detach() })
	})
	for _, s := range []string{"forwarding", "rp_filter", "accept_redirects", "send_redirects"} {
		one("sysctl "+s, []string{"endpoint"}, false, true, func() (string, error) { return a.sysctl("ipv4/conf/" + a.hostEnd("b") + "/" + s) })
	}
	for _, s := range []string{"disable_ipv6", "forwarding", "accept_ra"} {
		one("sysctl of IPv6 "+s, []string{"endpoint"}, false, true, func() (string, error) { return a.sysctl("ipv6/conf/" + a.hostEnd("d") + "/" + s) })
	}
	one("sysctl ip_forward", []string{"sysctl", "endpoint"}, false, true, func() (string, error) { return a.sysctl("ipv4/ip_forward") })
	one("delete queue", []string{"endpoint"}, false, false, a.deleteQueue)
	one("delete redirection", []string{"endpoint"}, false, false, a.deleteRedirection)
	one("set interface down", []string{"endpoint"}, false, true, a.setDown)
	with("tcx", "variable forward_direct", []string{"variable"}, false, true, a.damageVariable)
	one("stage", []string{"generation"}, false, false, func() (string, error) { return a.put("generation", uint32(0), a.rng.Uint32()) })
	return slices.DeleteFunc(all, func(k kind) bool { return k.needs != "" && !a.links[k.needs] })
}

func (l *lab) pinned(name string) string {
	return filepath.Join(l.bpffs, loader.LayoutVersion, name)
}

func (a *auditLab) hostEnd(pod string) string {
	return isthmuslink.HostName(model.MakeEndpointID(pod, "eth0"))
}

func (a *auditLab) index(pod string) (int, error) { return isthmuslink.Index(a.hostEnd(pod)) }

// rawEntry is an entry of a map as the kernel stores it.
type rawEntry struct{ key, value []byte }

// rawEntries reads a map, in the order of the kernel.
func rawEntries(m *ebpf.Map) (all []rawEntry, err error) {
	if m.Type() == ebpf.Array || m.Type() == ebpf.Hash {
		return rawBatches(m)
	}
	var key, value []byte
	it := m.Iterate()
	for it.Next(&key, &value) {
		all = append(all, rawEntry{slices.Clone(key), slices.Clone(value)})
	}
	return all, it.Err()
}

// rawBatches reads a map that has batches since Linux 5.6.
func rawBatches(m *ebpf.Map) (all []rawEntry, err error) {
	list := func(size uint32) reflect.Value {
		n := int(m.MaxEntries()) // a bucket has at most all entries
		return reflect.MakeSlice(reflect.SliceOf(reflect.ArrayOf(int(size), reflect.TypeFor[byte]())), n, n)
	}
	keys, values := list(m.KeySize()), list(m.ValueSize())
	var at ebpf.MapBatchCursor
	for err == nil {
		var n int
		n, err = m.BatchLookup(&at, keys.Interface(), values.Interface(), nil)
		for i := range n {
			all = append(all, rawEntry{slices.Clone(keys.Index(i).Bytes()), slices.Clone(values.Index(i).Bytes())})
		}
	}
	if errors.Is(err, ebpf.ErrKeyNotExist) { // the last batch
		err = nil
	}
	return all, err
}

func (a *auditLab) open(name string, f func(*ebpf.Map) error) error {
	m, err := ebpf.LoadPinnedMap(a.pinned(name), nil)
	if err != nil {
		return err
	}
	defer m.Close()
	return f(m)
}

func (a *auditLab) put(name string, key, value any) (string, error) {
	return fmt.Sprintf("%s %v: %v", name, key, value), a.open(name, func(m *ebpf.Map) error { return m.Put(key, value) })
}

func (a *auditLab) randomBytes(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(a.rng.Uint32())
	}
	return b
}

// damageMap deletes, changes or adds an entry.
func (a *auditLab) damageMap(name, op string) (what string, err error) {
	err = a.open(name, func(m *ebpf.Map) error {
		if op == "add" {
			key, value := a.randomBytes(int(m.KeySize())), a.randomBytes(int(m.ValueSize()))
			if m.Type() == ebpf.LPMTrie {
				binary.NativeEndian.PutUint32(key, uint32(20+a.rng.IntN(int(m.KeySize()-4)*8-20)))
			}
			what = fmt.Sprintf("%x: %x", key, value)
			return m.Update(key, value, ebpf.UpdateNoExist)
		}
		all, err := a.candidates(name, m)
		if err != nil {
			return err
		}
		e := all[a.rng.IntN(len(all))]
		what = fmt.Sprintf("%x: %x", e.key, e.value)
		if op == "delete" {
			return m.Delete(e.key)
		}
		bit := a.rng.IntN(meaningful(name, e.value) * 8)
		e.value[bit/8] ^= 1 << (bit % 8)
		return m.Put(e.key, e.value)
	})
	return what, err
}

// meaningful returns how many bytes of a value have a meaning, from its first byte.
func meaningful(name string, value []byte) int {
	const index, withEndpoint = 4, 40 // bytes of struct interface
	switch {
	case name != "interfaces":
		return len(value)
	case binary.NativeEndian.Uint32(value)&bpfobj.InterfaceKept != 0: // it holds no endpoint
		return index
	default:
		return withEndpoint
	}
}

// candidates returns the entries of a map that have a meaning.
func (a *auditLab) candidates(name string, m *ebpf.Map) ([]rawEntry, error) {
	if name == "rows" {
		return a.usedRows(m)
	}
	if name == "ports" || strings.HasPrefix(name, "deny_prefilter") { // every entry has a meaning
		key := binary.NativeEndian.AppendUint32(nil, uint32(a.rng.IntN(int(m.MaxEntries()))))
		value, err := m.LookupBytes(key)
		return []rawEntry{{key, value}}, err
	}
	all, err := rawEntries(m)
	if m.Type() == ebpf.Array {
		all = slices.DeleteFunc(all, func(e rawEntry) bool { return !slices.ContainsFunc(e.value, func(b byte) bool { return b != 0 }) })
	}
	if name == "interfaces" { // index 0 marks a free entry, whatever else it holds
		all = slices.DeleteFunc(all, func(e rawEntry) bool { return binary.NativeEndian.Uint32(e.value) == 0 })
	}
	if err == nil && len(all) == 0 {
		return nil, fmt.Errorf("map %s is empty: there is nothing to damage", name)
	}
	return all, err
}

// usedRows returns the rows that verdicts refer to.
func (a *auditLab) usedRows(rows *ebpf.Map) (used []rawEntry, err error) {
	err = a.open("verdicts", func(m *ebpf.Map) error {
		all, err := rawEntries(m)
		for _, e := range all {
			n := binary.NativeEndian.Uint32(e.value)
			if n < 2 || n >= rows.MaxEntries() {
				continue
			}
			value, err := rows.LookupBytes(e.value[:4])
			if err != nil {
				return err
			}
			used = append(used, rawEntry{e.value[:4], value})
		}
		return err
	})
	return used, err
}

func (a *auditLab) wildVerdict() (what string, err error) {
	err = a.open("verdicts", func(m *ebpf.Map) error {
		all, err := rawEntries(m)
		if err != nil {
			return err
		}
		e := all[a.rng.IntN(len(all))]
		what = fmt.Sprintf("%x", e.key)
		return m.Put(e.key, uint64(16417))
	})
	return what, err
}

func (a *auditLab) openRow() (what string, err error) {
	err = a.open("rows", func(m *ebpf.Map) error {
		all, err := a.usedRows(m)
		if err != nil {
			return err
		}
		e := all[a.rng.IntN(len(all))]
		what = fmt.Sprintf("%x", e.key)
		return m.Put(e.key, slices.Repeat([]byte{0xff}, len(e.value)))
	})
	return what, err
}

// pointElsewhere gives the slot of a pod the table of another pod.
func (a *auditLab) pointElsewhere() (what string, err error) {
	err = a.open("slots", func(m *ebpf.Map) error {
		all, err := a.candidates("slots", m)
		if err != nil {
			return err
		}
		from := a.rng.IntN(len(all))
		to := (from + 1 + a.rng.IntN(len(all)-1)) % len(all)
		what = fmt.Sprintf("%x: %x to %x", all[from].key, all[from].value, all[to].value)
		return m.Put(all[from].key, append(all[to].value[:4:4], all[from].value[4:]...))
	})
	return what, err
}

func (a *auditLab) swapClasses() (what string, err error) {
	err = a.open("peers4", func(m *ebpf.Map) error {
		all, err := rawEntries(m)
		if err != nil {
			return err
		}
		for i, e := range all {
			for _, f := range all[i+1:] {
				if !slices.Equal(e.value, f.value) {
					what = fmt.Sprintf("%x and %x", e.key, f.key)
					return errors.Join(m.Put(e.key, f.value), m.Put(f.key, e.value))
				}
			}
		}
		return errors.New("all addresses are in one class")
	})
	return what, err
}

// damageTwoParts damages two parts, each of which could be repaired to match the other.
func (a *auditLab) damageTwoParts() (string, error) {
	one, err := a.damageMap("peers4", "change")
	if err != nil {
		return "", err
	}
	two, err := a.pointElsewhere()
	if err != nil {
		return "", err
	}
	three, err := a.openRow()
	return one + ", " + two + ", " + three, err
}

// pinOther pins an empty map in place of one of ours.
func (a *auditLab) pinOther() (string, error) {
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 8, ValueSize: 4, MaxEntries: 16})
	if err != nil {
		return "", err
	}
	defer m.Close()
	return "peers4", errors.Join(os.Remove(a.pinned("peers4")), m.Pin(a.pinned("peers4")))
}

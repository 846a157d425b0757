// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	ebpflink "github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/link"
	"github.com/isthmus-net/isthmus/linux/policymap"
)

// fingerprint reads everything that damages change, without the code under test: maps by their
// pins, programs by the hooks of interfaces, and kernel lists. It skips the epochs of slots and
// the generation, which may change, and the map interfaces, a copy of endpoints.
func (a *auditLab) fingerprint() map[string]string {
	a.t.Helper()
	is := make(map[string]string)
	a.must(a.node.Do(func() error {
		for _, m := range damagedMaps {
			if m.name == "interfaces" {
				continue
			}
			if err := a.open(m.name, func(f *ebpf.Map) error { return a.printMap(is, m.name, f) }); err != nil {
				return fmt.Errorf("map %s: %w", m.name, err)
			}
		}
		if err := a.printPins(is); err != nil {
			return err
		}
		for _, pod := range []string{"a", "b", "c", "d"} {
			if err := a.printInterface(is, a.hostEnd(pod)); err != nil {
				return err
			}
		}
		return a.printInterface(is, "eth0")
	}))
	return is
}

func (a *auditLab) printMap(is map[string]string, name string, m *ebpf.Map) error {
	info, err := m.Info()
	if err != nil {
		return err
	}
	id, _ := info.ID()
	is["map "+name] = fmt.Sprint(id)
	if name == "ports" || name == "deny_prefilter4" || name == "slots" { // large: read all at once
		memory, err := m.Memory()
		if err != nil {
			return err
		}
		buf := make([]byte, memory.Size())
		if _, err := memory.ReadAt(buf, 0); err != nil {
			return err
		}
		if name == "slots" {
			for at := 0; at+8 <= len(buf); at += 8 {
				binary.NativeEndian.PutUint32(buf[at+4:], 0)
			}
		}
		is["content of "+name] = string(buf)
		return nil
	}
	if name == "attachments" { // many entries, all at once
		keys, values := make([]uint32, bpfobj.Slots), make([]bpfobj.PodAttachment, bpfobj.Slots)
		var at ebpf.MapBatchCursor
		if _, err := m.BatchLookup(&at, keys, values, nil); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
		for i, v := range values {
			if v != (bpfobj.PodAttachment{}) {
				is["content of "+name] += fmt.Sprintf("%d: %v\n", keys[i], v)
			}
		}
		return nil
	}
	all, err := rawEntries(m)
	if name == "rows" {
		all, err = a.usedRows(m)
	}
	var lines []string
	for _, e := range all {
		if m.Type() != ebpf.Array || slices.ContainsFunc(e.value, func(b byte) bool { return b != 0 }) {
			lines = append(lines, fmt.Sprintf("%x: %x", e.key, e.value))
		}
	}
	slices.Sort(lines)
	is["content of "+name] = strings.Join(lines, "\n")
	return err
}

// printPins lists the pins, and the programs of the links.
func (a *auditLab) printPins(is map[string]string) error {
	for _, dir := range []string{a.pinned(""), a.pinned("links"), filepath.Join(a.bpffs, "xdp")} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			// Netfilter links may change their number.
			name, _, _ := strings.Cut(path, "forward4-")
			is["pin "+name] = e.Type().String()
			l, err := ebpflink.LoadPinnedLink(path, nil)
			if err != nil {
				continue // another type of object
			}
			info, err := l.Info()
			l.Close()
			if err != nil {
				return err
			}
			if info.Netfilter() != nil {
				delete(is, "pin "+name)
				place, _, _ := strings.Cut(e.Name(), "-")
				name = filepath.Join(dir, place)
			}
			is["pin "+name] = fmt.Sprintf("link of program %d", info.Program)
		}
	}
	return nil
}

// printInterface describes an interface: programs in their order, filters, qdiscs, flags and
// sysctls.
func (a *auditLab) printInterface(is map[string]string, name string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	index := l.Attrs().Index
	for _, hook := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
		if !a.links["tcx"] {
			break
		}
		all, err := ebpflink.QueryPrograms(ebpflink.QueryOptions{Target: index, Attach: hook})
		if err != nil {
			return err
		}
		if len(all.Programs) > 0 {
			is[fmt.Sprintf("%s %v", name, hook)] = fmt.Sprint(all.Programs[0].ID)
		}
	}
	for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
		filters, err := link.Whole(func() ([]netlink.Filter, error) { return netlink.FilterList(l, parent) })
		if err != nil {
			continue
		}
		var text []string
		for _, f := range filters {
			if b, ok := f.(*netlink.BpfFilter); ok {
				text = append(text, fmt.Sprintf("bpf %d %d %s %d", b.Priority, b.Handle, b.Name, b.Id))
			} else if u, ok := f.(*netlink.U32); ok && len(u.Actions) > 0 {
				text = append(text, fmt.Sprintf("u32 %d to %d", u.Priority, u.RedirIndex))
			}
		}
		is[fmt.Sprintf("%s filters %x", name, parent)] = strings.Join(text, ", ")
	}
	qdiscs, err := link.Whole(func() ([]netlink.Qdisc, error) { return netlink.QdiscList(l) })
	if err != nil {
		return err
	}
	for _, q := range qdiscs {
		if t, ok := q.(*netlink.Tbf); ok {
			is[name+" queue"] = fmt.Sprint(t.Rate, t.Limit, t.Buffer)
		}
	}
	is[name+" flags"] = fmt.Sprint(l.Attrs().Flags)
	if x := l.Attrs().Xdp; x != nil {
		is[name+" XDP"] = fmt.Sprint(x.Attached, x.ProgId)
	}
	for _, s := range []string{"ipv4/conf/" + name + "/forwarding", "ipv4/conf/" + name + "/rp_filter", "ipv4/conf/" + name + "/accept_redirects", "ipv4/conf/" + name + "/send_redirects",
		"ipv6/conf/" + name + "/disable_ipv6", "ipv6/conf/" + name + "/forwarding", "ipv6/conf/" + name + "/accept_ra", "ipv4/ip_forward"} {
		value, err := os.ReadFile("/proc/sys/net/" + s)
		if err != nil {
			return err
		}
		is["sysctl "+s] = strings.TrimSpace(string(value))
	}
	return nil
}

// verdicts reads the policy maps by their pins and compares their verdicts with the State.
func (a *auditLab) verdicts() (wrong []string) {
	a.t.Helper()
	e := policymap.NewEntries()
	word := func(b []byte) uint32 { return binary.NativeEndian.Uint32(b) }
	slots := make(map[netip.Addr]uint32)
	for name, note := range map[string]func(rawEntry){
		"slots": func(r rawEntry) {
			e.Slots[word(r.key)] = bpfobj.PodSlot{Table: word(r.value), Epoch: word(r.value[4:])}
		},
		"peers4": func(r rawEntry) { e.Peers[netip.AddrFrom4([4]byte(r.key))] = word(r.value) &^ bpfobj.PeerPod },
		"peers6": func(r rawEntry) { e.Peers[netip.AddrFrom16([16]byte(r.key))] = word(r.value) &^ bpfobj.PeerPod },
		"prefixes4": func(r rawEntry) {
			e.Prefixes[netip.PrefixFrom(netip.AddrFrom4([4]byte(r.key[4:])), int(word(r.key)))] = word(r.value)
		},
		"prefixes6": func(r rawEntry) {
			e.Prefixes[netip.PrefixFrom(netip.AddrFrom16([16]byte(r.key[4:])), int(word(r.key)))] = word(r.value)
		},
		"endpoints": func(r rawEntry) { slots[netip.AddrFrom4([4]byte(r.value))] = word(r.value[len(r.value)-4:]) },
		"verdicts": func(r rawEntry) {
			table := e.Verdicts[word(r.key)]
			if table == nil {
				table = make(map[uint32]policymap.VerdictRow)
				e.Verdicts[word(r.key)] = table
			}
			table[word(r.key[4:])] = policymap.VerdictRow{Row: word(r.value), Causes: word(r.value[4:])}
		},
		"rows": func(r rawEntry) {
			var row policymap.Row
			for i := range row.Allow {
				row.Allow[i] = binary.NativeEndian.Uint64(r.value[8*i:])
			}
			e.Rows[word(r.key)] = row
		},
		"ports": func(r rawEntry) { e.Ports[word(r.key)] = binary.NativeEndian.Uint16(r.value) },
	} {
		a.must(a.open(name, func(m *ebpf.Map) error {
			all, err := rawEntries(m)
			for _, r := range all {
				note(r)
			}
			return err
		}))
	}
	for id, endpoint := range a.local {
		slot := slots[endpoint.IPs[0]]
		for _, remote := range []string{"10.1.0.11", "10.1.0.12", "10.1.0.13", "10.1.0.14", friend4, outsideAddr4, nodeAddr4, "172.21.1.1", "10.20.0.1", "10.2.0.5", "8.8.8.8", "fd01::b", "fd01::c", friend6, "2001:db8::1"} {
			addr := netip.MustParseAddr(remote)
			if slices.Contains(endpoint.IPs, addr) {
				continue // a packet from a pod to itself needs no lookup
			}
			for _, d := range model.Directions {
				for _, protocol := range []model.Protocol{model.TCP, model.UDP, model.SCTP} {
					for _, port := range []uint16{53, 80, 81, 443, 8080, 9000, 9100} {
						want := a.state.Policy.Decide(id, d, addr, protocol, port).Verdict
						if got := e.Lookup(slot, d, addr, protocol, port); got != want {
							wrong = append(wrong, fmt.Sprintf("%s (slot %d, %v) %s %s %s/%d is %s, want %s", id, slot, e.Slots[slot], d, addr, protocol, port, got, want))
						}
					}
				}
			}
		}
	}
	return wrong
}

// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
)

// fingerprint reads everything that damages concern, without the code under test:
// maps by their pins, programs by the hooks of interfaces, and what the kernel lists.
// Epochs of slots may change, the stage too, and the map interfaces repeats endpoints.
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
	if name == "ports" || name == "deny_sieve4" || name == "slots" { // large: read at once
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

// printPins tells which pins there are, and which programs the links have.
func (a *auditLab) printPins(is map[string]string) error {
	for _, dir := range []string{a.pinned(""), a.pinned("links"), filepath.Join(a.bpffs, "xdp")} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			// The links of netfilter change places.
			name, _, _ := strings.Cut(path, "forward4-")
			is["pin "+name] = e.Type().String()
			l, err := link.LoadPinnedLink(path, nil)
			if err != nil {
				continue // another kind of object
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

// printInterface tells what is on an interface: programs in their order, filters,
// queues, flags and sysctls.
func (a *auditLab) printInterface(is map[string]string, name string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	index := l.Attrs().Index
	for _, hook := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
		all, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: hook})
		if err != nil {
			return err
		}
		if len(all.Programs) > 0 {
			is[fmt.Sprintf("%s %v", name, hook)] = fmt.Sprint(all.Programs[0].ID)
		}
	}
	for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
		filters, err := netlink.FilterList(l, parent)
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
	qdiscs, err := netlink.QdiscList(l)
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

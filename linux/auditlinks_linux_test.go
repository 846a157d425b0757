// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	isthmuslink "github.com/isthmus-net/isthmus/linux/link"
)

func (a *auditLab) onPin(path string, f func(link.Link) error) (string, error) {
	l, err := link.LoadPinnedLink(path, nil)
	if err != nil {
		return path, err
	}
	defer l.Close()
	return path, f(l)
}

func (a *auditLab) onLink(suffix string, f func(link.Link) error) (string, error) {
	pod := []string{"a", "b", "c"}[a.rng.IntN(3)]
	return a.onPin(a.pinned("links/"+a.hostEnd(pod)+suffix), f)
}

func (a *auditLab) onHook(place string, f func(link.Link) error) (string, error) {
	found, err := filepath.Glob(a.pinned("links/" + place + "-*"))
	if err != nil || len(found) != 1 {
		return place, fmt.Errorf("pins of %s: %q: %w", place, found, err)
	}
	return a.onPin(found[0], f)
}

// program returns a program that only returns a code.
func program(kind ebpf.ProgramType, code int32) (*ebpf.Program, error) {
	var attach ebpf.AttachType
	if kind == ebpf.XDP {
		attach = ebpf.AttachXDP
	}
	return ebpf.NewProgram(&ebpf.ProgramSpec{Name: "other", Type: kind, AttachType: attach, License: "Dual BSD/GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, code), asm.Return()}})
}

func (a *auditLab) replaceProgram(l link.Link) error {
	p, err := program(ebpf.SchedCLS, 0) // TCX_PASS
	if err != nil {
		return err
	}
	defer p.Close()
	return l.Update(p)
}

func (a *auditLab) replaceXDP(l link.Link) error {
	p, err := program(ebpf.XDP, 2) // XDP_PASS
	if err != nil {
		return err
	}
	defer p.Close()
	return l.Update(p)
}

// programBefore attaches another program to the head of a pod's hook. removeOthers detaches it
// after the repair.
func (a *auditLab) programBefore(pod string, code int32) (string, error) {
	index, err := a.index(pod)
	if err != nil {
		return "", err
	}
	p, err := program(ebpf.SchedCLS, code)
	if err != nil {
		return "", err
	}
	defer p.Close()
	l, err := link.AttachTCX(link.TCXOptions{Interface: index, Program: p, Attach: ebpf.AttachTCXEgress, Anchor: link.Head()})
	if err != nil {
		return "", err
	}
	a.others = append(a.others, l)
	return pod, nil
}

func (a *auditLab) deleteClassifiers() (string, error) {
	index, err := a.index("d")
	if err != nil {
		return "", err
	}
	return "d", isthmuslink.DropClassifiers(index)
}

func clsact(index int) *netlink.Clsact {
	return &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}
}

func (a *auditLab) deleteClsact() (string, error) {
	index, err := a.index("d")
	if err != nil {
		return "", err
	}
	return "d", netlink.QdiscDel(clsact(index))
}

// replaceClassifier puts another program in place of ours, with the same name.
func (a *auditLab) replaceClassifier() (string, error) {
	index, err := a.index("d")
	if err != nil {
		return "", err
	}
	p, err := program(ebpf.SchedCLS, 0)
	if err != nil {
		return "", err
	}
	defer p.Close()
	return "d", isthmuslink.SetClassifiers(index, isthmuslink.Classifiers{FromPod: p.FD(), ToPod: p.FD()})
}

func (a *auditLab) sysctl(path string) (string, error) {
	file := filepath.Join("/proc/sys/net", path)
	now, err := os.ReadFile(file)
	if err != nil {
		return path, err
	}
	other := "1"
	if strings.TrimSpace(string(now)) == "1" {
		other = "0"
	}
	return path, os.WriteFile(file, []byte(other), 0)
}

func (a *auditLab) deleteQueue() (string, error) {
	index, err := a.index("c")
	if err != nil {
		return "", err
	}
	all, err := isthmuslink.Whole(func() ([]netlink.Qdisc, error) {
		return netlink.QdiscList(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: index}})
	})
	if err != nil {
		return "", err
	}
	for _, q := range all {
		if q.Type() == "tbf" {
			return "c", netlink.QdiscDel(q)
		}
	}
	return "", errors.New("pod c has no queue")
}

func (a *auditLab) deleteRedirection() (string, error) {
	index, err := a.index("c")
	if err != nil {
		return "", err
	}
	all, err := isthmuslink.Whole(func() ([]netlink.Filter, error) {
		return netlink.FilterList(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: index}}, netlink.HANDLE_MIN_INGRESS)
	})
	if err != nil {
		return "", err
	}
	for _, f := range all {
		if u, ok := f.(*netlink.U32); ok && len(u.Actions) > 0 {
			attrs := netlink.FilterAttrs{LinkIndex: index, Parent: netlink.HANDLE_MIN_INGRESS, Priority: u.Priority, Protocol: unix.ETH_P_ALL}
			return "c", netlink.FilterDel(&netlink.U32{FilterAttrs: attrs})
		}
	}
	return "", errors.New("pod c has no redirection")
}

func (a *auditLab) setDown() (string, error) {
	l, err := netlink.LinkByName(a.hostEnd("b"))
	if err != nil {
		return "", err
	}
	return "b", netlink.LinkSetDown(l)
}

// damageVariable writes to the data of the loaded programs, which is also a map.
func (a *auditLab) damageVariable() (string, error) {
	p, err := link.LoadPinnedLink(a.pinned("links/"+a.hostEnd("a")+"-from_pod"), nil)
	if err != nil {
		return "", err
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return "", err
	}
	program, err := ebpf.NewProgramFromID(info.Program)
	if err != nil {
		return "", err
	}
	defer program.Close()
	pi, err := program.Info()
	if err != nil {
		return "", err
	}
	ids, _ := pi.MapIDs()
	for _, id := range ids {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			return "", err
		}
		mi, err := m.Info()
		if err == nil && (strings.HasSuffix(mi.Name, ".data") || strings.HasSuffix(mi.Name, ".bss")) && !mi.Frozen() {
			value, err := m.LookupBytes(uint32(0))
			if err == nil {
				value[0] ^= 1
				err = m.Put(uint32(0), value)
			}
			m.Close()
			return mi.Name, err
		}
		m.Close()
	}
	return "", errors.New("the programs have no data that can be written")
}

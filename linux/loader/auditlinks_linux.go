// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// AuditLinks checks the links of an interface to which Attach attached programs. A link may be
// detached, may have another program, or may run after another program, which could pass
// packets before ours see them.
func (d *DataPath) AuditLinks(name string, ifindex int) (found []Finding, err error) {
	for _, h := range d.hooks() {
		wrong, err := d.auditLink(d.pin(name, h), ifindex, h, true)
		if err != nil {
			return nil, fmt.Errorf("audit the links of %s: %w", name, err)
		}
		if wrong != "" {
			found = append(found, Finding{Object: "link", Interface: name, Detail: h.suffix[1:] + " " + wrong})
		}
	}
	return found, nil
}

// AuditNodeLink checks the link of a device to which AttachNode attached from_node. Other
// programs may run before it.
func (d *DataPath) AuditNodeLink(name string, ifindex int) (found []Finding, err error) {
	wrong, err := d.auditLink(d.nodePin(name), ifindex, d.nodeHook(), false)
	if err != nil {
		return nil, fmt.Errorf("audit the link of %s: %w", name, err)
	}
	if wrong != "" {
		found = append(found, Finding{Object: "link", Interface: name, Detail: "from_node " + wrong})
	}
	return found, nil
}

func (d *DataPath) nodeHook() hook {
	return hook{suffix: nodeSuffix, attach: ebpf.AttachTCXIngress, prog: d.objects.FromNode}
}

// auditLink describes the fault of a link, "" if it has none.
func (d *DataPath) auditLink(path string, ifindex int, h hook, first bool) (string, error) {
	l, err := d.pins.Link(path)
	if errors.Is(err, os.ErrNotExist) {
		return "is not attached", nil
	}
	if err != nil {
		return "", err
	}
	info, err := l.Info()
	if err != nil {
		return "", err
	}
	own, err := d.programID(h.prog)
	if err != nil {
		return "", err
	}
	switch {
	case linkInterface(l, h.attach) != ifindex:
		return "was detached", nil
	case info.Program != own:
		return fmt.Sprintf("has program %d, not %d", info.Program, own), nil
	}
	if !first {
		return "", nil
	}
	before, err := d.firstProgram(ifindex, h.attach)
	if err != nil {
		return "", err
	}
	if before != own {
		return fmt.Sprintf("runs after program %d", before), nil
	}
	return "", nil
}

// firstProgram returns the ID of the program that runs first on a hook of an interface, 0 if
// the hook has none.
func (d *DataPath) firstProgram(ifindex int, hook ebpf.AttachType) (ebpf.ProgramID, error) {
	all, err := link.QueryPrograms(link.QueryOptions{Target: ifindex, Attach: hook})
	if err != nil {
		return 0, fmt.Errorf("query the programs of interface %d: %w", ifindex, err)
	}
	if len(all.Programs) == 0 {
		return 0, nil
	}
	return all.Programs[0].ID, nil
}

// Foreign returns the ID of a program on the tcx hooks of an interface that is not attached by
// a link of ours, 0 if there is none. Such a program would run before ours on clsact hooks.
func (d *DataPath) Foreign(ifindex int) (ebpf.ProgramID, error) {
	for _, h := range d.hooks() {
		first, err := d.firstProgram(ifindex, h.attach)
		if err != nil {
			return 0, err
		}
		own, err := d.programID(h.prog)
		if err != nil {
			return 0, err
		}
		if first != 0 && first != own {
			return first, nil
		}
	}
	return 0, nil
}

// programID returns the ID of a program in the kernel. It never changes, so it is cached.
func (d *DataPath) programID(p *ebpf.Program) (ebpf.ProgramID, error) {
	if id, ok := d.numbers[p]; ok {
		return id, nil
	}
	info, err := p.Info()
	if err != nil {
		return 0, fmt.Errorf("inspect program %s: %w", p, err)
	}
	id, ok := info.ID()
	if !ok {
		return 0, fmt.Errorf("inspect program %s: the kernel does not report its ID", p)
	}
	d.numbers[p] = id
	return id, nil
}

// ProgramNumbers returns the kernel IDs of the programs for interfaces of pods.
func (d *DataPath) ProgramNumbers() (fromPod, toPod uint32, err error) {
	from, err := d.programID(d.objects.FromPod)
	if err != nil {
		return 0, 0, err
	}
	to, err := d.programID(d.objects.ToPod)
	return uint32(from), uint32(to), err
}

// HasLinks reports whether this process holds links of an interface, attached or not.
func (d *DataPath) HasLinks(name string) bool {
	for _, h := range d.hooks() {
		if _, ok := d.pins[d.pin(name, h)]; ok {
			return true
		}
	}
	return false
}

// RepairNodeLink repairs what AuditNodeLink finds.
func (d *DataPath) RepairNodeLink(name string, ifindex int) error {
	if err := d.AttachNode(name, ifindex); err != nil {
		return err
	}
	h := d.nodeHook()
	return d.adoptLink(d.nodePin(name), h.attach, h.prog)
}

// RepairLinks repairs what AuditLinks finds. While it runs, an attached program of ours always
// stays on the hook.
func (d *DataPath) RepairLinks(name string, ifindex int) error {
	var errs []error
	for _, h := range d.hooks() {
		errs = append(errs, d.repairLink(d.pin(name, h), ifindex, h))
	}
	return errors.Join(errs...)
}

func (d *DataPath) repairLink(path string, ifindex int, h hook) error {
	attached, err := d.attachedAt(path, ifindex, h.attach)
	if err != nil {
		return err
	}
	if !attached {
		return d.attachAt(path, ifindex, h)
	}
	if err := d.adoptLink(path, h.attach, h.prog); err != nil {
		return err
	}
	own, err := d.programID(h.prog)
	if err != nil {
		return err
	}
	first, err := d.firstProgram(ifindex, h.attach)
	if err != nil || first == own {
		return err
	}
	return d.moveToHead(path, ifindex, h)
}

// moveToHead moves a program that runs after others to the head of a hook. The kernel accepts a
// program only once for each hook. So a helper program that only calls ours stands at the head
// meanwhile.
func (d *DataPath) moveToHead(path string, ifindex int, h hook) error {
	caller, err := callerOf(h.prog)
	if err != nil {
		return err
	}
	defer caller.close()
	before, err := link.AttachTCX(link.TCXOptions{Interface: ifindex, Program: caller.program, Attach: h.attach, Anchor: link.Head()})
	if err != nil {
		return fmt.Errorf("attach the first program of interface %d: %w", ifindex, err)
	}
	defer before.Close()
	if err := d.pins.Drop(path); err != nil {
		return err
	}
	return d.attachAt(path, ifindex, h)
}

// caller is a program that calls another one.
type caller struct {
	targets *ebpf.Map
	program *ebpf.Program
}

func callerOf(p *ebpf.Program) (c *caller, err error) {
	c = &caller{}
	defer func() {
		if err != nil {
			c.close()
			err = fmt.Errorf("create a program that calls %s: %w", p, err)
		}
	}()
	if c.targets, err = ebpf.NewMap(&ebpf.MapSpec{Name: "caller", Type: ebpf.ProgramArray, KeySize: 4, ValueSize: 4, MaxEntries: 1}); err != nil {
		return nil, err
	}
	if err = c.targets.Put(uint32(0), p); err != nil {
		return nil, err
	}
	const shot = 2 // TC_ACT_SHOT
	c.program, err = ebpf.NewProgram(&ebpf.ProgramSpec{Name: "caller", Type: ebpf.SchedCLS, License: "Dual BSD/GPL", Instructions: asm.Instructions{
		asm.LoadMapPtr(asm.R2, c.targets.FD()),
		asm.Mov.Imm(asm.R3, 0),
		asm.FnTailCall.Call(),
		asm.Mov.Imm(asm.R0, shot), // the tail call failed: drop, so that nothing passes without policy
		asm.Return(),
	}})
	return c, err
}

func (c *caller) close() {
	c.targets.Close() // either may be nil
	c.program.Close()
}

// AuditHooks finds netfilter hooks on which HookEgress attached a program and that have none
// now. HookEgress repairs them. The kernel does not list the programs of a hook, and a link
// does not show that it was detached. So AuditHooks checks whether the priority of the link is
// free.
func (d *DataPath) AuditHooks() (found []Finding, err error) {
	for _, p := range netfilterPlaces {
		path, priority := d.hookPin(p)
		if path == "" {
			found = append(found, Finding{Object: "netfilter", Detail: p.name + " is not attached"})
			continue
		}
		probe, err := link.AttachNetfilter(link.NetfilterOptions{Program: d.egress.hook, ProtocolFamily: p.family, Hook: p.hook, Priority: priority})
		if errors.Is(err, unix.EBUSY) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("audit %s: %w", p.name, err)
		}
		if err := probe.Close(); err != nil {
			return nil, fmt.Errorf("audit %s: %w", p.name, err)
		}
		found = append(found, Finding{Object: "netfilter", Detail: p.name + " was detached"})
	}
	return found, nil
}

// hookPin returns the path and the priority of the link on a hook, "" if there is none.
func (d *DataPath) hookPin(p netfilterPlace) (path string, priority int32) {
	for at := range d.pins {
		var n int32
		if suffix, ok := strings.CutPrefix(at, filepath.Join(d.dir, "links", p.name+"-")); ok {
			if _, err := fmt.Sscan(suffix, &n); err == nil {
				return at, p.priority - n
			}
		}
	}
	return "", 0
}

// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/isthmus-net/isthmus/common/model"
)

// hook is one of the two hooks at the host end of a pod's veth pair.
type hook struct {
	suffix string // of the pin
	attach ebpf.AttachType
	dir    model.Direction
	prog   *ebpf.Program
}

// The suffixes of the pins of an interface's links.
const (
	fromPodSuffix = "-from_pod"
	toPodSuffix   = "-to_pod"
)

func (d *DataPath) hooks() []hook {
	return []hook{
		{fromPodSuffix, ebpf.AttachTCXIngress, model.Egress, d.objects.FromPod},
		{toPodSuffix, ebpf.AttachTCXEgress, model.Ingress, d.objects.ToPod},
	}
}

func (d *DataPath) pin(name string, h hook) string {
	return filepath.Join(d.dir, "links", name+h.suffix)
}

// HasTCX reports whether the kernel has the hooks that Attach needs (Linux 6.6). It probes by
// attaching to an interface index that cannot exist.
func (d *DataPath) HasTCX() bool {
	_, err := link.AttachTCX(link.TCXOptions{Interface: math.MaxInt32, Program: d.objects.FromPod, Attach: ebpf.AttachTCXIngress})
	return !errors.Is(err, ebpf.ErrNotSupported)
}

// Attach attaches both programs to an interface, if they are not attached already. Each one
// waits for an RCU grace period of the kernel, about 10 ms.
func (d *DataPath) Attach(name string, ifindex int) error {
	for _, h := range d.hooks() {
		attached, err := d.attached(name, ifindex, h)
		if err != nil {
			return err
		}
		if attached {
			continue
		}
		if err := d.attachAt(d.pin(name, h), ifindex, h); err != nil {
			return err
		}
	}
	return nil
}

// attachAt attaches a program to an interface, before all others, and pins the link.
func (d *DataPath) attachAt(path string, ifindex int, h hook) error {
	l, err := link.AttachTCX(link.TCXOptions{Interface: ifindex, Program: h.prog, Attach: h.attach, Anchor: link.Head()})
	if err != nil {
		return fmt.Errorf("attach %s to interface %d: %w", h.suffix[1:], ifindex, err)
	}
	if err := os.RemoveAll(path); err != nil {
		l.Close()
		return fmt.Errorf("remove stale pin %s: %w", path, err)
	}
	if err := l.Pin(path); err != nil {
		l.Close()
		return fmt.Errorf("pin link %s: %w", path, err)
	}
	return d.pins.Keep(path, l)
}

// attached reports whether the link is attached to the interface. It closes and unpins a link
// that is detached or whose interface is gone.
func (d *DataPath) attached(name string, ifindex int, h hook) (bool, error) {
	return d.attachedAt(d.pin(name, h), ifindex, h.attach)
}

func (d *DataPath) attachedAt(path string, ifindex int, hook ebpf.AttachType) (bool, error) {
	l, err := d.pins.Link(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if linkInterface(l, hook) == ifindex {
		return true, nil
	}
	return false, d.pins.Drop(path)
}

// linkInterface returns the index of the interface of a link. It returns 0 if the interface is
// gone, or if the link belongs to another hook.
func linkInterface(l link.Link, hook ebpf.AttachType) int {
	info, err := l.Info()
	if err != nil {
		return 0
	}
	tcx := info.TCX()
	if tcx == nil || ebpf.AttachType(tcx.AttachType) != hook {
		return 0
	}
	return int(tcx.Ifindex)
}

// Linked reports whether pinned links attach both programs to an interface.
func (d *DataPath) Linked(name string, ifindex int) (bool, error) {
	for _, h := range d.hooks() {
		if attached, err := d.attached(name, ifindex, h); err != nil || !attached {
			return false, err
		}
	}
	return true, nil
}

// Detach detaches the programs from an interface. Missing links are not an error.
func (d *DataPath) Detach(name string) error {
	for _, h := range d.hooks() {
		if err := d.pins.Drop(d.pin(name, h)); err != nil {
			return err
		}
	}
	return nil
}

// Attached lists the interfaces that have a pinned link, and whether both programs are
// attached.
func (d *DataPath) Attached() (map[string]bool, error) { return d.attachedIn(d.dir) }

// attachedIn is Attached for the directory of a layout.
func (d *DataPath) attachedIn(dir string) (map[string]bool, error) {
	entries, err := os.ReadDir(filepath.Join(dir, "links"))
	if err != nil {
		return nil, fmt.Errorf("list pinned links: %w", err)
	}
	pins := make(map[string]int)
	for _, e := range entries {
		for _, h := range d.hooks() {
			if name, ok := strings.CutSuffix(e.Name(), h.suffix); ok {
				pins[name]++
			}
		}
	}
	complete := make(map[string]bool, len(pins))
	for name, n := range pins {
		complete[name] = n == len(d.hooks())
	}
	return complete, nil
}

// AdoptLinks gives every pinned link the program of this build, by one atomic replacement each.
// It removes pins whose interface is gone.
func (d *DataPath) AdoptLinks() error {
	names, err := d.Attached()
	if err != nil {
		return err
	}
	for name := range names {
		for _, h := range d.hooks() {
			if err := d.adoptLink(d.pin(name, h), h.attach, h.prog); err != nil {
				return err
			}
		}
	}
	devices, err := d.NodeLinks()
	if err != nil {
		return err
	}
	for _, name := range devices {
		if err := d.adoptLink(d.nodePin(name), ebpf.AttachTCXIngress, d.objects.FromNode); err != nil {
			return err
		}
	}
	return nil
}

// adoptLink gives the link at a path, which belongs to hook, a new program. It unpins a link
// whose interface is gone, and any object that is not such a link.
func (d *DataPath) adoptLink(path string, hook ebpf.AttachType, prog *ebpf.Program) error {
	l, err := d.pins.Link(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if linkInterface(l, hook) == 0 {
		return d.pins.Drop(path)
	}
	if err := l.Update(prog); err != nil {
		return fmt.Errorf("replace the program of %s: %w", path, err)
	}
	return nil
}

// moving names the pins of an interface by its index while FollowNames moves them, and those of an interface whose name has
// a dot, which the file system of pins reserves. Names of interfaces are shorter.
const moving = "renamed-interface-%d"

// Pinnable reports whether pins can have the name of an interface.
func Pinnable(name string) bool { return name != "" && !strings.Contains(name, ".") }

// LinkedTo returns the index of the interface to which the pins of a name belong; 0 if there is none.
func (d *DataPath) LinkedTo(name string) (int, error) {
	for _, h := range d.hooks() {
		l, err := d.pins.Link(d.pin(name, h))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return 0, err
		}
		if index := linkInterface(l, h.attach); index != 0 {
			return index, nil
		}
	}
	return 0, nil
}

// FollowNames moves the pins of interfaces that have another name now. nameOf returns the name of an interface; "" if it is
// gone. Two interfaces may have exchanged their names, so all pins that move first get a name of their own. An error after
// another change of names leaves them there; the next call moves them.
func (d *DataPath) FollowNames(nameOf func(index int) (string, error)) error {
	pinned, err := d.Attached()
	if err != nil {
		return err
	}
	to := make(map[string]string)
	for name := range pinned {
		index, err := d.LinkedTo(name)
		if err != nil {
			return err
		}
		now := ""
		if index != 0 {
			now, err = nameOf(index)
		}
		if err != nil {
			return err
		}
		if now == "" || now == name {
			continue
		}
		own := fmt.Sprintf(moving, index)
		if err := d.movePins(name, own); err != nil {
			return err
		}
		if Pinnable(now) {
			to[own] = now
		}
	}
	for own, name := range to {
		index, err := d.LinkedTo(name)
		if err != nil {
			return err
		}
		if index != 0 {
			if now, err := nameOf(index); err != nil || now != "" {
				return cmp.Or(err, fmt.Errorf("interface %s was renamed to %s meanwhile", name, now))
			}
		}
		if err := d.Detach(name); err != nil { // the pins of an interface that is gone
			return err
		}
		if err := d.movePins(own, name); err != nil {
			return err
		}
	}
	return nil
}

// movePins moves the pins of a name to another. Where that has one, both belong to one interface.
func (d *DataPath) movePins(from, to string) error {
	if from == to {
		return nil
	}
	for _, h := range d.hooks() {
		var err error
		if path := d.pin(from, h); inode(d.pin(to, h)) != 0 {
			err = d.pins.Drop(path)
		} else if inode(path) != 0 {
			err = d.pins.Move(path, d.pin(to, h))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

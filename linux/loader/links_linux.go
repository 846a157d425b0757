// SPDX-License-Identifier: Apache-2.0

package loader

import (
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

// hook is one of the two places on the host's side of a pod's veth pair.
type hook struct {
	suffix string // of the pin
	attach ebpf.AttachType
	dir    model.Direction
	prog   *ebpf.Program
}

func (d *DataPath) hooks() []hook {
	return []hook{
		{"-from_pod", ebpf.AttachTCXIngress, model.Egress, d.objects.FromPod},
		{"-to_pod", ebpf.AttachTCXEgress, model.Ingress, d.objects.ToPod},
	}
}

func (d *DataPath) pin(name string, h hook) string {
	return filepath.Join(d.dir, "links", name+h.suffix)
}

// HasTCX reports whether the kernel has the hooks that Attach needs (Linux 6.6
// has): it asks to attach to an interface that cannot exist.
func (d *DataPath) HasTCX() bool {
	_, err := link.AttachTCX(link.TCXOptions{Interface: math.MaxInt32, Program: d.objects.FromPod, Attach: ebpf.AttachTCXIngress})
	return !errors.Is(err, ebpf.ErrNotSupported)
}

// Attach puts both programs on an interface, if they are not there already. It
// waits for an RCU grace period of the kernel, about 10 ms for each.
func (d *DataPath) Attach(name string, ifindex int) error {
	for _, h := range d.hooks() {
		attached, err := d.attached(name, ifindex, h)
		if err != nil {
			return err
		}
		if attached {
			continue
		}
		l, err := link.AttachTCX(link.TCXOptions{Interface: ifindex, Program: h.prog, Attach: h.attach})
		if err != nil {
			return fmt.Errorf("attach %s to %s: %w", h.suffix[1:], name, err)
		}
		err = l.Pin(d.pin(name, h))
		l.Close()
		if err != nil {
			return fmt.Errorf("pin %s of %s: %w", h.suffix[1:], name, err)
		}
	}
	return nil
}

// attached reports whether the pinned link is on the interface. A pin of an
// interface that is gone is removed.
func (d *DataPath) attached(name string, ifindex int, h hook) (bool, error) {
	return d.attachedAt(d.pin(name, h), ifindex)
}

func (d *DataPath) attachedAt(path string, ifindex int) (bool, error) {
	l, err := link.LoadPinnedLink(path, nil)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("open pinned link %s: %w", path, err)
	}
	defer l.Close()
	if on, err := linkInterface(l); err != nil {
		return false, fmt.Errorf("inspect pinned link %s: %w", path, err)
	} else if on == ifindex {
		return true, nil
	}
	if err := os.Remove(path); err != nil {
		return false, fmt.Errorf("remove stale pin %s: %w", path, err)
	}
	return false, nil
}

// linkInterface returns the index of the interface that a link is on, 0 if that
// is gone.
func linkInterface(l link.Link) (int, error) {
	info, err := l.Info()
	if err != nil {
		return 0, err
	}
	tcx := info.TCX()
	if tcx == nil {
		return 0, fmt.Errorf("is a link of type %d, not tcx", info.Type)
	}
	return int(tcx.Ifindex), nil
}

// Linked reports whether both programs are on an interface by pinned links.
func (d *DataPath) Linked(name string, ifindex int) (bool, error) {
	for _, h := range d.hooks() {
		if attached, err := d.attached(name, ifindex, h); err != nil || !attached {
			return false, err
		}
	}
	return true, nil
}

// Detach takes the programs off an interface. What is not there is no error.
func (d *DataPath) Detach(name string) error {
	for _, h := range d.hooks() {
		if err := os.Remove(d.pin(name, h)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("unpin %s of %s: %w", h.suffix[1:], name, err)
		}
	}
	return nil
}

// Attached lists the interfaces that have a pinned link, and whether both are
// in place.
func (d *DataPath) Attached() (map[string]bool, error) {
	entries, err := os.ReadDir(filepath.Join(d.dir, "links"))
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

// AdoptLinks gives every pinned link the programs of this build, each by one
// atomic exchange, and removes pins whose interface is gone.
func (d *DataPath) AdoptLinks() error {
	names, err := d.Attached()
	if err != nil {
		return err
	}
	for name := range names {
		for _, h := range d.hooks() {
			if err := d.adoptLink(d.pin(name, h), h.prog); err != nil {
				return err
			}
		}
	}
	devices, err := d.NodeLinks()
	if err != nil {
		return err
	}
	for _, name := range devices {
		if err := d.adoptLink(d.nodePin(name), d.objects.FromNode); err != nil {
			return err
		}
	}
	return nil
}

func (d *DataPath) adoptLink(path string, prog *ebpf.Program) error {
	l, err := link.LoadPinnedLink(path, nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open pinned link %s: %w", path, err)
	}
	defer l.Close()
	on, err := linkInterface(l)
	if err != nil {
		return fmt.Errorf("inspect pinned link %s: %w", path, err)
	}
	if on == 0 {
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("remove stale pin %s: %w", path, err)
		}
		return nil
	}
	if err := l.Update(prog); err != nil {
		return fmt.Errorf("replace the program of %s: %w", path, err)
	}
	return nil
}

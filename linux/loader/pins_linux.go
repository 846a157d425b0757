// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// namePrefix distinguishes the programs and maps of Isthmus in lists of the kernel, which keeps 15 characters. Pins
// have names without it.
const namePrefix = "isth_"

// PinMaps creates the maps of a spec that are to be pinned by name in dir and do not exist there, except those that are
// replaced. The library would give a map the name of its pin. PinMaps also names the programs.
func PinMaps(spec *ebpf.CollectionSpec, dir string, replaced map[string]*ebpf.Map) error {
	namePrograms(spec)
	for name, m := range spec.Maps {
		path := filepath.Join(dir, name)
		if m.Pinning != ebpf.PinByName || replaced[name] != nil || inode(path) != 0 {
			continue
		}
		made, err := newMap(m)
		if err != nil {
			return fmt.Errorf("create map %s: %w", name, err)
		}
		if err := errors.Join(made.Pin(path), made.Close()); err != nil {
			return fmt.Errorf("pin map %s: %w", name, err)
		}
	}
	return nil
}

// newMap creates the map of a spec without a pin.
func newMap(spec *ebpf.MapSpec) (*ebpf.Map, error) {
	own := spec.Copy()
	own.Name, own.Pinning = namePrefix+spec.Name, ebpf.PinNone
	return ebpf.NewMap(own)
}

func namePrograms(spec *ebpf.CollectionSpec) {
	for name, p := range spec.Programs {
		p.Name = namePrefix + name
	}
}

// Pins records what a process has pinned, by path: maps, links and programs. It holds the
// descriptors of links while the process runs, so a link stays attached if another process
// removes its pin. It is not safe for concurrent use.
type Pins map[string]*pin

// pin is one pinned object.
type pin struct {
	of pinnable
	// inode is the inode number of the pinned file, which no later file gets.
	inode uint64
}

type pinnable interface {
	Pin(path string) error
	Unpin() error
}

// Keep records that an object is pinned at a path. It closes an earlier link of that path. If
// the object is a link, Pins closes it.
func (p Pins) Keep(path string, of pinnable) error {
	if was, ok := p[path]; ok && was.of != of {
		if err := p.forget(path); err != nil {
			return err
		}
	}
	p[path] = &pin{of, inode(path)}
	return nil
}

// Link returns the recorded link of a path. Otherwise it opens the pinned link and records it.
// The error wraps os.ErrNotExist if there is none. Link removes a pinned object that is not a
// link.
func (p Pins) Link(path string) (link.Link, error) {
	if kept, ok := p[path]; ok {
		if l, ok := kept.of.(link.Link); ok {
			return l, nil
		}
	}
	if inode(path) == 0 {
		return nil, fmt.Errorf("find the pinned link %s: %w", path, os.ErrNotExist)
	}
	l, err := link.LoadPinnedLink(path, nil)
	if errors.Is(err, os.ErrPermission) && isPin(path) {
		return nil, fmt.Errorf("open pinned link %s: %w", path, err)
	}
	if err != nil {
		if removed := os.RemoveAll(path); removed != nil {
			return nil, fmt.Errorf("remove %s, which is not a link: %w", path, removed)
		}
		return nil, fmt.Errorf("%s is not a link and was removed: %w: %w", path, err, os.ErrNotExist)
	}
	return l, p.Keep(path, l)
}

// Move pins the link of a path at another path, where nothing must be pinned. The link stays attached.
func (p Pins) Move(from, to string) error {
	l, err := p.Link(from)
	if err != nil {
		return err
	}
	if err := l.Pin(to); err != nil { // the library renames the file
		return fmt.Errorf("move pin %s: %w", from, err)
	}
	delete(p, from)
	p[to] = &pin{l, inode(to)}
	return nil
}

// Drop removes a pin and closes its link, which detaches it. A missing pin is not an error.
func (p Pins) Drop(path string) error {
	if err := os.RemoveAll(path); err != nil {
		return fmt.Errorf("remove pin %s: %w", path, err)
	}
	return p.forget(path)
}

// forget closes the link that is recorded for a path.
func (p Pins) forget(path string) error {
	was, ok := p[path]
	if !ok {
		return nil
	}
	delete(p, path)
	if l, ok := was.of.(link.Link); ok {
		return l.Close()
	}
	return nil
}

// Close closes all links. Pinned links stay attached.
func (p Pins) Close() error {
	var errs []error
	for path := range p {
		errs = append(errs, p.forget(path))
	}
	return errors.Join(errs...)
}

// Lost lists the paths, sorted, whose pin is gone or is another file than the recorded one.
func (p Pins) Lost() (paths []string) {
	for _, path := range slices.Sorted(maps.Keys(p)) {
		if at := inode(path); at == 0 || at != p[path].inode {
			paths = append(paths, path)
		}
	}
	return paths
}

// Repair pins the recorded object of a path again, in place of any other file.
func (p Pins) Repair(path string) error {
	kept := p[path]
	err := removeFiles(filepath.Dir(path))
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o700)
	}
	if err == nil {
		err = os.RemoveAll(path)
	}
	if err == nil {
		err = kept.of.Unpin() // the library still takes it for pinned
	}
	if err == nil {
		err = kept.of.Pin(path)
	}
	if err != nil {
		return fmt.Errorf("pin %s again: %w", path, err)
	}
	kept.inode = inode(path)
	return nil
}

// removeFiles removes a path that is not a directory.
func removeFiles(dir string) error {
	info, err := os.Lstat(dir)
	if errors.Is(err, os.ErrNotExist) || err == nil && info.IsDir() {
		return nil
	}
	if err != nil {
		return err
	}
	return os.Remove(dir)
}

// isPin reports whether an object is pinned at a path. Opening a directory as a pin gives the
// same error as a missing permission, so isPin checks the type of the file.
func isPin(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode().IsRegular()
}

// inode returns the inode number of a path, 0 if it does not exist.
func inode(path string) uint64 {
	var s unix.Stat_t
	if unix.Lstat(path, &s) != nil {
		return 0
	}
	return s.Ino
}

// keepMaps records the maps that are pinned by name.
func (d *DataPath) keepMaps() error {
	all := d.maps()
	t := &d.egress.tunnels
	all["tunnel_nodes"], all["tunnel_sources4"], all["tunnel_sources6"] = t.Nodes, t.Sources4, t.Sources6
	for name, m := range all {
		if err := d.pins.Keep(filepath.Join(d.dir, name), m); err != nil {
			return err
		}
	}
	return nil
}

// auditPins finds pins that another process removed or replaced.
func (d *DataPath) auditPins() (found []Finding) {
	for _, path := range d.pins.Lost() {
		found = append(found, Finding{Object: "pin", Interface: interfaceOfPin(path), Detail: path + " is missing or is another object"})
	}
	return found
}

// interfaceOfPin returns the interface of a pinned link, "" for other pins.
func interfaceOfPin(path string) string {
	for _, suffix := range []string{fromPodSuffix, toPodSuffix, nodeSuffix} {
		if name, ok := strings.CutSuffix(filepath.Base(path), suffix); ok && filepath.Base(filepath.Dir(path)) == "links" {
			return name
		}
	}
	return ""
}

// repairPins pins objects again whose pin another process removed.
func (d *DataPath) repairPins() error {
	var errs []error
	for _, path := range d.pins.Lost() {
		errs = append(errs, d.pins.Repair(path))
	}
	return errors.Join(errs...)
}

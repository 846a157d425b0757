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

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Pins keeps what a process has pinned, by path: maps, links and programs. It holds
// the descriptors of links while the process runs, so that a link stays attached
// when another process removes its pin. It is not safe for concurrent use.
type Pins map[string]*pin

// pin is one pinned object.
type pin struct {
	of pinnable
	// inode is that of the file that was made or opened for it. No later file has it.
	inode uint64
}

type pinnable interface {
	Pin(path string) error
	Unpin() error
}

// Keep notes that an object is pinned at a path. A link that was kept there before
// is closed. The object is the Pins' to close if it is a link.
func (p Pins) Keep(path string, of pinnable) error {
	if was, ok := p[path]; ok && was.of != of {
		if err := p.forget(path); err != nil {
			return err
		}
	}
	p[path] = &pin{of, inode(path)}
	return nil
}

// Link returns the link that is kept for a path, or the one that is pinned there,
// which is kept from then on. The error wraps os.ErrNotExist if there is none. What
// is pinned there and is no link is removed.
func (p Pins) Link(path string) (link.Link, error) {
	if kept, ok := p[path]; ok {
		if l, ok := kept.of.(link.Link); ok {
			return l, nil
		}
	}
	if inode(path) == 0 {
		return nil, fmt.Errorf("look for the pinned link %s: %w", path, os.ErrNotExist)
	}
	l, err := link.LoadPinnedLink(path, nil)
	if errors.Is(err, os.ErrPermission) && isPin(path) {
		return nil, fmt.Errorf("open pinned link %s: %w", path, err)
	}
	if err != nil {
		if removed := os.RemoveAll(path); removed != nil {
			return nil, fmt.Errorf("remove %s, which is no link: %w", path, removed)
		}
		return nil, fmt.Errorf("%s is no link and was removed: %w: %w", path, err, os.ErrNotExist)
	}
	return l, p.Keep(path, l)
}

// Drop removes a pin and lets go of the link that it is for, which is detached by
// that. One that is not there is no error.
func (p Pins) Drop(path string) error {
	if err := os.RemoveAll(path); err != nil {
		return fmt.Errorf("remove pin %s: %w", path, err)
	}
	return p.forget(path)
}

// forget lets go of the object that is kept for a path.
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

// Close lets go of all links. Those that are pinned stay attached.
func (p Pins) Close() error {
	var errs []error
	for path := range p {
		errs = append(errs, p.forget(path))
	}
	return errors.Join(errs...)
}

// Lost lists the paths, sorted, whose pin is gone or is not the one that was kept.
func (p Pins) Lost() (paths []string) {
	for _, path := range slices.Sorted(maps.Keys(p)) {
		if at := inode(path); at == 0 || at != p[path].inode {
			paths = append(paths, path)
		}
	}
	return paths
}

// Repair pins what is kept for a path again, in place of whatever is there.
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
		err = kept.of.Unpin() // it believes to be pinned
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

// removeFiles removes a path that is no directory.
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

// isPin reports whether something is pinned at a path. To open a directory as a pin
// is refused like something that only root may open.
func isPin(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode().IsRegular()
}

// inode is that of a path, 0 if there is none.
func inode(path string) uint64 {
	var s unix.Stat_t
	if unix.Lstat(path, &s) != nil {
		return 0
	}
	return s.Ino
}

// keepMaps keeps the maps that are pinned by their names.
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

// auditPins finds pins that others have removed or replaced.
func (d *DataPath) auditPins() (found []Finding) {
	for _, path := range d.pins.Lost() {
		found = append(found, Finding{Object: "pin", Interface: interfaceOfPin(path), Detail: path + " is missing or is another object"})
	}
	return found
}

// interfaceOfPin names the interface that a pinned link is on, "" for other pins.
func interfaceOfPin(path string) string {
	for _, suffix := range []string{fromPodSuffix, toPodSuffix, nodeSuffix} {
		if name, ok := strings.CutSuffix(filepath.Base(path), suffix); ok && filepath.Base(filepath.Dir(path)) == "links" {
			return name
		}
	}
	return ""
}

// repairPins pins again what others have unpinned.
func (d *DataPath) repairPins() error {
	var errs []error
	for _, path := range d.pins.Lost() {
		errs = append(errs, d.pins.Repair(path))
	}
	return errors.Join(errs...)
}

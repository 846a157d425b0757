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

	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/flowtable"
	"github.com/isthmus-net/isthmus/linux/policymap"
)

// policyMaps are the maps that verdicts read. If one of them is lost, the others give wrong
// verdicts, so all are recreated. New slots deny everything.
var policyMaps = []string{"slots", "peers4", "peers6", "prefixes4", "prefixes6", "ports", "verdicts", "rows", "tables"}

// Damaged describes each pinned object that Open found unusable and replaced.
func (d *DataPath) Damaged() []string { return d.damaged }

// repairDirectory removes each pinned object that would keep the programs from loading. The
// loader then creates its map again.
func (d *DataPath) repairDirectory(spec *ebpf.CollectionSpec) error {
	egress, err := bpfobj.LoadEgress()
	if err != nil {
		return fmt.Errorf("read the embedded programs: %w", err)
	}
	specs := maps.Clone(egress.Maps)
	maps.Copy(specs, spec.Maps)
	removed, err := RemoveUnusable(d.dir, specs)
	if err != nil {
		return err
	}
	d.damaged = append(d.damaged, removed...)
	var lost, there []string
	for _, name := range policyMaps {
		if inode(filepath.Join(d.dir, name)) == 0 {
			lost = append(lost, name)
		} else {
			there = append(there, name)
		}
	}
	if len(lost) == 0 || len(there) == 0 {
		return nil
	}
	d.damaged = append(d.damaged, fmt.Sprintf("the policy maps %s are missing in %s: all are recreated", strings.Join(lost, ", "), d.dir))
	for _, name := range there {
		if err := os.RemoveAll(filepath.Join(d.dir, name)); err != nil {
			return fmt.Errorf("remove map %s: %w", name, err)
		}
	}
	return nil
}

// RemoveUnusable removes objects from a directory that are pinned under the names of maps but
// are not usable. These are other objects, and maps of another type or size. It returns one
// text for each removed object.
func RemoveUnusable(dir string, specs map[string]*ebpf.MapSpec) (removed []string, err error) {
	for _, name := range slices.Sorted(maps.Keys(specs)) {
		path := filepath.Join(dir, name)
		if specs[name].Pinning == ebpf.PinNone || inode(path) == 0 {
			continue
		}
		why := unusable(path, specs[name])
		if errors.Is(why, os.ErrPermission) && isPin(path) {
			return removed, fmt.Errorf("open %s: %w: are you root?", path, why)
		}
		if why == nil {
			continue
		}
		if err := os.RemoveAll(path); err != nil {
			return removed, fmt.Errorf("remove the object pinned as map %s: %w", name, err)
		}
		removed = append(removed, fmt.Sprintf("%s is not usable as map %s and is recreated: %v", path, name, why))
	}
	return removed, nil
}

// unusable returns the reason why a pinned object cannot serve as a map, nil if it can.
func unusable(path string, spec *ebpf.MapSpec) error {
	m, err := ebpf.LoadPinnedMap(path, nil)
	if err != nil {
		return err
	}
	defer m.Close()
	want := spec.Copy()
	derived := slices.Contains(slices.Concat(slices.Collect(maps.Values(flowtable.Derived))...), spec.Name)
	if sizeable := slices.Contains(policymap.Sizeable(), spec.Name); sizeable || derived {
		want.MaxEntries = m.MaxEntries()
		if sizeable {
			if err := policymap.CheckSize(spec.Name, int(m.MaxEntries())); err != nil {
				return err
			}
		}
	}
	if err := want.Compatible(m); err != nil {
		return err
	}
	if info, err := m.Info(); err == nil && info.Frozen() {
		return errors.New("it is frozen and cannot be written")
	}
	return nil
}

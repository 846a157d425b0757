// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"github.com/isthmus-net/isthmus/linux/bpfobj"
)

// previousNames are the names that layouts up to v3 gave to maps and structs which both layouts use,
// by the name in this layout.
var previousNames = map[string]string{
	"post_dnat":        "pending",
	"post_dnat_count":  "pending_count",
	"post_dnat_record": "pending",
}

// names returns the possible names of a map or struct in an older layout.
func names(now string) []string {
	if was, renamed := previousNames[now]; renamed {
		return []string{now, was}
	}
	return []string{now}
}

// RetiredSuffix is the suffix of the directory of an older layout that is no longer in force
// and will be removed.
const RetiredSuffix = "-retired"

// Layout is the data path of an older layout that is in force next to ours.
type Layout struct {
	Name, Dir string
	// Marks is true if its programs leave records and marks like ours, and both share them.
	// Otherwise its programs decide everything before the host stack.
	Marks bool
	// Endpoints are those of the interfaces that its programs are or were attached to, by index.
	Endpoints map[int]bpfobj.PodEndpoint

	flows    []flowSource
	migrated Migrated
}

// Close releases all descriptors; the layout stays in force.
func (o *Layout) Close() error {
	if o == nil {
		return nil
	}
	var errs []error
	for _, c := range o.flows {
		errs = append(errs, c.from.Close())
	}
	return errors.Join(errs...)
}

// Find searches a bpffs directory for layouts of other versions than ours that are in force. It
// returns the name of an older layout, "" if there is none. A newer layout is an error, because
// this version cannot read it. Two older ones are an error, because an upgrade starts from one
// layout. The error names the remedy. A directory without pins is no layout.
func Find(dir, ours string) (string, error) {
	own, err := Number(ours)
	if err != nil {
		return "", err
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("list bpffs directory %s: %w", dir, err)
	}
	var found []string
	for _, e := range entries {
		n, err := Number(e.Name())
		if err != nil || n == own || !e.IsDir() {
			continue // not the directory of another layout
		}
		pinned, err := holdsPins(filepath.Join(dir, e.Name()))
		switch {
		case err != nil:
			return "", err
		case !pinned:
		case n > own:
			return "", fmt.Errorf("%s holds the maps and programs of a newer agent, with layout %s, which are in force, and this one has layout %s: "+
				"run that agent, or drain the node and remove the directory", filepath.Join(dir, e.Name()), e.Name(), ours)
		default:
			found = append(found, e.Name())
		}
	}
	if len(found) > 1 {
		return "", fmt.Errorf("%s holds maps and programs of the older layouts %s, as an upgrade was not finished: run the agent of the last of them "+
			"until it has finished, or drain the node and remove these directories", dir, strings.Join(found, ", "))
	}
	if len(found) == 0 {
		return "", nil
	}
	return found[0], nil
}

// holdsPins reports whether a directory of a bpffs has a pin in it or below it.
func holdsPins(dir string) (pinned bool, err error) {
	err = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			pinned = true
			return fs.SkipAll
		}
		return err
	})
	if err != nil {
		return false, fmt.Errorf("search %s for pins: %w", dir, err)
	}
	return pinned, nil
}

// Number parses the name of a layout directory.
func Number(name string) (int, error) {
	digits, ok := strings.CutPrefix(name, "v")
	if !ok {
		return 0, fmt.Errorf("%q is not the version of a layout", name)
	}
	return strconv.Atoi(digits)
}

// RemoveRetired completes an earlier Retire that was interrupted.
func RemoveRetired(dir string) error {
	retired, err := filepath.Glob(filepath.Join(dir, "v*"+RetiredSuffix))
	for _, r := range retired {
		err = errors.Join(err, os.RemoveAll(r))
	}
	return err
}

// Open reads what an upgrade to our layout needs from an older one. It changes nothing. spec
// holds the maps of our layout.
func Open(dir, name, ours string, spec *ebpf.CollectionSpec) (*Layout, error) {
	o := &Layout{Name: name, Dir: filepath.Join(dir, name)}
	err := o.readEndpoints(spec)
	for v6, f := range []string{"conns4", "conns6"} {
		if err == nil {
			err = o.openFlows(f, v6 == 1, spec)
		}
	}
	if err == nil {
		o.Marks, err = o.sharesRecords(spec)
	}
	if err != nil {
		o.Close()
		return nil, fmt.Errorf("%s holds the maps and programs of an older agent, with layout %s, which are in force, and this one, with layout %s, "+
			"cannot migrate them: %w: run that agent, or drain the node and remove the directory", o.Dir, name, ours, err)
	}
	return o, nil
}

// loadMap opens a map of the older layout, which may have a previous name there.
func (o *Layout) loadMap(name string) (m *ebpf.Map, err error) {
	for _, n := range names(name) {
		if m, err = ebpf.LoadPinnedMap(filepath.Join(o.Dir, n), nil); !errors.Is(err, os.ErrNotExist) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("open pinned map %s: %w", strings.Join(names(name), " or "), err)
	}
	return m, nil
}

// openMap opens a map of the older layout, with the BTF types that it was created with.
func (o *Layout) openMap(name string) (*ebpf.Map, *btf.Spec, error) {
	m, err := o.loadMap(name)
	if err != nil {
		return nil, nil, err
	}
	h, err := m.Handle()
	if err != nil {
		m.Close()
		return nil, nil, fmt.Errorf("map %s has no BTF to describe its content: %w", name, err)
	}
	defer h.Close()
	types, err := h.Spec(nil)
	if err != nil {
		m.Close()
		return nil, nil, fmt.Errorf("read BTF of map %s: %w", name, err)
	}
	return m, types, nil
}

// readEndpoints reads the interfaces of the older programs and the endpoints behind them. An
// older layout may lack the MAC of the host end.
func (o *Layout) readEndpoints(spec *ebpf.CollectionSpec) error {
	m, types, err := o.openMap("endpoints")
	if err != nil {
		return err
	}
	defer m.Close()
	key, err := convert(types, spec.Maps["endpoints"].Key, m.KeySize(), "ifindex")
	if err != nil {
		return err
	}
	value, err := convert(types, spec.Maps["endpoints"].Value, m.ValueSize(), "ip4", "ip6", "mac", "slot")
	if err != nil {
		return err
	}
	o.Endpoints = make(map[int]bpfobj.PodEndpoint)
	var k, v []byte
	all := m.Iterate()
	for all.Next(&k, &v) {
		var index bpfobj.PodIfindex
		var e bpfobj.PodEndpoint
		if err := errors.Join(decode(key.Convert(k), &index), decode(value.Convert(v), &e)); err != nil {
			return err
		}
		o.Endpoints[int(index.Ifindex)] = e
	}
	return all.Err()
}

// sharesRecords reports whether programs of the older layout leave verdicts to the hooks after
// DNAT. If they do, both layouts must share the records, because for a while each sees packets
// of the other.
func (o *Layout) sharesRecords(spec *ebpf.CollectionSpec) (bool, error) {
	const name = "post_dnat"
	m, types, err := o.openMap(name)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer m.Close()
	if m.MaxEntries() != spec.Maps[name].MaxEntries {
		return false, fmt.Errorf("map %s has %d entries, here it has %d", name, m.MaxEntries(), spec.Maps[name].MaxEntries)
	}
	return true, sameMap(m, types, spec.Maps[name])
}

// Share pins the maps that programs of both layouts use into our directory, unless they are
// pinned there already.
func (o *Layout) Share(dir string, spec *ebpf.CollectionSpec) error {
	var shared []string
	if o.Marks {
		shared = append(shared, "post_dnat", "post_dnat_count")
	}
	for _, name := range shared {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			continue
		}
		m, err := o.loadMap(name)
		if err != nil {
			return err
		}
		second, err := m.Clone() // a clone has no pin yet
		m.Close()
		if err != nil {
			return err
		}
		err = second.Pin(filepath.Join(dir, name))
		second.Close()
		if err != nil {
			return fmt.Errorf("pin map %s a second time: %w", name, err)
		}
	}
	return nil
}

// Size returns the number of entries of a map in the layout. The map or the layout may be
// missing.
func (o *Layout) Size(name string) (entries uint32, known bool) {
	if o == nil {
		return 0, false
	}
	m, err := o.loadMap(name)
	if err != nil {
		return 0, false // the older layout may lack this map
	}
	defer m.Close()
	return m.MaxEntries(), true
}

// Retire renames the directory of the layout, so that no agent takes a partly removed layout for
// one in force. RemoveRetired then removes the directory.
func (o *Layout) Retire() error {
	retired := o.Dir + RetiredSuffix
	if err := os.RemoveAll(retired); err != nil {
		return fmt.Errorf("remove %s: %w", retired, err)
	}
	if err := os.Rename(o.Dir, retired); err != nil {
		return fmt.Errorf("retire the directory of layout %s: %w", o.Name, err)
	}
	return nil
}

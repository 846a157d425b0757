// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/policymap"
)

// LayoutVersion names the shape and meaning of the maps. It changes whenever
// an older program or agent would read them wrongly.
const LayoutVersion = "v2"

// Timeouts are how long flows may be idle before they count as new.
type Timeouts struct {
	// Opening: packets in one direction only.
	Opening time.Duration
	// TCP: established connections.
	TCP time.Duration
	// Other: established flows of other protocols.
	Other time.Duration
	// Closing: a FIN or RST was seen.
	Closing time.Duration
}

// DefaultTimeouts follow RFC 5382 (TCP, 2 h 4 min) and RFC 4787 (UDP, at least
// 2 min) where they ask for more than common middleboxes give.
func DefaultTimeouts() Timeouts {
	return Timeouts{Opening: time.Minute, TCP: 124 * time.Minute, Other: 3 * time.Minute, Closing: time.Minute}
}

// DataPath is the loaded programs and their maps. It is not safe for
// concurrent use, except for Counters.
type DataPath struct {
	dir     string
	objects bpfobj.PodObjects
	egress  egress
	slots   *ebpf.Memory
	ports   *ebpf.Memory
	stages  *ebpf.Memory
	stage   uint32             // the last one that began
	single  []*ebpf.Map        // that the kernel does not write in batches
	running bpfobj.PodEndpoint // the endpoint of the last Run
	sweep   sweep
}

// Open loads the programs, reusing the maps that are pinned under dir (a
// directory on a bpffs) and creating those that are not. What is attached stays
// until HookEgress and AdoptLinks replace it, in this order. Maps that should have
// another size than they have are exchanged for copies.
func Open(dir string, t Timeouts, sizes Sizes) (*DataPath, error) {
	d := &DataPath{dir: filepath.Join(dir, LayoutVersion)}
	if err := refuseOtherLayouts(dir); err != nil {
		return nil, err
	}
	if err := prepareDirectory(d.dir); err != nil {
		return nil, err
	}
	spec, err := bpfobj.LoadPod()
	if err != nil {
		return nil, fmt.Errorf("read the embedded programs: %w", err)
	}
	if err := setTimeouts(spec, t); err != nil {
		return nil, err
	}
	copies, err := sizes.size(spec, d.dir)
	if err != nil {
		return nil, err
	}
	options := &ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: d.dir}, MapReplacements: make(map[string]*ebpf.Map)}
	for _, c := range copies {
		defer c.Close() // the programs have references of their own
		options.MapReplacements[c.name] = c.Map
	}
	if err := spec.LoadAndAssign(&d.objects, options); err != nil {
		return nil, explain(d.dir, err)
	}
	for _, c := range copies {
		if err := c.replace(d.dir); err != nil {
			d.Close()
			return nil, err
		}
	}
	if err := d.shareMemory(); err != nil {
		d.Close()
		return nil, err
	}
	if err := d.loadEgress(t); err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

// shareMemory maps what is written by single words.
func (d *DataPath) shareMemory() error {
	for _, m := range []struct {
		of *ebpf.Map
		to **ebpf.Memory
	}{{d.objects.Slots, &d.slots}, {d.objects.PodMaps.Ports, &d.ports}, {d.objects.Stages, &d.stages}} {
		memory, err := m.of.Memory()
		if err != nil {
			return fmt.Errorf("map the memory of %s: %w", m.of, err)
		}
		*m.to = memory
	}
	var buf [4]byte
	if _, err := d.stages.ReadAt(buf[:], 0); err != nil {
		return fmt.Errorf("read the stage of writing: %w", err)
	}
	d.stage = binary.NativeEndian.Uint32(buf[:])
	return nil
}

// prepareDirectory makes the directory, readable by root only, where that is on
// a bpffs.
func prepareDirectory(dir string) error {
	var fs unix.Statfs_t
	for at := dir; ; at = filepath.Dir(at) {
		err := unix.Statfs(at, &fs)
		if err == nil {
			break
		}
		if !errors.Is(err, os.ErrNotExist) || at == filepath.Dir(at) {
			return fmt.Errorf("inspect bpffs directory %s: %w", at, err)
		}
	}
	if fs.Type != unix.BPF_FS_MAGIC {
		return fmt.Errorf("bpffs directory %s is not on a bpffs: run 'mount -t bpf bpf /sys/fs/bpf' or give --bpffs another directory", dir)
	}
	if err := os.MkdirAll(filepath.Join(dir, "links"), 0o700); err != nil {
		return fmt.Errorf("create bpffs directory %s: %w: are you root?", dir, err)
	}
	return nil
}

// refuseOtherLayouts looks for what a newer or older agent left in force. Two
// sets of programs would both decide, one by policy that nobody changes any more.
func refuseOtherLayouts(dir string) error {
	own, err := layoutNumber(LayoutVersion)
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list bpffs directory %s: %w", dir, err)
	}
	for _, e := range entries {
		n, err := layoutNumber(e.Name())
		if err != nil || n == own {
			continue
		}
		which := "an older"
		if n > own {
			which = "a newer"
		}
		return fmt.Errorf("%s holds the maps and programs of %s agent, which are in force, and this one has layout %s: "+
			"run that agent, or drain the node and remove the directory", filepath.Join(dir, e.Name()), which, LayoutVersion)
	}
	return nil
}

// layoutNumber reads the name of a directory of pins.
func layoutNumber(name string) (int, error) {
	digits, ok := strings.CutPrefix(name, "v")
	if !ok {
		return 0, fmt.Errorf("%q is no version of a layout", name)
	}
	return strconv.Atoi(digits)
}

func setTimeouts(spec *ebpf.CollectionSpec, t Timeouts) error {
	hz, err := measureHZ()
	if err != nil {
		return fmt.Errorf("measure the kernel's clock rate: %w", err)
	}
	for name, d := range map[string]time.Duration{
		"timeout_opening": t.Opening, "timeout_tcp": t.TCP, "timeout_other": t.Other, "timeout_closing": t.Closing,
	} {
		if err := spec.Variables[name].Set(uint32(d.Seconds() * float64(hz))); err != nil {
			return fmt.Errorf("set %s: %w", name, err)
		}
	}
	return nil
}

// explain turns what the kernel says into what to do.
func explain(dir string, err error) error {
	var verifier *ebpf.VerifierError
	switch {
	case errors.Is(err, ebpf.ErrMapIncompatible):
		return fmt.Errorf("load programs: %w: the maps pinned under %s were made by an incompatible build; "+
			"drain the node and remove that directory", err, dir)
	case errors.As(err, &verifier):
		return fmt.Errorf("load programs: the kernel's verifier refused them: %w", err)
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("load programs: %w: needs root, or CAP_BPF and CAP_NET_ADMIN", err)
	case errors.Is(err, ebpf.ErrNotSupported):
		return fmt.Errorf("load programs: %w: this kernel is too old, Linux 6.1 is the oldest that is known to work", err)
	}
	return fmt.Errorf("load programs: %w", err)
}

// Close lets go of everything and leaves it working.
func (d *DataPath) Close() error {
	return errors.Join(d.sweep.close(), d.objects.Close(), d.egress.close())
}

// Capacity tells how many entries the maps hold.
func (d *DataPath) Capacity() policymap.Capacity {
	o := &d.objects
	return policymap.Capacity{
		Slots:  int(min(o.Slots.MaxEntries(), o.Endpoints.MaxEntries())),
		Peers4: int(o.Peers4.MaxEntries()), Peers6: int(o.Peers6.MaxEntries()),
		Prefixes4: int(o.Prefixes4.MaxEntries()), Prefixes6: int(o.Prefixes6.MaxEntries()),
		Verdicts: int(o.Verdicts.MaxEntries()), Rows: int(o.Rows.MaxEntries()), Tables: int(o.Tables.MaxEntries()),
	}
}

// Remove detaches every program and removes every pin under dir. What is not
// there is no error.
func Remove(dir string) error {
	return os.RemoveAll(filepath.Join(dir, LayoutVersion))
}

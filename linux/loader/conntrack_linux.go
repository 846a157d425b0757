// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"

	"github.com/isthmus-net/isthmus/linux/bpfobj"
)

// Tracking describes how a kernel provides connection tracking.
type Tracking int

const (
	// NoTracking means none, or a module that is not loaded.
	NoTracking Tracking = iota
	// BuiltIn means compiled in, with or without lookup functions for programs.
	BuiltIn
	// Loaded means a loaded module.
	Loaded
)

// FindTracking probes the kernel whose sysfs is mounted at a directory.
func FindTracking(sys string) Tracking {
	dir := filepath.Join(sys, "module", "nf_conntrack")
	if _, err := os.Stat(dir); err != nil {
		return NoTracking
	}
	switch state, err := os.ReadFile(filepath.Join(dir, "initstate")); {
	case os.IsNotExist(err):
		return BuiltIn
	case err == nil && strings.TrimSpace(string(state)) == "live":
		return Loaded
	}
	return NoTracking // the module is being loaded or unloaded
}

// probe returns the function that probes the kernel.
func (s Settings) probe() func() Tracking {
	if s.Tracking != nil {
		return s.Tracking
	}
	return func() Tracking { return FindTracking("/sys") }
}

// load loads the programs. If the kernel rejects the lookups in connection tracking, it loads
// them without, and so without fast-path flows to other nodes.
func (d *DataPath) load(spec *ebpf.CollectionSpec, options *ebpf.CollectionOptions) error {
	queries := spec.Variables["has_nf_conntrack"]
	if d.tracking = d.probe(); d.tracking != NoTracking {
		if err := queries.Set(true); err != nil {
			return fmt.Errorf("set has_nf_conntrack: %w", err)
		}
		if err := spec.LoadAndAssign(&d.objects, options); err == nil {
			d.queries = true
			return nil
		}
	}
	if err := queries.Set(false); err != nil {
		return fmt.Errorf("set has_nf_conntrack: %w", err)
	}
	return spec.LoadAndAssign(&d.objects, options)
}

// QueriesConntrack reports whether the programs can query connection tracking. Only flows that it does not
// know may use the fast path to other nodes.
func (d *DataPath) QueriesConntrack() bool { return d.queries }

// ProbeConntrack loads programs that query connection tracking, if its module was loaded since
// Open, and reports whether it did. AdoptLinks then attaches them to interfaces.
func (d *DataPath) ProbeConntrack() (bool, error) {
	now := d.probe()
	if d.queries || now == d.tracking {
		return d.queries, nil
	}
	if d.tracking = now; now == NoTracking {
		return false, nil
	}
	err := d.exchange()
	d.queries = err == nil
	return d.queries, err
}

// exchange loads the programs again, with the maps of those without lookups.
func (d *DataPath) exchange() error {
	spec, err := Settings{Foreign: d.foreign}.programs()
	if err != nil {
		return fmt.Errorf("read the embedded programs: %w", err)
	}
	if err := setConstants(spec, d.constants); err != nil {
		return err
	}
	if err := spec.Variables["has_nf_conntrack"].Set(true); err != nil {
		return fmt.Errorf("set has_nf_conntrack: %w", err)
	}
	if err := d.instrumented(spec); err != nil {
		return err
	}
	opts := d.overMaps(spec)
	if err := d.copyVariables(spec); err != nil {
		return err
	}
	namePrograms(spec)
	var other struct {
		bpfobj.PodPrograms
		ForwardDirect *ebpf.Variable `ebpf:"forward_direct"`
		DecidesAlone  *ebpf.Variable `ebpf:"decides_alone"`
	}
	if err := spec.LoadAndAssign(&other, opts); err != nil {
		return explain(d.dir, err)
	}
	was := d.objects.PodPrograms
	d.objects.PodPrograms, d.objects.ForwardDirect, d.objects.DecidesAlone = other.PodPrograms, other.ForwardDirect, other.DecidesAlone
	return was.Close()
}

// copyVariables copies the variables of the current programs into a spec.
func (d *DataPath) copyVariables(spec *ebpf.CollectionSpec) error {
	for name, from := range map[string]*ebpf.Variable{"forward_direct": d.objects.ForwardDirect, "decides_alone": d.objects.DecidesAlone} {
		var now uint32
		if err := from.Get(&now); err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
		if err := spec.Variables[name].Set(now); err != nil {
			return fmt.Errorf("set %s: %w", name, err)
		}
	}
	return nil
}

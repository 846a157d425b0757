// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/isthmus-net/isthmus/linux/denymap"
	"github.com/isthmus-net/isthmus/linux/loader"
)

// Audit compares maps, pins and links with the results of Apply and Attach: the wanted entries,
// and the program on the devices of these names, by index. It changes nothing, except that it
// removes pinned objects that are not links.
func (f *Filter) Audit(want *denymap.Entries, devices map[string]int) (found []loader.Finding, err error) {
	is, err := f.objects.read()
	if err != nil {
		return nil, err
	}
	if w := denymap.Diff(want, is); !w.None() {
		found = append(found, loader.Finding{Object: "deny_list", Detail: fmt.Sprintf(
			"%d single addresses and %d prefixes differ or are unwanted, %d and %d are missing", len(w.Singles), len(w.Prefixes), len(w.DropSingles), len(w.DropPrefixes))})
	}
	wrong, err := f.objects.comparePrefilter(want.Prefilters())
	if err != nil {
		return nil, err
	}
	if wrong > 0 {
		found = append(found, loader.Finding{Object: "deny_prefilter", Detail: fmt.Sprintf("%d words differ", wrong)})
	}
	for _, path := range f.pins.Lost() {
		found = append(found, loader.Finding{Object: "pin", Detail: path + " is missing or is another object"})
	}
	for name, index := range devices {
		detail, err := f.auditLink(name, index)
		if err != nil {
			return nil, err
		}
		if detail != "" {
			found = append(found, loader.Finding{Object: "xdp", Interface: name, Detail: detail})
		}
	}
	return found, nil
}

// auditLink describes the fault of a device's program, "" if it has none.
func (f *Filter) auditLink(name string, index int) (string, error) {
	l, err := f.pins.Link(filepath.Join(f.links, name))
	if errors.Is(err, os.ErrNotExist) {
		return "the program is not attached", nil
	}
	if err != nil {
		return "", err
	}
	if on, err := device(l); err != nil || on != index {
		return "the program was detached", nil
	}
	info, err := l.Info()
	if err != nil {
		return "", fmt.Errorf("inspect the link of %s: %w", name, err)
	}
	own, err := f.objects.Uplink.Info()
	if err != nil {
		return "", fmt.Errorf("inspect the XDP program: %w", err)
	}
	if id, ok := own.ID(); ok && id != info.Program {
		return fmt.Sprintf("has program %d, not %d", info.Program, id), nil
	}
	return "", nil
}

// Repair makes the next Apply write all differences, and pins objects again whose pin another
// process removed. Attach repairs links.
func (f *Filter) Repair() error {
	f.entries = nil
	var errs []error
	for _, path := range f.pins.Lost() {
		errs = append(errs, f.pins.Repair(path))
	}
	return errors.Join(errs...)
}

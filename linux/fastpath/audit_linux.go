// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"context"
	"maps"
	"slices"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/link"
	"github.com/isthmus-net/isthmus/linux/loader"
)

// Audit implements dataplane.Auditor.
func (f *FastPath) Audit(context.Context, *model.State) ([]dataplane.Drift, error) {
	found, err := f.audit()
	return loader.Drifts(found), err
}

// audit audits the programs on devices that lead to other nodes.
func (f *FastPath) audit() (found []loader.Finding, err error) {
	if !f.synced {
		return nil, nil
	}
	for _, name := range slices.Sorted(maps.Keys(f.now.devices)) {
		index := f.now.devices[name]
		if f.cfg.ByLinks {
			more, err := f.programs.AuditNodeLink(name, index)
			if err != nil {
				return nil, err
			}
			found = append(found, more...)
			continue
		}
		has, err := link.HasNodeClassifier(index)
		if err != nil {
			return nil, err
		}
		if !has {
			found = append(found, loader.Finding{Object: "classifier", Interface: name, Detail: "from_node is missing"})
		}
	}
	return found, nil
}

// Repair implements dataplane.Repairer.
func (f *FastPath) Repair(context.Context) error {
	found, err := f.audit()
	if err != nil || len(found) == 0 {
		return err
	}
	for _, wrong := range found {
		name := wrong.Interface
		if f.cfg.ByLinks {
			err = f.programs.RepairNodeLink(name, f.now.devices[name])
		} else {
			err = link.SetNodeClassifier(f.now.devices[name], f.cfg.FromNode())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"errors"
	"fmt"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/link"
	"github.com/isthmus-net/isthmus/linux/loader"
	"github.com/isthmus-net/isthmus/linux/policymap"
)

var (
	_ dataplane.Auditor      = (*Backend)(nil)
	_ dataplane.ObjectLister = (*Backend)(nil)
)

// AuditedObjects implements dataplane.ObjectLister.
func (b *Backend) AuditedObjects() []string {
	return []string{
		"slots", "peers", "prefixes", "ports", "verdicts", "rows", "tables", "causes", "cause_blocks", "table_causes",
		"endpoints", "locals", "attachments", "interfaces", "node_routes", "owners", "tunnel_nodes", "tunnel_sources", "tunnel_kinds",
		"deny_list", "deny_prefilter", "xdp", "variable", "generation", "pin", "link", "classifier", "netfilter", "nftables", "sysctl",
	}
}

// Audit implements dataplane.Auditor. It compares the maps that the agent writes, the pins, and
// the programs on interfaces, devices and hooks. It does not audit maps that programs write,
// because their content depends on packets.
func (b *Backend) Audit(ctx context.Context, s *model.State) ([]dataplane.Drift, error) {
	if b.layout == nil {
		return nil, errors.New("audit: the content of the maps is unknown, because the last write was interrupted")
	}
	if b.path.Older() != "" {
		return nil, nil // Faults reports the upgrade; its last step writes everything
	}
	pairs, err := b.alive()
	if err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	compared, err := b.path.ComparePolicy(b.layout.Entries)
	if err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	var found []dataplane.Drift
	for _, d := range compared.Differences {
		found = append(found, dataplane.Drift{Object: d.Map, Detail: d.Detail})
	}
	others, err := b.auditOthers(pairs)
	if err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	for _, f := range others {
		found = append(found, dataplane.Drift{Object: f.Object, Endpoint: pairs.ids[f.Interface], Detail: f.Detail})
	}
	more, err := b.components.Audit(ctx, s)
	if err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	found = append(found, more...)
	b.drifted = len(found) > 0
	return found, nil
}

// alivePairs are the host ends of the existing veth pairs.
type alivePairs struct {
	found   []link.Found
	indexes map[int]bool
	ids     map[string]model.EndpointID // by name
}

func (b *Backend) alive() (p alivePairs, err error) {
	p = alivePairs{indexes: make(map[int]bool), ids: make(map[string]model.EndpointID)}
	all, err := b.list()
	for _, f := range all {
		if f.ID != "" {
			p.found = append(p.found, f)
			p.indexes[f.Index], p.ids[f.Name] = true, f.ID
		}
	}
	return p, err
}

// auditOthers audits the maps besides those of policy, and the programs on the interfaces of pods.
func (b *Backend) auditOthers(pairs alivePairs) ([]loader.Finding, error) {
	found, err := b.path.AuditMaps(pairs.indexes)
	if err != nil {
		return nil, err
	}
	programs, err := b.auditPrograms(pairs)
	return append(found, programs...), err
}

// byLinks reports whether the programs of an interface are attached by tcx links, or should be.
func (b *Backend) byLinks(f link.Found) bool { return b.linked[f.ID] || b.path.HasLinks(f.Name) }

// auditPrograms audits the programs on the interfaces of pods.
func (b *Backend) auditPrograms(pairs alivePairs) (found []loader.Finding, err error) {
	fromPod, toPod, err := b.path.ProgramNumbers()
	if err != nil {
		return nil, err
	}
	for _, f := range pairs.found {
		if b.byLinks(f) {
			more, err := b.path.AuditLinks(f.Name, f.Index)
			if err != nil {
				return nil, err
			}
			found = append(found, more...)
			continue
		}
		problems, err := link.AuditClassifiers(f.Index, fromPod, toPod)
		if err != nil {
			return nil, err
		}
		if b.hasTCX {
			other, err := b.path.Foreign(f.Index)
			if err != nil {
				return nil, err
			}
			if other != 0 {
				problems = append(problems, fmt.Sprintf("program %d on its tcx hooks runs before ours", other))
			}
		}
		for _, p := range problems {
			found = append(found, loader.Finding{Object: "classifier", Interface: f.Name, Detail: p})
		}
	}
	return found, nil
}

// repair repairs what Audit has found. It repairs programs first, because without them no
// packet is decided.
func (b *Backend) repair(ctx context.Context) error {
	if !b.drifted || b.path.Older() != "" {
		return nil
	}
	b.step("repair")
	pairs, err := b.alive()
	if err != nil {
		return fmt.Errorf("repair: %w", err)
	}
	if err := errors.Join(b.repairPrograms(pairs), b.components.Repair(ctx), b.path.RepairMaps(pairs.indexes), b.repairPolicy()); err != nil {
		return fmt.Errorf("repair: %w", err)
	}
	b.drifted = false
	return nil
}

// repairPrograms repairs the programs of all pods. A failure at one pod does not prevent the
// repair of the others.
func (b *Backend) repairPrograms(pairs alivePairs) error {
	found, err := b.auditPrograms(pairs)
	if err != nil {
		return err
	}
	wrong := make(map[string]string)
	for _, f := range found {
		wrong[f.Interface] = f.Detail
	}
	var errs []error
	for _, f := range pairs.found {
		if wrong[f.Name] == "" {
			continue
		}
		if err := b.repairProgram(f); err != nil {
			errs = append(errs, &dataplane.EndpointError{ID: f.ID, Err: err})
		}
	}
	return errors.Join(errs...)
}

func (b *Backend) repairProgram(f link.Found) error {
	if b.byLinks(f) {
		if err := b.path.RepairLinks(f.Name, f.Index); err != nil {
			return err
		}
		return link.DropClassifiers(f.Index) // AddEndpoint attached them while the links were missing
	}
	if err := link.RepairClassifiers(f.Index, b.classifiers()); err != nil || !b.hasTCX {
		return err
	}
	other, err := b.path.Foreign(f.Index)
	switch {
	case err != nil || other == 0:
		return err
	case !b.tcx:
		return fmt.Errorf("program %d on the tcx hooks of %s runs before ours: remove it", other, f.Name)
	}
	if err := b.path.Attach(f.Name, f.Index); err != nil {
		return err
	}
	return link.DropClassifiers(f.Index)
}

// repairPolicy restores the content of the policy maps that the layout describes. It overwrites
// damage in one part of the verdicts in place. After damage in several parts it reads the maps
// back. The next Apply then moves from that content to other tables, as from any State to
// another.
func (b *Backend) repairPolicy() error {
	if b.layout == nil {
		return nil
	}
	compared, err := b.path.ComparePolicy(b.layout.Entries)
	if err != nil || len(compared.Differences) == 0 {
		return err
	}
	if compared.Parts > 1 {
		return b.readBack()
	}
	err = b.path.Execute(&compared.Writes)
	if err == nil {
		err = b.path.Execute(&policymap.Writes{Slots: b.layout.Renew(compared.Epoch)})
	}
	if err != nil {
		b.layout = nil
		return err
	}
	b.recordVersion()
	return nil
}

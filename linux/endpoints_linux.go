// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/bandwidth"
	"github.com/isthmus-net/isthmus/linux/link"
)

var _ dataplane.Checker = (*Backend)(nil)

// Endpoints implements dataplane.Backend.
func (b *Backend) Endpoints(context.Context) ([]dataplane.Installed, error) {
	found, err := b.list()
	if err != nil {
		return nil, err
	}
	known, err := b.path.Endpoints()
	if err != nil {
		return nil, err
	}
	lost, err := b.egress.Lost()
	if err != nil {
		return nil, err
	}
	var all []dataplane.Installed
	seen := make(map[model.EndpointID]bool)
	for _, f := range found {
		if f.ID == "" {
			continue // the process that created it is gone; the next New removes it
		}
		seen[f.ID] = true
		i := dataplane.Installed{ID: f.ID}
		if attached, err := b.policed(f.Name, f.Index); err != nil {
			return nil, err
		} else if !attached {
			i.Problems, i.Unenforced = append(i.Problems, "programs are not attached"), true
		}
		if lost {
			i.Problems = append(i.Problems, "the nftables rule for egress to Services is missing")
		}
		if _, ok := known[f.Index]; !ok && !b.underOlder(f.Index) {
			i.Problems, i.Unenforced = append(i.Problems, noEntry(f)), true
		}
		i.Unenforced = i.Unenforced || !f.Up
		if s, ok := b.specs[f.ID]; ok {
			problems, inPod := b.checkInterface(s, f)
			i.Problems, i.InPod = append(i.Problems, problems...), inPod
		}
		if i.Verdicts, err = b.verdictsOf(f.ID); err != nil {
			return nil, err
		}
		all = append(all, i)
	}
	for id := range b.specs {
		if !seen[id] {
			all = append(all, dataplane.Installed{ID: id, Problems: []string{"interface " + b.hostName(id) + " is missing"}, Unenforced: true})
		}
	}
	return all, nil
}

// verdictsOf returns the verdicts on new flows of an endpoint, nil without a slot.
func (b *Backend) verdictsOf(id model.EndpointID) (*[2][2]uint64, error) {
	if b.layout == nil {
		return nil, nil // not read yet
	}
	slot, ok := b.layout.Slot(id)
	if !ok {
		return nil, nil
	}
	counted, err := b.path.VerdictCounts(slot)
	if err != nil {
		return nil, err
	}
	return &counted, nil
}

// checkInterface describes how an interface differs from its spec.
func (b *Backend) checkInterface(s link.PairSpec, f link.Found) (problems, inPod []string) {
	if b.cfg.PolicyOnly {
		return b.checkForeign(s)
	}
	pair := link.Pair{Name: f.Name, Index: f.Index}
	problems, inPod = link.Check(s, pair)
	return append(problems, bandwidth.Check(s, pair)...), inPod
}

func noEntry(f link.Found) string { return "the map endpoints has no entry for interface " + f.Name }

// Check implements dataplane.Checker. It checks the programs, the map entry and the state of each host
// interface. A pair that is missing as a whole is left to Endpoints: it passes no packets, and DEL may be
// on its way.
func (b *Backend) Check(context.Context) ([]dataplane.Installed, error) {
	if b.path.Older() != "" {
		return nil, nil // pods are under programs of either layout; Faults reports the upgrade
	}
	pairs, err := b.alive()
	if err != nil {
		return nil, err
	}
	programs, err := b.auditPrograms(pairs)
	if err != nil {
		return nil, err
	}
	known, err := b.path.Endpoints()
	if err != nil {
		return nil, err
	}
	problems := make(map[model.EndpointID][]string)
	for _, f := range programs {
		id := pairs.ids[f.Interface]
		problems[id] = append(problems[id], f.Object+" "+f.Detail)
		b.drifted = true // the next Apply repairs programs
	}
	var all []dataplane.Installed
	for _, f := range pairs.found {
		if _, ok := b.specs[f.ID]; !ok {
			continue // this process has not attached it yet
		}
		if _, ok := known[f.Index]; !ok {
			problems[f.ID] = append(problems[f.ID], noEntry(f))
		}
		if !f.Up {
			problems[f.ID] = append(problems[f.ID], "interface "+f.Name+" is down")
		}
		if list := problems[f.ID]; len(list) > 0 {
			all = append(all, dataplane.Installed{ID: f.ID, Problems: list, Unenforced: true})
		}
	}
	return all, nil
}

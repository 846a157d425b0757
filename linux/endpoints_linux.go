// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/link"
)

// Endpoints implements dataplane.Backend.
func (b *Backend) Endpoints(context.Context) ([]dataplane.Installed, error) {
	found, err := link.List()
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
			i.Problems = append(i.Problems, "programs are not attached")
		}
		if lost {
			i.Problems = append(i.Problems, "the nftables rule for egress to Services is missing")
		}
		if _, ok := known[f.Index]; !ok && !b.underOlder(f.Index) {
			i.Problems = append(i.Problems, "the map endpoints has no entry for interface "+f.Name)
		}
		if s, ok := b.specs[f.ID]; ok {
			i.Problems = append(i.Problems, link.Check(s, link.Pair{Name: f.Name, Index: f.Index})...)
		}
		all = append(all, i)
	}
	for id := range b.specs {
		if !seen[id] {
			all = append(all, dataplane.Installed{ID: id, Problems: []string{"interface " + link.HostName(id) + " is missing"}})
		}
	}
	return all, nil
}

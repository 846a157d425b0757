// SPDX-License-Identifier: Apache-2.0

package check

import (
	"github.com/isthmus-net/isthmus/common/analysis/cells"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/policymap/mapsim"
	"github.com/isthmus-net/isthmus/windows/acl/aclsim"
)

// encode computes the map entries of a State on a new node. It works for both operating
// systems.
func encode(s *model.Snapshot, state *model.State, reported []model.Unsupported) (*cells.Node, error) {
	maps, err := mapsim.Encode(state)
	if err != nil {
		return nil, err
	}
	n := &cells.Node{Snapshot: s, State: state, Reported: reported, Maps: maps}
	for _, l := range aclsim.Encode(state) {
		n.Lists = append(n.Lists, l)
	}
	return n, nil
}

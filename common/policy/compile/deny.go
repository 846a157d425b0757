// SPDX-License-Identifier: Apache-2.0

package compile

import (
	"net/netip"

	"github.com/isthmus-net/isthmus/common/model"
)

// denySet is the deny lists of a snapshot. Addresses of nodes are exempt: a list that
// separated nodes from each other would break the cluster.
func denySet(was *model.DenySet, s *model.Snapshot, listsChanged bool) *model.DenySet {
	set := was
	if listsChanged {
		set = model.MakeDenySet(s.DenyLists)
	}
	if set == nil {
		return nil
	}
	var nodes []netip.Addr
	for _, n := range s.Nodes.All() {
		nodes = append(nodes, n.Addresses...)
	}
	return set.WithExempt(nodes)
}

// DenySet is the deny lists of a snapshot, as Compile puts them in a State; nil if there are
// none.
func DenySet(s *model.Snapshot) *model.DenySet { return denySet(nil, s, true) }

// exemptNodes reports the entries of deny lists that are not enforced for the address of a
// node.
func exemptNodes(set *model.DenySet, s *model.Snapshot) []model.Unsupported {
	if set == nil || len(set.Exempt) == 0 {
		return nil
	}
	owners := s.Owners().Nodes
	var all []model.Unsupported
	for _, a := range set.Exempt {
		who := "of a node"
		if n := owners[a]; n != nil {
			who = "of node " + n.Name
		}
		all = append(all, set.InexactEntries(a, who)...)
	}
	return all
}

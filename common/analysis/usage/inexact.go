// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"cmp"
	"maps"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
)

// Construct is a part of a policy that nodes do not enforce exactly.
type Construct struct {
	Policy    string
	Direction string
	// Rule is the index in the API object; -1 is the whole policy.
	Rule      int
	Construct string
	On        []Where
}

// Where is what nodes of one platform do instead.
type Where struct {
	OS             model.OS
	Platform       string
	Effect, Reason string
	// Nodes are their names, sorted, unless the reader may not see them. Count is their number.
	Nodes []string
	Count int
}

// constructs collects constructs by all but their nodes.
type constructs map[model.Unsupported]map[string]bool

// add adds what a node does not enforce exactly. It returns the number of entries for which there is no room.
func (c constructs) add(a *Answer) (dropped int) {
	for _, u := range a.Unsupported {
		u.Policy = u.Policy.Key()
		u.Direction &= 1
		if u.Rule < 0 {
			u.Rule, u.Direction = -1, model.Ingress
		}
		if c[u] == nil {
			if len(c) >= maxRules {
				dropped++
				continue
			}
			c[u] = make(map[string]bool)
		}
		c[u][a.Node] = true
	}
	return dropped
}

// list returns the constructs by policy and rule.
func (c constructs) list() []Construct {
	all := slices.SortedFunc(maps.Keys(c), func(a, b model.Unsupported) int {
		return cmp.Or(a.Policy.Compare(b.Policy), cmp.Compare(a.Direction, b.Direction), cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Construct, b.Construct),
			cmp.Compare(a.OS, b.OS), cmp.Compare(a.Platform, b.Platform), cmp.Compare(a.Effect, b.Effect), cmp.Compare(a.Reason, b.Reason))
	})
	var list []Construct
	for _, u := range all {
		x := Construct{Policy: u.Policy.String(), Direction: u.Direction.String(), Rule: u.Rule, Construct: u.Construct}
		n := len(list) - 1
		if n < 0 || list[n].Policy != x.Policy || list[n].Direction != x.Direction || list[n].Rule != x.Rule || list[n].Construct != x.Construct {
			list = append(list, x)
			n++
		}
		list[n].On = append(list[n].On, Where{u.OS, u.Platform, u.Effect.String(), u.Reason, slices.Sorted(maps.Keys(c[u])), len(c[u])})
	}
	return list
}

// SPDX-License-Identifier: Apache-2.0

package query

import (
	"fmt"

	"github.com/isthmus-net/isthmus/common/analysis/reach"
)

// Ends of flows that are not pods, in their JSON form.
type (
	// rangeReport holds the addresses of CIDR that are not in Except and that belong to no
	// pod and no node.
	rangeReport struct {
		CIDR   string   `json:"cidr"`
		Except []string `json:"except"`
		// Unknown: nodes assign pod addresses from this range.
		Unknown bool `json:"unknown_pods,omitempty"`
	}
	nodeEndReport struct {
		Name    string `json:"name"`
		Address string `json:"address"`
	}
)

func reportRanges(g *reach.Group) []rangeReport {
	var all []rangeReport
	for _, r := range g.Ranges {
		one := rangeReport{CIDR: r.Prefix.String(), Except: []string{}, Unknown: r.Unknown}
		for _, e := range r.Except {
			one.Except = append(one.Except, e.String())
		}
		all = append(all, one)
	}
	return all
}

func reportNodes(g *reach.Group) []nodeEndReport {
	if g.Node == "" {
		return nil
	}
	return []nodeEndReport{{g.Node, g.Addr.String()}}
}

// maxExcept is the largest number of excluded prefixes that text names.
const maxExcept = 3

// names lists the members of a group for text; endNames names ranges in full.
func names(g *reach.Group) []string { return g.Names(maxExcept) }

func endNames(g *reach.Group) []string { return g.Names(0) }

// title names a group in a few words, from its names.
func title(names []string) string {
	if len(names) == 1 {
		return names[0]
	}
	return fmt.Sprintf("%s +%d", names[0], len(names)-1)
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	"github.com/isthmus-net/isthmus/common/analysis/reach"
)

// Ends of flows that are no pods, as they are printed in JSON.
type (
	// rangeReport is the addresses of CIDR that are not in Except and that no pod and
	// no node has.
	rangeReport struct {
		CIDR   string   `json:"cidr"`
		Except []string `json:"except"`
		// Unknown: nodes give addresses from here to pods.
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

// maxExcept is how many prefixes that a range leaves out are named to people.
const maxExcept = 3

// rangeName names a range with at most some of the prefixes that it leaves out; 0
// means all.
func rangeName(r *reach.Range, most int) string {
	text := r.Prefix.String()
	if len(r.Except) > 0 {
		holes := make([]string, len(r.Except))
		for i, h := range r.Except {
			holes[i] = h.String()
		}
		if most == 0 {
			most = len(holes)
		}
		text += " besides " + strings.ReplaceAll(shorten(holes, most), ", ", " ")
	}
	if r.Unknown {
		text += " (pods that are not known)"
	}
	return text
}

// names lists the members of a group: every pod, every range, or the node. Ranges
// are cut short for people; endNames are complete.
func names(g *reach.Group) []string { return namesOf(g, maxExcept) }

func endNames(g *reach.Group) []string { return namesOf(g, 0) }

func namesOf(g *reach.Group, most int) []string {
	all := []string{}
	for _, m := range g.Pods {
		name := m.ID.String()
		if g.V6 {
			name += "@" + m.Addrs[0].String()
		}
		all = append(all, name)
	}
	for _, r := range g.Ranges {
		all = append(all, rangeName(r, most))
	}
	if g.Node != "" {
		all = append(all, fmt.Sprintf("node %s (%s)", g.Node, g.Addr))
	}
	return all
}

// title names a group in a few words, of its names.
func title(names []string) string {
	if len(names) == 1 {
		return names[0]
	}
	return fmt.Sprintf("%s +%d", names[0], len(names)-1)
}

// shorten lists a few names in full and counts the rest.
func shorten(names []string, few int) string {
	if len(names) <= few {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:few], ", "), len(names)-few)
}

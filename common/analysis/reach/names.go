// SPDX-License-Identifier: Apache-2.0

package reach

import (
	"fmt"
	"strings"
)

// Name returns a text for the range with at most some of the excluded prefixes; 0 means all.
func (r *Range) Name(most int) string {
	text := r.Prefix.String()
	if len(r.Except) > 0 {
		if most == 0 || most > len(r.Except) {
			most = len(r.Except)
		}
		holes := make([]string, most)
		for i := range holes {
			holes[i] = r.Except[i].String()
		}
		text += " besides " + strings.Join(holes, " ")
		if rest := len(r.Except) - most; rest > 0 {
			text += fmt.Sprintf(" and %d more", rest)
		}
	}
	if r.Unknown {
		text += " (unknown pods)"
	}
	return text
}

// Names lists the members of a group: every pod, every range by its Name with most, or the
// node. The name of a pod in an IPv6 group includes its address.
func (g *Group) Names(most int) []string {
	all := []string{}
	for _, m := range g.Pods {
		name := m.ID.String()
		if g.V6 {
			name += "@" + m.Addrs[0].String()
		}
		all = append(all, name)
	}
	for _, r := range g.Ranges {
		all = append(all, r.Name(most))
	}
	if g.Node != "" {
		all = append(all, fmt.Sprintf("node %s (%s)", g.Node, g.Addr))
	}
	return all
}

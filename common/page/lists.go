// SPDX-License-Identifier: Apache-2.0

package page

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/analysis/usage"
	"github.com/isthmus-net/isthmus/common/model"
)

// counts are the numbers of the first page.
type counts struct {
	Namespaces, Pods, HostPods, Policies, Nodes int
	// Systems counts nodes by operating system.
	Systems map[string]int
}

// Counts counts the objects of the cluster.
func (v *View) Counts() counts {
	s := v.cluster.Snapshot
	c := counts{Namespaces: s.Namespaces.Len(), Policies: s.Policies.Len(), Nodes: s.Nodes.Len(), Systems: make(map[string]int)}
	for _, p := range s.Pods.All() {
		switch {
		case p.Policed():
			c.Pods++
		case p.HostNetwork:
			c.HostPods++
		}
	}
	for _, n := range s.Nodes.All() {
		c.Systems[systemOf(n)]++
	}
	return c
}

// unknown is the operating system of a node that is not known.
const unknown = string(usage.Unknown)

func systemOf(n *model.Node) string { return cmp.Or(string(n.OS), unknown) }

// nodeRow is a node in a list.
type nodeRow struct {
	Name, OS, Addresses, Ranges string
	// Pods counts the pods that the cluster binds to the node.
	Pods int
	// Agent is the report of its agent; nil if there is none.
	Agent *Agent
}

// Nodes lists the nodes whose names contain a text, with the reports of their agents.
func (v *View) Nodes(find string, agents map[string]Agent) []nodeRow {
	s := v.cluster.Snapshot
	pods := make(map[string]int)
	for _, p := range s.Pods.All() {
		if !p.Finished {
			pods[p.Node]++
		}
	}
	names := make(map[string]bool)
	for name := range s.Nodes.All() {
		names[name] = true
	}
	for name := range agents {
		names[name] = true
	}
	var all []nodeRow
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if !strings.Contains(name, find) {
			continue
		}
		r := nodeRow{Name: name, OS: unknown, Pods: pods[name]}
		if n, ok := s.Nodes.Get(name); ok {
			r.OS, r.Addresses, r.Ranges = systemOf(n), join(n.Addresses), join(n.PodCIDRs)
		}
		if a, ok := agents[name]; ok {
			r.Agent = &a
			if r.OS == unknown && a.OS != "" {
				r.OS = string(a.OS)
			}
		}
		all = append(all, r)
	}
	return all
}

// join lists values, separated by commas.
func join[T fmt.Stringer](all []T) string {
	texts := make([]string, len(all))
	for i, v := range all {
		texts[i] = v.String()
	}
	return strings.Join(texts, ", ")
}

// filtered returns the items whose name contains a text.
func filtered[T any](all []T, text string, name func(T) string) []T {
	if text == "" {
		return all
	}
	var some []T
	for _, item := range all {
		if strings.Contains(name(item), text) {
			some = append(some, item)
		}
	}
	return some
}

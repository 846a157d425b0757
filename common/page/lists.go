// SPDX-License-Identifier: Apache-2.0

package page

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/isthmus-net/isthmus/common/analysis/lint"
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

func systemOf(n *model.Node) string { return cmp.Or(string(n.OS), "unknown") }

// policyRow is a policy in a list.
type policyRow struct {
	Name, Tier, Priority, Isolates string
	Rules                          int
	Place                          string
}

// Policies lists the policies whose names contain a text, in the order of evaluation.
func (v *View) Policies(find string) []policyRow {
	var all []policyRow
	for _, p := range v.policies {
		name := p.Origin.String()
		if !strings.Contains(name, find) {
			continue
		}
		r := policyRow{Name: name, Tier: p.Tier.String(), Rules: len(p.Rules[0]) + len(p.Rules[1]), Place: v.cluster.Places[name].String()}
		if p.Tier != model.TierNetworkPolicy && p.Priority >= 0 {
			r.Priority = fmt.Sprint(p.Priority)
		}
		var isolates []string
		for _, d := range model.Directions {
			if p.Isolates[d] {
				isolates = append(isolates, d.String())
			}
		}
		r.Isolates = strings.Join(isolates, ", ")
		all = append(all, r)
	}
	return all
}

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
		r := nodeRow{Name: name, OS: "unknown", Pods: pods[name]}
		if n, ok := s.Nodes.Get(name); ok {
			r.OS, r.Addresses, r.Ranges = systemOf(n), join(n.Addresses), join(n.PodCIDRs)
		}
		if a, ok := agents[name]; ok {
			r.Agent = &a
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

// inexact holds what nodes do not enforce exactly. It is computed in the background, because that takes long.
type inexact struct {
	mutex   sync.Mutex
	running bool
	of      *Cluster // of the answer; nil before the first one
	list    []lint.Construct
	err     error
}

// get returns the last answer, and the cluster that it is about; nil if there is none yet. It computes the answer for the
// given cluster unless it is known or computed already. The context ends the computation.
func (x *inexact) get(ctx context.Context, c *Cluster, compute func(context.Context, *Cluster) ([]lint.Construct, error)) ([]lint.Construct, *Cluster, error) {
	x.mutex.Lock()
	defer x.mutex.Unlock()
	if x.of != c && !x.running {
		x.running = true
		go func() {
			list, err := compute(ctx, c)
			list = slices.DeleteFunc(list, func(c lint.Construct) bool {
				return !slices.ContainsFunc(c.On, func(e lint.Exactness) bool { return e.Reason != "" })
			})
			x.mutex.Lock()
			defer x.mutex.Unlock()
			x.running, x.of, x.list, x.err = false, c, list, err
		}()
	}
	return x.list, x.of, x.err
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

// SPDX-License-Identifier: Apache-2.0

package query

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/common/analysis/engine"
	"github.com/isthmus-net/isthmus/common/analysis/lint"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
	"github.com/isthmus-net/isthmus/common/policy/compile"
	"github.com/isthmus-net/isthmus/linux/release"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// platform is a system that may enforce policies.
type platform struct {
	lint.Platform
	hns hnsVersion // Windows
}

// defaultPlatforms are those that lint checks without --platform.
func defaultPlatforms() []string { return []string{"linux", "hns-9.5", "hns-13.3", "hns-15.5"} }

// Inexact lists the constructs of a cluster's policies with how the default platforms of lint enforce them. It leaves out
// Windows if the cluster has nodes, and each of them is known to run Linux.
func Inexact(ctx context.Context, s *model.Snapshot) ([]lint.Construct, error) {
	platforms, err := parsePlatforms(defaultPlatforms())
	if err != nil {
		return nil, err
	}
	other := s.Nodes.Len() == 0
	for _, n := range s.Nodes.All() {
		other = other || n.OS != model.Linux
	}
	if !other {
		platforms = slices.DeleteFunc(platforms, func(p platform) bool { return p.Features.OS != model.Linux })
	}
	l := lint.NewCluster(s, s, nil)
	found, err := findInexact(ctx, l, platforms, func(int, int) {})
	if err != nil {
		return nil, err
	}
	for i := range platforms {
		platforms[i].Reported = platforms[i].reported(found)
	}
	return l.Constructs(lintPlatforms(platforms)), nil
}

func lintPlatforms(platforms []platform) []lint.Platform {
	all := make([]lint.Platform, len(platforms))
	for i, p := range platforms {
		all[i] = p.Platform
	}
	return all
}

func parsePlatforms(texts []string) ([]platform, error) {
	var all []platform
	for _, t := range texts {
		os, version, given := strings.Cut(t, "-")
		switch {
		case os == "linux":
			p := platform{Platform: lint.Platform{Name: t, Features: model.Features{OS: model.Linux, Platform: "kernel " + version, IPv6: true}}}
			v, err := release.Parse(version)
			if given && err != nil {
				return nil, cli.Usagef("--platform %q: give the version of a kernel such as linux-6.1", t)
			}
			if given && err == nil && !v.Supported() {
				p.Refuses = fmt.Sprintf("kernel %s is older than %s, the oldest that Isthmus runs on", version, release.Least)
			}
			all = append(all, p)
		case os == "hns" && given:
			versions, err := parseVersions([]string{version})
			if err != nil {
				return nil, cli.Usagef("--platform %q: give a version such as hns-13.3, 9.2 or newer", t)
			}
			v := versions[0]
			all = append(all, platform{hns: v, Platform: lint.Platform{Name: "hns-" + v.String(),
				Features: model.Features{OS: model.Windows, Platform: platformName(v), IPv6: v.Supports(hns.DualStack)}}})
		default:
			return nil, cli.Usagef("--platform %q: give linux, linux-6.1 or hns-13.3", t)
		}
	}
	return all, nil
}

// placeholderNode is the node of the placeholder pods, which lint adds for policies that
// select no pod.
const placeholderNode = "(placeholders)"

// placeholdersPerNode bounds them, so that they do not exhaust the classes of a node.
const placeholdersPerNode = 50

// inexactness holds what is not enforced exactly: by the compiler, and by the lowering to
// ACLs for each set of options.
type inexactness struct {
	compiled []model.Unsupported
	lowered  map[loweringKey][]model.Unsupported
}

// loweringKey holds the options in which lowerings for platforms differ.
type loweringKey struct{ sets, noIPv6 bool }

func keyOf(v hnsVersion) loweringKey {
	o := aclOptions(v)
	return loweringKey{o.Sets, o.NoIPv6}
}

// compiledNode is a node, or some of the placeholder pods.
type compiledNode struct {
	state    *model.State
	reported []model.Unsupported
}

// findInexact compiles every node and lowers those that have tables of their own. It does
// the same with a placeholder pod for each policy that selects no pod. It keeps no State.
func findInexact(ctx context.Context, l *lint.Cluster, platforms []platform, progress func(done, total int)) (*inexactness, error) {
	lowerings := make(map[loweringKey]hnsVersion)
	for _, p := range platforms {
		if p.Features.OS == model.Windows {
			lowerings[keyOf(p.hns)] = p.hns
		}
	}
	nodes, chunks := nodeNames(l.Snapshot), slices.Collect(slices.Chunk(l.Unselecting(), placeholdersPerNode))
	found, seen := &inexactness{lowered: make(map[loweringKey][]model.Unsupported)}, make(map[model.TableID]bool)
	return found, cli.InOrder(ctx, len(nodes)+len(chunks), func(i int) (compiledNode, error) {
		var c compiledNode
		if i < len(nodes) {
			c.state, c.reported = compileNode(l.Snapshot, nodes[i])
		} else {
			c.state, c.reported = compilePlaceholders(l.Snapshot, chunks[i-len(nodes)])
		}
		return c, nil
	}, func(i int, c compiledNode) error {
		progress(i+1, len(nodes)+len(chunks))
		found.compiled = append(found.compiled, c.reported...)
		fresh := false
		for _, e := range c.state.Policy.Endpoints {
			fresh = fresh || !seen[e.Table]
		}
		for id := range c.state.Policy.Tables {
			seen[id] = true
		}
		for k, v := range lowerings {
			if fresh {
				found.lowered[k] = append(found.lowered[k], acl.Lower(c.state, aclOptions(v), platformName(v)).Unsupported...)
			}
		}
		return nil
	})
}

// compilePlaceholders compiles policies that select no pod, with placeholder pods.
func compilePlaceholders(snapshot *model.Snapshot, policies []*model.Policy) (*model.State, []model.Unsupported) {
	s := *snapshot
	endpoints := make(map[model.EndpointID]compile.Endpoint)
	for _, p := range policies {
		pod, ns, ok := policy.PlaceholderPod(&s, p)
		if !ok {
			continue
		}
		pod.Node = placeholderNode
		s.Pods, s.Namespaces = s.Pods.With(pod.PodID, pod), s.Namespaces.With(ns.Name, ns)
		endpoints[engine.EndpointOf(pod)] = compile.Endpoint{Pod: pod.PodID}
	}
	return compile.Once(compile.Input{Snapshot: &s, Node: placeholderNode, Endpoints: endpoints})
}

// reported returns what a platform does not enforce exactly.
func (p *platform) reported(found *inexactness) []model.Unsupported {
	all := slices.Clone(found.compiled)
	switch {
	case p.Refuses != "":
		all = append(all, model.Unsupported{Rule: -1, Construct: "kernel", Effect: model.Refused, Reason: p.Refuses})
	case p.Features.OS == model.Windows:
		for _, u := range found.lowered[keyOf(p.hns)] {
			u.Platform = p.Features.Platform
			all = append(all, u)
		}
	}
	return all
}

// results formats the result on every platform in one line.
func results(exactness []lint.Exactness) string {
	parts := make([]string, len(exactness))
	for i, on := range exactness {
		parts[i] = on.Platform + " " + on.Result
	}
	return strings.Join(parts, ", ")
}

// writeConstructs counts constructs by platform and result.
func writeConstructs(b *strings.Builder, r *lint.Report) {
	rules := make(map[string]int)
	results := make(map[string]map[string]map[string]int) // construct, platform, result
	for _, c := range r.Constructs {
		rules[c.Construct]++
		if results[c.Construct] == nil {
			results[c.Construct] = make(map[string]map[string]int)
		}
		for _, on := range c.On {
			if results[c.Construct][on.Platform] == nil {
				results[c.Construct][on.Platform] = make(map[string]int)
			}
			results[c.Construct][on.Platform][on.Result]++
		}
	}
	if len(rules) == 0 {
		return
	}
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "CONSTRUCT\tRULES\t%s\n", strings.ToUpper(strings.Join(r.Platforms, "\t")))
	for _, c := range slices.Sorted(maps.Keys(rules)) {
		fmt.Fprintf(w, "%s\t%d", c, rules[c])
		for _, p := range r.Platforms {
			var parts []string
			counts := results[c][p]
			for _, result := range slices.Sorted(maps.Keys(counts)) {
				if len(counts) == 1 {
					parts = append(parts, result)
				} else {
					parts = append(parts, fmt.Sprintf("%d %s", counts[result], result))
				}
			}
			fmt.Fprintf(w, "\t%s", strings.Join(parts, ", "))
		}
		fmt.Fprintln(w)
	}
	w.Flush()
	b.WriteByte('\n')
}

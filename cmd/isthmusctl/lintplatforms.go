// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/isthmus-net/isthmus/common/analysis/engine"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
	"github.com/isthmus-net/isthmus/common/policy/compile"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// platform is what policies may be enforced by.
type platform struct {
	name     string
	features model.Features
	hns      hnsVersion // Windows
	// refuses says why the agent does not run there.
	refuses string
}

// minKernel is the oldest Linux that the data path is tested on.
var minKernel = [2]int{6, 1}

func parsePlatforms(texts []string) ([]platform, error) {
	var all []platform
	for _, t := range texts {
		os, version, given := strings.Cut(t, "-")
		switch {
		case os == "linux":
			p := platform{name: t, features: model.Features{OS: model.Linux, Platform: "kernel " + version, IPv6: true}}
			major, minor, err := kernelVersion(version)
			if given && err != nil {
				return nil, usageError{fmt.Errorf("--platform %q: give the version of a kernel such as linux-6.1", t)}
			}
			if given && (major < minKernel[0] || major == minKernel[0] && minor < minKernel[1]) {
				p.refuses = fmt.Sprintf("kernel %s is older than %d.%d, the oldest that Isthmus is tested on", version, minKernel[0], minKernel[1])
			}
			all = append(all, p)
		case os == "hns" && given:
			versions, err := parseVersions([]string{version})
			if err != nil {
				return nil, usageError{fmt.Errorf("--platform %q: give a version such as hns-13.3, 9.2 or newer", t)}
			}
			v := versions[0]
			all = append(all, platform{name: "hns-" + v.String(), hns: v,
				features: model.Features{OS: model.Windows, Platform: platformName(v), IPv6: v.Supports(hns.DualStack)}})
		default:
			return nil, usageError{fmt.Errorf("--platform %q: give linux, linux-6.1 or hns-13.3", t)}
		}
	}
	return all, nil
}

func kernelVersion(text string) (major, minor int, err error) {
	a, b, _ := strings.Cut(text, ".")
	if major, err = strconv.Atoi(a); err != nil {
		return 0, 0, err
	}
	b, _, _ = strings.Cut(b, ".")
	minor, err = strconv.Atoi(b)
	return major, minor, err
}

// witnessNode is where the pods stand that are made for policies which select
// none.
const witnessNode = "(witnesses)"

// witnessesPerNode bounds them, so that what they have to share does not run out.
const witnessesPerNode = 50

// inexactness is what is not enforced exactly: of the compiler, and of the lowering to
// ACLs by the options that platforms have.
type inexactness struct {
	compiled []model.Unsupported
	lowered  map[loweringKey][]model.Unsupported
}

// loweringKey is what lowerings for platforms differ by.
type loweringKey struct{ sets, noIPv6 bool }

func keyOf(v hnsVersion) loweringKey {
	o := aclOptions(v)
	return loweringKey{o.Sets, o.NoIPv6}
}

// compiledNode is a node, or some pods that are made for policies that select none.
type compiledNode struct {
	state    *model.State
	reported []model.Unsupported
}

// inexact compiles every node, and the policies that select no pod for pods that are
// made for the purpose, and lowers those that have tables of their own. No State is
// kept.
func (l *linted) inexact(ctx context.Context, platforms []platform, progress func(done, total int)) (*inexactness, error) {
	lowerings := make(map[loweringKey]hnsVersion)
	for _, p := range platforms {
		if p.features.OS == model.Windows {
			lowerings[keyOf(p.hns)] = p.hns
		}
	}
	nodes, chunks := nodeNames(l.snapshot), slices.Collect(slices.Chunk(l.unselecting(), witnessesPerNode))
	found, seen := &inexactness{lowered: make(map[loweringKey][]model.Unsupported)}, make(map[model.TableID]bool)
	return found, inOrder(ctx, len(nodes)+len(chunks), func(i int) (compiledNode, error) {
		var c compiledNode
		if i < len(nodes) {
			c.state, c.reported = compileNode(l.snapshot, nodes[i])
		} else {
			c.state, c.reported = l.compileWitnesses(chunks[i-len(nodes)])
		}
		return c, nil
	}, func(i int, c compiledNode) error {
		progress(i+1, len(nodes)+len(chunks))
		found.compiled = append(found.compiled, c.reported...)
		fresh := false
		for _, e := range c.state.Endpoints {
			fresh = fresh || !seen[e.Table]
		}
		for id := range c.state.Tables {
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

// compileWitnesses compiles policies that select no pod for pods that are made for
// them.
func (l *linted) compileWitnesses(policies []*model.Policy) (*model.State, []model.Unsupported) {
	s := *l.snapshot
	endpoints := make(map[model.EndpointID]compile.Endpoint)
	for _, p := range policies {
		pod, ns, ok := policy.Witness(&s, p)
		if !ok {
			continue
		}
		pod.Node = witnessNode
		s.Pods, s.Namespaces = s.Pods.With(pod.PodID, pod), s.Namespaces.With(ns.Name, ns)
		endpoints[engine.EndpointOf(pod)] = compile.Endpoint{Pod: pod.PodID}
	}
	return compile.Once(compile.Input{Snapshot: &s, Node: witnessNode, Endpoints: endpoints})
}

// unselecting are the policies that select no pod.
func (l *linted) unselecting() []*model.Policy {
	return unselecting(l.snapshot, l.policies)
}

// reported is what a platform does not enforce exactly.
func (p *platform) reported(found *inexactness) []model.Unsupported {
	all := slices.Clone(found.compiled)
	switch {
	case p.refuses != "":
		all = append(all, model.Unsupported{Rule: -1, Construct: "kernel", Effect: model.Refused, Reason: p.refuses})
	case p.features.OS == model.Windows:
		for _, u := range found.lowered[keyOf(p.hns)] {
			u.Platform = p.features.Platform
			all = append(all, u)
		}
	}
	return all
}

// addEnforceability asks every platform about every construct. What is not
// exact is a warning where a pod of the policy runs on such a system, or none is
// known to run anywhere, and a note elsewhere.
func (r *lintReport) addEnforceability(l *linted, platforms []platform, found *inexactness) {
	index := make(map[policy.Use]int)
	for i := range platforms {
		p := &platforms[i]
		reported := p.reported(found)
		for _, e := range policy.Enforce(l.policies, p.features, reported) {
			n, ok := index[e.Use]
			if !ok {
				n = len(r.Constructs)
				index[e.Use] = n
				r.Constructs = append(r.Constructs, constructReport{Policy: e.Policy.String(), Direction: e.Direction.String(),
					Rule: e.Rule, Construct: e.Construct, use: e.Use})
			}
			r.Constructs[n].On = append(r.Constructs[n].On, exactnessOn{p.name, e.String(), e.Reason})
		}
		r.Findings = append(r.Findings, l.unnamed(p, reported)...)
	}
	r.addInexact(platforms, l.systems())
}

// unnamed are the reports that are on no policy: on pods, or on a platform as a
// whole.
func (l *linted) unnamed(p *platform, reported []model.Unsupported) []finding {
	var all []finding
	add := func(who string, runs bool, message string) {
		f := finding{Severity: note, Check: "enforceability", Policy: who, Platforms: []string{p.name}, Message: message}
		if runs {
			f.Severity = warning
		}
		all = append(all, f)
	}
	if p.refuses != "" {
		add("", len(l.pods) == 0 || slices.ContainsFunc(l.pods, func(pod *model.Pod) bool { return l.os[pod] == p.features.OS }),
			"nothing is enforced: "+p.refuses)
	}
	for _, u := range reported {
		if u.Policy.Kind == "Pod" {
			pod, ok := l.snapshot.Pods.Get(model.PodID{Namespace: u.Policy.Namespace, Name: u.Policy.Name})
			add(u.Policy.String(), ok && osOf(l.snapshot, pod) == p.features.OS, fmt.Sprintf("%s: %s: %s", u.Construct, u.Effect, u.Reason))
		}
	}
	return all
}

// systems tells on which systems the pods of each policy run.
func (l *linted) systems() map[model.Origin]map[model.OS]bool {
	all := make(map[model.Origin]map[model.OS]bool)
	for _, p := range l.policies {
		on := make(map[model.OS]bool)
		for _, pod := range l.selected(p.Subject) {
			on[l.os[pod]] = true
		}
		all[p.Origin] = on
	}
	return all
}

// inexact is what one rule does not get, for one reason.
type inexact struct {
	policy, direction string
	rule              int
	why               string
}

// addInexact makes one finding for each rule and reason, with all constructs
// and platforms that it concerns.
func (r *lintReport) addInexact(platforms []platform, runs map[model.Origin]map[model.OS]bool) {
	constructs, on := make(map[inexact][]string), make(map[inexact][]string)
	severities := make(map[inexact]severity)
	for _, c := range r.Constructs {
		for i, e := range c.On {
			if e.Reason == "" || platforms[i].refuses != "" {
				continue
			}
			key := inexact{c.Policy, c.Direction, c.Rule, e.Result + ": " + e.Reason}
			if !slices.Contains(constructs[key], c.Construct) {
				constructs[key] = append(constructs[key], c.Construct)
			}
			if !slices.Contains(on[key], e.Platform) {
				on[key] = append(on[key], e.Platform)
			}
			if os := runs[c.use.Policy]; len(os) == 0 || os[platforms[i].features.OS] {
				severities[key] = warning
			}
		}
	}
	for key, list := range constructs {
		f := finding{Severity: severities[key], Check: "enforceability", Policy: key.policy, Direction: key.direction, Rule: &key.rule,
			Message: strings.Join(list, ", ") + ": " + key.why}
		if len(on[key]) < len(platforms) {
			f.Platforms = on[key]
		}
		r.Findings = append(r.Findings, f)
	}
}

// results is the result on every platform in one line.
func (c *constructReport) results() string {
	parts := make([]string, len(c.On))
	for i, on := range c.On {
		parts[i] = on.Platform + " " + on.Result
	}
	return strings.Join(parts, ", ")
}

// writeTable counts constructs by platform and result.
func (r *lintReport) writeTable(b *strings.Builder) {
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

// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"fmt"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/analysis/complete"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
)

// Platform is a system that may enforce the policies.
type Platform struct {
	Name     string
	Features model.Features
	// Refuses is the reason why the agent does not run there; "" if it does.
	Refuses string
	// Reported is what the platform does not enforce exactly, as the compiler and the
	// backend reported for the policies of the cluster.
	Reported []model.Unsupported
}

// Report is the result of lint. Its JSON form is an interface of isthmusctl.
type Report struct {
	// Policies is the number of policies.
	Policies   int         `json:"policies"`
	Findings   []Finding   `json:"findings"`
	Platforms  []string    `json:"platforms"`
	Constructs []Construct `json:"constructs"`
}

// Construct is one construct of one rule on every platform.
type Construct struct {
	Policy    string      `json:"policy"`
	Direction string      `json:"direction"`
	Rule      int         `json:"rule"`
	Construct string      `json:"construct"`
	On        []Exactness `json:"on"`
	use       policy.Use  // for joining
}

// Exactness is the enforcement of a construct by one platform: "exact", "over-blocks" or
// "refused", and the reason if it is not exact.
type Exactness struct {
	Platform string `json:"platform"`
	Result   string `json:"result"`
	Reason   string `json:"reason,omitempty"`
}

// Report runs all checks. findings are those of reading the cluster, and become part of the
// report.
func (l *Cluster) Report(platforms []Platform, findings []Finding) *Report {
	r := &Report{Policies: len(l.policies), Findings: append([]Finding{}, findings...), Constructs: []Construct{}}
	for _, p := range platforms {
		r.Platforms = append(r.Platforms, p.Name)
	}
	r.addEnforceability(l, platforms)
	for _, check := range checks() {
		r.Findings = append(r.Findings, check(l)...)
	}
	slices.SortFunc(r.Findings, Compare)
	r.Findings = slices.CompactFunc(r.Findings, func(a, b Finding) bool { return Compare(a, b) == 0 })
	return r
}

// Constructs lists the constructs of all policies with how each platform enforces them, and runs no checks.
func (l *Cluster) Constructs(platforms []Platform) []Construct {
	var r Report
	r.addEnforceability(l, platforms)
	return r.Constructs
}

// addEnforceability evaluates every construct for every platform. A construct that is not
// exact is a warning if a pod of the policy runs on such an operating system, or if no pod
// of the policy is known. Otherwise it is a note.
func (r *Report) addEnforceability(l *Cluster, platforms []Platform) {
	index := make(map[policy.Use]int)
	for i := range platforms {
		p := &platforms[i]
		for _, e := range policy.Enforce(l.policies, p.Features, p.Reported) {
			n, ok := index[e.Use]
			if !ok {
				n = len(r.Constructs)
				index[e.Use] = n
				r.Constructs = append(r.Constructs, Construct{Policy: e.Policy.String(), Direction: e.Direction.String(),
					Rule: e.Rule, Construct: e.Construct, use: e.Use})
			}
			r.Constructs[n].On = append(r.Constructs[n].On, Exactness{p.Name, e.String(), e.Reason})
		}
		r.Findings = append(r.Findings, l.unnamed(p)...)
	}
	r.addInexact(platforms, l.systems())
}

// unnamed are the reports that name no policy: on pods, or on a platform as a whole.
func (l *Cluster) unnamed(p *Platform) []Finding {
	var all []Finding
	add := func(who string, runs bool, message string) {
		f := Finding{Severity: Note, Check: "enforceability", Policy: who, Platforms: []string{p.Name}, Message: message}
		if runs {
			f.Severity = Warning
		}
		all = append(all, f)
	}
	if p.Refuses != "" {
		add("", len(l.pods) == 0 || slices.ContainsFunc(l.pods, func(pod *model.Pod) bool { return l.os[pod] == p.Features.OS }),
			"nothing is enforced: "+p.Refuses)
	}
	for _, u := range p.Reported {
		if u.Policy.Kind == "Pod" {
			pod, ok := l.Snapshot.Pods.Get(model.PodID{Namespace: u.Policy.Namespace, Name: u.Policy.Name})
			add(u.Policy.String(), ok && complete.OSOf(l.Snapshot, pod) == p.Features.OS, fmt.Sprintf("%s: %s: %s", u.Construct, u.Effect, u.Reason))
		}
	}
	return all
}

// systems returns the operating systems of the pods of each policy.
func (l *Cluster) systems() map[model.Origin]map[model.OS]bool {
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

// inexact is one deviation of one rule, for one reason.
type inexact struct {
	policy, direction string
	rule              int
	why               string
}

// addInexact makes one finding for each rule and reason, with all constructs and platforms
// that it concerns.
func (r *Report) addInexact(platforms []Platform, runs map[model.Origin]map[model.OS]bool) {
	constructs, on := make(map[inexact][]string), make(map[inexact][]string)
	severities := make(map[inexact]Severity)
	for _, c := range r.Constructs {
		for i, e := range c.On {
			if e.Reason == "" || platforms[i].Refuses != "" {
				continue
			}
			key := inexact{c.Policy, c.Direction, c.Rule, e.Result + ": " + e.Reason}
			if !slices.Contains(constructs[key], c.Construct) {
				constructs[key] = append(constructs[key], c.Construct)
			}
			if !slices.Contains(on[key], e.Platform) {
				on[key] = append(on[key], e.Platform)
			}
			if os := runs[c.use.Policy]; len(os) == 0 || os[platforms[i].Features.OS] {
				severities[key] = Warning
			}
		}
	}
	for key, list := range constructs {
		f := Finding{Severity: severities[key], Check: "enforceability", Policy: key.policy, Direction: key.direction, Rule: &key.rule,
			Message: strings.Join(list, ", ") + ": " + key.why}
		if len(on[key]) < len(platforms) {
			f.Platforms = on[key]
		}
		r.Findings = append(r.Findings, f)
	}
}

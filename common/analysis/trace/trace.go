// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/analysis/explain"
	"github.com/isthmus-net/isthmus/common/inspect"
	"github.com/isthmus-net/isthmus/common/model"
)

// Installed decides a new flow of an endpoint as the data path does. by is what decides there, such as a rule
// of HNS, or "". The error says why the data path has no answer.
type Installed func(id model.EndpointID, d model.Direction, remote netip.Addr, p model.Protocol, port uint16) (v model.Verdict, by string, err error)

// Report is a trace. Its JSON form is an interface of isthmusctl.
type Report struct {
	Node     string      `json:"node"`
	From     explain.End `json:"from"`
	To       explain.End `json:"to"`
	Protocol string      `json:"protocol"`
	Port     uint16      `json:"port"`
	// Intended is the verdict of the policies. Installed is that of the data path for the ends on this node,
	// or "unknown".
	Intended  string `json:"intended"`
	Installed string `json:"installed"`
	// Drift is true if some installed object differs from what policy intends for this flow.
	Drift bool   `json:"drift"`
	Steps []Step `json:"steps"`
}

// Step is one place that the packet passes.
type Step struct {
	// What is the place: service, attachment, egress policy, path, ingress policy.
	What string `json:"what"`
	// Where is the pod or the node.
	Where string `json:"where"`
	// Intended and Installed are the verdicts of a step that has some.
	Intended  string `json:"intended,omitempty"`
	Installed string `json:"installed,omitempty"`
	// Cause is the policy behind Intended, By what decides in the data path.
	Cause string `json:"cause,omitempty"`
	By    string `json:"by,omitempty"`
	// Text describes a step without verdicts.
	Text string `json:"text,omitempty"`
	// Wrong are the problems of the step, each with its remedy.
	Wrong []string `json:"wrong,omitempty"`
	// Changes are single edits of a policy that would allow a denied flow.
	Changes []string `json:"changes,omitempty"`
	Drift   bool     `json:"drift,omitempty"`
}

const unknown = "unknown"

// tracer is one trace.
type tracer struct {
	b         *inspect.Bundle
	flow      model.Flow
	installed Installed
	owners    model.Owners
	r         *Report
}

// Flow follows a flow. The snapshot is that of the Bundle.
func Flow(b *inspect.Bundle, s *model.Snapshot, f model.Flow, installed Installed) *Report {
	x := explain.Flow(s, f, nil, nil)
	t := &tracer{b: b, flow: f, installed: installed, owners: s.Owners(),
		r: &Report{Node: b.About.Node, From: x.From, To: x.To, Protocol: x.Protocol, Port: x.Port,
			Intended: x.Verdict, Installed: model.Allow.String(), Steps: []Step{}}}
	t.service(s)
	t.denyLists(x)
	t.end(x, model.Egress, f.Src)
	t.path()
	t.end(x, model.Ingress, f.Dst)
	return t.r
}

// service adds that an address of Services is not the one about which policy decides. Agents do not read Services.
func (t *tracer) service(s *model.Snapshot) {
	for _, c := range s.ServiceCIDRs.All() {
		if slices.ContainsFunc(c.Prefixes, func(p netip.Prefix) bool { return p.Contains(t.flow.Dst) }) {
			t.add(Step{What: "service", Where: t.flow.Dst.String(), Text: "an address of Services: this node replaces it by that of a backend before policy decides, so the verdicts below are not those of the connection; name the pod of a backend, or use --all-nodes, which reads the Services"})
			return
		}
	}
}

// denyLists adds that deny lists have the source. Nothing here reads their maps.
func (t *tracer) denyLists(x *explain.Report) {
	if len(x.DenyLists) == 0 {
		return
	}
	t.add(Step{What: "deny lists", Where: t.flow.Src.String(), Intended: model.Deny.String(), Cause: strings.Join(x.DenyLists, ", "), Installed: unknown,
		Wrong: []string{"isthmusctl deny check on the node that receives the packet shows whether its maps have the address"}})
	t.note(unknown)
}

func (t *tracer) add(s Step) {
	t.r.Steps = append(t.r.Steps, s)
	t.r.Drift = t.r.Drift || s.Drift
}

// end adds the attachment and the policy of one end.
func (t *tracer) end(x *explain.Report, d model.Direction, own netip.Addr) {
	pod := t.owners.Pods[own]
	if pod == nil {
		return
	}
	var side *explain.Side
	for i := range x.Sides {
		if x.Sides[i].Direction == d.String() {
			side = &x.Sides[i]
		}
	}
	policy := Step{What: d.String() + " policy", Where: pod.PodID.String(), Installed: unknown}
	if side != nil {
		policy.Intended, policy.Cause = side.Decision.Verdict, side.Decision.Text
		if policy.Intended == model.Deny.String() {
			policy.Changes = edits(side)
		}
	}
	if pod.Node != t.b.About.Node {
		policy.Text = fmt.Sprintf("decided on node %s: run isthmusctl trace there", orNone(pod.Node))
		t.add(policy)
		t.note(unknown)
		return
	}
	at := t.attachment(pod)
	t.add(at.step)
	if at.endpoint == nil {
		t.note(model.Deny.String())
		return
	}
	remote := t.flow.Dst
	if d == model.Ingress {
		remote = t.flow.Src
	}
	v, by, err := t.installed(at.endpoint.ID, d, remote, t.flow.Protocol, t.flow.Port)
	if err != nil {
		policy.Wrong = append(policy.Wrong, err.Error())
		t.add(policy)
		t.note(unknown)
		return
	}
	policy.Installed, policy.By = v.String(), by
	if policy.Installed != policy.Intended {
		t.differs(&policy, at.endpoint)
	}
	t.add(policy)
	t.note(policy.Installed)
}

// maxEdits bounds the edits that a step names. isthmusctl explain names all.
const maxEdits = 3

// edits returns the edits that would allow what a side denies.
func edits(side *explain.Side) (all []string) {
	for _, c := range side.Changes {
		if c.Then.Verdict != model.Allow.String() || len(all) == maxEdits {
			continue
		}
		text := c.Policy
		if c.Rule != nil {
			text += fmt.Sprintf(" rule %d", *c.Rule)
		}
		all = append(all, text+": "+c.What)
	}
	return all
}

// note adds the installed verdict of one end to that of the flow.
func (t *tracer) note(verdict string) {
	switch {
	case verdict == model.Deny.String():
		t.r.Installed = verdict
	case verdict == unknown && t.r.Installed == model.Allow.String():
		t.r.Installed = unknown
	}
}

// differs explains an installed verdict that is not the intended one.
func (t *tracer) differs(s *Step, e *inspect.Endpoint) {
	if s.Installed == model.Deny.String() {
		for _, u := range t.b.About.Unsupported {
			if slices.ContainsFunc(e.Policies, func(o model.Origin) bool { return o.Key() == u.Policy.Key() }) {
				s.Wrong = append(s.Wrong, "over-blocked: "+u.String())
				return // is reported, and not a drift
			}
		}
	}
	if t.b.About.Pending {
		s.Wrong = append(s.Wrong, "a change of policy is being applied: repeat the trace")
		return
	}
	s.Drift = true
	for _, d := range t.b.Drift {
		if d.Endpoint == "" || d.Endpoint == e.ID {
			s.Wrong = append(s.Wrong, d.Object+": "+d.Detail)
		}
	}
	s.Wrong = append(s.Wrong, "the agent repairs this at its next audit; if it comes back, another process writes there: isthmusctl status names it")
}

// attached describes a pod as its node reports it.
type attached struct {
	step     Step
	endpoint *inspect.Endpoint // nil if the pod is not attached
}

func (t *tracer) attachment(pod *model.Pod) attached {
	a := attached{step: Step{What: "attachment", Where: pod.PodID.String()}}
	for i := range t.b.Endpoints {
		e := &t.b.Endpoints[i]
		if e.Pod == pod.PodID {
			a.endpoint = e
		}
	}
	if a.endpoint == nil {
		a.step.Drift = true
		a.step.Wrong = []string{"the pod is not attached to this node: look for its ADD in the events of the pod (kubectl describe)"}
		return a
	}
	e := a.endpoint
	a.step.Text = "policy in force"
	switch {
	case e.Unenforced:
		a.step.Text, a.step.Drift = "policy NOT enforced", true
	case e.Table == "":
		a.step.Text = "default deny"
	}
	if e.HostInterface != "" { // Windows has none
		a.step.Text = "interface " + e.HostInterface + ", " + a.step.Text
	}
	a.step.Wrong = slices.Clone(e.Problems)
	a.step.Drift = a.step.Drift || len(e.Problems) > 0
	for _, d := range t.b.Drift {
		if d.Endpoint == e.ID && !slices.Contains(a.step.Wrong, d.Detail) {
			a.step.Wrong = append(a.step.Wrong, d.Object+": "+d.Detail)
			a.step.Drift = true
		}
	}
	return a
}

// path adds how the packet gets from one end to the other.
func (t *tracer) path() {
	s := Step{What: stepPath, Where: t.b.About.Node}
	from, to := t.nodeOf(t.flow.Src), t.nodeOf(t.flow.Dst)
	here := t.b.About.Node
	switch {
	case from == here && to == here:
		s.Text = "both ends are on this node"
	case from == here && to != "":
		s.Text = fmt.Sprintf("to node %s%s", to, t.modes("other_nodes"))
	case from == here:
		s.Text = "leaves the cluster" + t.modes("outside")
	case to == here && from != "":
		s.Text = fmt.Sprintf("from node %s%s", from, t.modes("other_nodes"))
	case to == here:
		s.Text = "from outside the cluster"
	default:
		s.Text = "neither end is on this node: run isthmusctl trace on the node of an end"
	}
	for _, end := range []explain.End{t.r.From, t.r.To} {
		if end.Unknown {
			s.Text += "; no known pod has the address " + end.Address
		}
	}
	if from != to {
		s.Wrong = t.about("fabric", "route", "tunnel", "uplink", "forwarding")
		for _, f := range t.b.About.Facts {
			if strings.HasPrefix(f, "fabric") {
				s.Text += "; " + f
			}
		}
		for _, r := range t.b.About.Repairs {
			if strings.Contains(r, "route") || strings.Contains(r, "net/ip") || strings.Contains(r, "neigh") {
				s.Wrong = append(s.Wrong, "repaired: "+r)
			}
		}
		for _, d := range t.b.Drift {
			if slices.Contains([]string{"route", "host route", "forwarding", "node_routes", "owners", "tunnel_nodes", "tunnel_sources", "sysctl"}, d.Object) {
				s.Drift = true
				s.Wrong = append(s.Wrong, d.Object+": "+d.Detail)
			}
		}
	}
	t.add(s)
}

// about returns the problems of the node that contain one of the words.
func (t *tracer) about(words ...string) (all []string) {
	for _, p := range t.b.About.Problems {
		if slices.ContainsFunc(words, func(w string) bool { return strings.Contains(p, w) }) && !strings.HasPrefix(p, "endpoint ") {
			all = append(all, p)
		}
	}
	return all
}

// modes returns the modes of a part of the data path, as a part of a sentence.
func (t *tracer) modes(part string) string {
	var all []string
	for _, m := range t.b.About.Modes {
		if rest, ok := strings.CutPrefix(m, part+": "); ok {
			all = append(all, rest)
		}
	}
	if len(all) == 0 {
		return ""
	}
	return ", by " + strings.Join(all, ", ")
}

// nodeOf returns the node that has an address, or behind which it is; "" outside the cluster.
func (t *tracer) nodeOf(a netip.Addr) string {
	if p := t.owners.Pods[a]; p != nil {
		return p.Node
	}
	if n := t.owners.Nodes[a]; n != nil {
		return n.Name
	}
	for _, n := range t.b.Cluster.Nodes {
		if slices.ContainsFunc(n.PodCIDRs, func(p netip.Prefix) bool { return p.Contains(a) }) {
			return n.Name
		}
	}
	return ""
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/isthmus-net/isthmus/common/analysis/complete"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
)

// Report is the explanation of a flow. Its JSON form is an interface of isthmusctl.
type Report struct {
	From End `json:"from"`
	To   End `json:"to"`
	// Via is the port of a node that leads to a pod, as "node n1 TCP 8080", if the client calls that.
	Via      string `json:"via,omitempty"`
	Protocol string `json:"protocol"`
	Port     uint16 `json:"port"`
	// Verdict is "allow" if every side allows and no deny list has the source, else "deny".
	Verdict string `json:"verdict"`
	// DenyLists are the entries of deny lists by which nodes drop the flow before policy decides.
	DenyLists []string `json:"deny_lists,omitempty"`
	// Sides are the ends that decide, the source first.
	Sides []Side `json:"sides"`
	// Notes list what the verdict does not cover.
	Notes []string `json:"notes,omitempty"`
}

// End is an address and its owner.
type End struct {
	Address string `json:"address"`
	Pod     string `json:"pod,omitempty"`
	Node    string `json:"node,omitempty"`
	// Unknown is set for an address of a pod range that no known pod has.
	Unknown bool `json:"unknown_pod,omitempty"`
}

// Side is the decision of one pod about one direction.
type Side struct {
	Direction string        `json:"direction"`
	Pod       string        `json:"pod"`
	Node      string        `json:"node"`
	OS        model.OS      `json:"os"`
	Decision  Decision      `json:"decision"`
	Isolating []string      `json:"isolating"`
	Rules     []Rule        `json:"rules"`
	Enforced  []Enforcement `json:"enforced"`
	Changes   []Change      `json:"changes"`
	// Next is what denies the flow without the rule that denies it; nil if nothing does.
	Next *Decision `json:"next,omitempty"`
	// Suggestion is a rule that would allow a denied flow; nil if there is none.
	Suggestion *Suggestion `json:"suggestion,omitempty"`
	// Notes name what the verdict does not cover.
	Notes []string `json:"notes,omitempty"`
	// Places are the files and lines of the policies that decide or isolate, if files have them.
	Places []Place `json:"places,omitempty"`
}

// Place is where a file defines a policy.
type Place struct {
	Policy string `json:"policy"`
	File   string `json:"file"`
	Line   int    `json:"line,omitempty"`
}

// Locate adds the places of policies, by their names.
func (x *Report) Locate(places map[string]model.Place) {
	for i := range x.Sides {
		s := &x.Sides[i]
		for _, name := range append([]string{s.Decision.Policy}, s.Isolating...) {
			at, ok := places[name]
			if one := (Place{name, at.File, at.Line}); ok && !slices.Contains(s.Places, one) {
				s.Places = append(s.Places, one)
			}
		}
	}
}

// Decision is a verdict and its cause. Tier and Policy are set if a policy decides, Rule if
// one of its rules does; Rule is the index in the API object.
type Decision struct {
	Verdict string `json:"verdict"`
	Reason  string `json:"reason"`
	Tier    string `json:"tier,omitempty"`
	Policy  string `json:"policy,omitempty"`
	Rule    *int   `json:"rule,omitempty"`
	Text    string `json:"text"`
}

// Rule is a rule of a policy that selects the pod, and its effect on the flow.
type Rule struct {
	Policy     string   `json:"policy"`
	Tier       string   `json:"tier"`
	Priority   int      `json:"priority,omitempty"`
	Rule       int      `json:"rule"`
	Name       string   `json:"name,omitempty"`
	Action     string   `json:"action"`
	Role       string   `json:"role"`
	PeerMisses []string `json:"peer_misses,omitempty"`
	PortMisses []string `json:"port_misses,omitempty"`
}

// Change is a single edit of one policy that reverses the verdict. Rule is nil for the whole
// policy.
type Change struct {
	Policy string   `json:"policy"`
	Rule   *int     `json:"rule,omitempty"`
	What   string   `json:"what"`
	Misses []string `json:"misses,omitempty"`
	Then   Decision `json:"then"`
}

// Enforcement is the verdict of a data path for the flow.
type Enforcement struct {
	Platform string `json:"platform"`
	Verdict  string `json:"verdict"`
	// Exact is set if the verdict is that of the policies; Reasons state why it is not.
	Exact   bool     `json:"exact"`
	Reasons []string `json:"reasons,omitempty"`
}

// Enforced returns the verdicts of the data paths of a pod's node for a flow with a remote
// address, in one direction.
type Enforced func(pod *model.Pod, d model.Direction, remote netip.Addr) []Enforcement

// Flow decides a flow at both ends. An end without a pod that policies apply to decides
// nothing, except that deny lists drop some sources. services are those of the cluster, as far as they are known. enforced may be
// nil.
func Flow(s *model.Snapshot, f model.Flow, services []*model.Service, enforced Enforced) *Report {
	x := Forwarded(s, f, f, services, func(model.Flow) Enforced { return enforced })
	owners := s.Owners()
	if f.Dst.IsPrivate() && owners.Pods[f.Dst] == nil && owners.Nodes[f.Dst] == nil && !s.PodRange(f.Dst) {
		x.Notes = append(x.Notes, fmt.Sprintf("%s is in no known range: if it belongs to a Service, explain the flows to the pods of the Service", f.Dst))
	}
	if from := owners.Pods[f.Src]; from != nil && ofTheLink(f.Dst) && complete.OSOf(s, from) != model.Windows {
		x.Notes = append(x.Notes, fmt.Sprintf("%s is an address of the link: Linux nodes with --mode=full drop what pods send there, except neighbour discovery", f.Dst))
	}
	if n := owners.Nodes[f.Dst]; n != nil {
		x.Notes = append(x.Notes, behindNode(s, n, f, services)...)
	}
	return x
}

// ofTheLink reports whether no router forwards packets to an address.
func ofTheLink(a netip.Addr) bool {
	return a.IsLinkLocalUnicast() && a.Is6() || a.IsLinkLocalMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// Forwarded decides a connection that a node forwards, as service.Connection has it: the egress flow at the client, and the
// ingress flow at the backend. enforced returns the verdicts of the data paths for a flow.
func Forwarded(s *model.Snapshot, egress, ingress model.Flow, services []*model.Service, enforced func(model.Flow) Enforced) *Report {
	owners := s.Owners()
	x := &Report{From: endOf(s, owners, egress.Src), To: endOf(s, owners, ingress.Dst), Protocol: ingress.Protocol.String(), Port: ingress.Port,
		Verdict: model.Allow.String(), Sides: []Side{}}
	reference := policy.NewEvaluator(s)
	for _, side := range []struct {
		d           model.Direction
		own, remote netip.Addr
		f           model.Flow
	}{{model.Egress, egress.Src, egress.Dst, egress}, {model.Ingress, ingress.Dst, ingress.Src, ingress}} {
		pod := owners.Pods[side.own]
		if pod == nil {
			continue
		}
		decided := reference.Explain(pod, side.d, side.remote, side.f.Protocol, side.f.Port)
		r := sideOf(s, decided)
		r.Suggestion = suggest(s, owners, reference, decided, side.f)
		if data := enforced(side.f); data != nil {
			r.Enforced = data(pod, side.d, side.remote)
		}
		if side.d == model.Ingress && len(r.Rules)+len(r.Isolating) > 0 {
			r.Notes = hiddenClients(s, owners, side.remote, pod, services)
		}
		r.Notes = append(r.Notes, forwards(s, owners, side.d, egress, ingress)...)
		r.Notes = append(r.Notes, observed(s, pod, r.Decision)...)
		x.Sides = append(x.Sides, r)
		if r.Decision.Verdict == model.Deny.String() {
			x.Verdict = r.Decision.Verdict
		}
	}
	x.denyLists(s, owners, egress.Src, ingress.Dst)
	return x
}

// observed says that some nodes only report what the pod's namespace denies.
func observed(s *model.Snapshot, pod *model.Pod, d Decision) []string {
	ns, ok := s.Namespaces.Get(pod.Namespace)
	if !ok || ns.Enforcement != model.Observe || d.Verdict != model.Deny.String() {
		return nil
	}
	return []string{fmt.Sprintf("namespace %s has the annotation %s=%s: Linux nodes with --mode=policy or observe report the flow and let it pass", ns.Name, model.AnnotationEnforcement, model.Observe)}
}

// forwards says what a side decides about instead of the other end.
func forwards(s *model.Snapshot, owners model.Owners, d model.Direction, egress, ingress model.Flow) []string {
	switch {
	case d == model.Egress && egress.Dst != ingress.Dst:
		return []string{fmt.Sprintf("the pod calls port %d of another node, which forwards it: policy of the pod decides about %s", egress.Port, endOf(s, owners, egress.Dst))}
	case d == model.Ingress && ingress.Src != egress.Src:
		return []string{fmt.Sprintf("%s forwards the client and replaces its address by its own, about which policy decides; externalTrafficPolicy: Local keeps the client's address",
			endOf(s, owners, ingress.Src))}
	}
	return nil
}

func endOf(s *model.Snapshot, owners model.Owners, a netip.Addr) End {
	e := End{Address: a.String()}
	pod, node := owners.Pods[a], owners.Nodes[a]
	switch {
	case pod != nil:
		e.Pod, e.Node = pod.PodID.String(), pod.Node
	case node != nil:
		e.Node = node.Name
	default:
		e.Unknown = s.PodRange(a)
	}
	return e
}

func sideOf(s *model.Snapshot, x policy.Explanation) Side {
	r := Side{Direction: x.Direction.String(), Pod: x.Pod.PodID.String(), Node: x.Pod.Node, OS: complete.OSOf(s, x.Pod),
		Decision: decisionOf(x.Decision), Isolating: []string{}, Rules: []Rule{}, Enforced: []Enforcement{}, Changes: []Change{}}
	for _, o := range x.Isolating {
		r.Isolating = append(r.Isolating, o.String())
	}
	for _, t := range x.Rules {
		r.Rules = append(r.Rules, Rule{Policy: t.Policy.Origin.String(), Tier: t.Policy.Tier.String(), Priority: t.Policy.Priority,
			Rule: t.Rule.Index, Name: t.Rule.Name, Action: t.Rule.Action.String(), Role: t.Role.String(),
			PeerMisses: t.PeerMisses, PortMisses: t.PortMisses})
	}
	if x.Next != nil {
		next := decisionOf(*x.Next)
		r.Next = &next
	}
	for _, c := range x.Changes {
		change := Change{Policy: c.Policy.String(), What: c.What, Misses: c.Misses, Then: decisionOf(c.Then)}
		if c.Rule >= 0 {
			change.Rule = &c.Rule
		}
		r.Changes = append(r.Changes, change)
	}
	return r
}

func decisionOf(d model.Decision) Decision {
	r := Decision{Verdict: d.Verdict.String(), Text: d.Cause.String(), Reason: reasonText(d.Cause.Reason)}
	if d.Cause.Reason == model.ReasonRule || d.Cause.Reason == model.ReasonIsolated {
		r.Tier, r.Policy = d.Cause.Tier.String(), d.Cause.Origin.String()
	}
	if d.Cause.Reason == model.ReasonRule {
		r.Rule = &d.Cause.Rule
	}
	return r
}

func reasonText(r model.Reason) string {
	return [...]string{"default", "rule", "isolated", "self", "node", "pending"}[r]
}

// String names the end in a few words.
func (e End) String() string {
	switch {
	case e.Pod != "":
		return fmt.Sprintf("%s (%s)", e.Pod, e.Address)
	case e.Node != "":
		return fmt.Sprintf("node %s (%s)", e.Node, e.Address)
	case e.Unknown:
		return e.Address + " (unknown pod)"
	}
	return e.Address
}

// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
)

// Suggestion is a rule with which the reference evaluator allows the flow on this side.
type Suggestion struct {
	// Policy is the NetworkPolicy that gets the rule.
	Policy string `json:"policy"`
	// Rule is the rule, as in the API.
	Rule SuggestedRule `json:"rule"`
	// Kubectl is a command that adds the rule.
	Kubectl string `json:"kubectl"`
	// Note lists what else the rule allows; empty if nothing.
	Note string `json:"note,omitempty"`
}

// SuggestedRule is a rule of a NetworkPolicy. One of From and To is set.
type SuggestedRule struct {
	From  []SuggestedPeer `json:"from,omitempty"`
	To    []SuggestedPeer `json:"to,omitempty"`
	Ports []SuggestedPort `json:"ports,omitempty"`
}

// SuggestedPeer is a peer of a rule: pods of a namespace, or one address.
type SuggestedPeer struct {
	Namespaces *SuggestedSelector `json:"namespaceSelector,omitempty"`
	Pods       *SuggestedSelector `json:"podSelector,omitempty"`
	Block      *SuggestedBlock    `json:"ipBlock,omitempty"`
}

// SuggestedSelector is a selector by labels.
type SuggestedSelector struct {
	Labels map[string]string `json:"matchLabels,omitempty"`
}

// SuggestedBlock is one address.
type SuggestedBlock struct {
	CIDR string `json:"cidr"`
}

// SuggestedPort is a port. A port of 0 stands for all ports of the protocol.
type SuggestedPort struct {
	Protocol string `json:"protocol"`
	Port     uint16 `json:"port,omitempty"`
}

// suggest returns a rule that opens a side which NetworkPolicies isolate; nil if no rule of a
// NetworkPolicy can.
func suggest(s *model.Snapshot, owners model.Owners, reference *policy.Evaluator, x policy.Explanation, f model.Flow) *Suggestion {
	if x.Decision.Verdict != model.Deny || x.Decision.Cause.Reason != model.ReasonIsolated {
		return nil
	}
	into := target(s, x)
	if into == nil {
		return nil
	}
	rule, api := model.Rule{Index: len(into.Rules[x.Direction]), Action: model.ActionAccept}, SuggestedRule{}
	peer, note := addPeer(&rule, s, owners.Pods[x.Remote], x.Remote)
	if x.Direction == model.Ingress {
		api.From = []SuggestedPeer{peer}
	} else {
		api.To = []SuggestedPeer{peer}
	}
	switch {
	case !slices.Contains([]model.Protocol{model.TCP, model.UDP, model.SCTP}, f.Protocol):
		rule.AnyPort = true
		note = append(note, fmt.Sprintf("a NetworkPolicy cannot name %s, so the rule allows every protocol and port", f.Protocol.Words()))
	case f.Port == 0:
		rule.Ports = []model.PortMatch{{Protocol: f.Protocol, Last: 65535}}
		api.Ports = []SuggestedPort{{Protocol: f.Protocol.String()}}
		note = append(note, "a rule cannot name port 0, so it allows every port")
	default:
		rule.Ports = []model.PortMatch{{Protocol: f.Protocol, First: f.Port, Last: f.Port}}
		api.Ports = []SuggestedPort{{f.Protocol.String(), f.Port}}
	}
	if n := selected(s, reference, into); n > 1 {
		note = append(note, fmt.Sprintf("the policy selects %d pods, and the rule is for all of them", n))
	}
	edited := *into
	edited.Rules[x.Direction] = append(slices.Clone(into.Rules[x.Direction]), rule)
	policies := slices.DeleteFunc(s.SortedPolicies(), func(p *model.Policy) bool { return p == into })
	then := reference.With(append(policies, &edited)).Endpoint(x.Pod, x.Direction, x.Remote, f.Protocol, f.Port)
	if then.Verdict != model.Allow {
		return nil
	}
	return &Suggestion{Policy: into.Origin.String(), Rule: api, Kubectl: kubectl(into, x.Direction, api), Note: strings.Join(note, "; ")}
}

// target chooses the policy that gets the rule: the one that selects the fewest kinds of pods,
// by the number of its requirements, and that has rules for the direction already.
func target(s *model.Snapshot, x policy.Explanation) *model.Policy {
	var all []*model.Policy
	for _, o := range x.Isolating {
		if p, ok := s.Policies.Get(o.Key()); ok {
			all = append(all, p)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return slices.MinFunc(all, func(a, b *model.Policy) int {
		return cmp.Or(-cmp.Compare(len(a.Subject.Pods.Requirements()), len(b.Subject.Pods.Requirements())),
			-cmp.Compare(min(1, len(a.Rules[x.Direction])), min(1, len(b.Rules[x.Direction]))), a.Origin.Compare(b.Origin))
	})
}

// selected counts the pods that a policy selects.
func selected(s *model.Snapshot, reference *policy.Evaluator, p *model.Policy) (n int) {
	for _, pod := range s.Pods.All() {
		if pod.Policed() && reference.Selects(p.Subject, pod) {
			n++
		}
	}
	return n
}

// addPeer adds the remote end to a rule: a pod by its labels, anything else by its address.
func addPeer(rule *model.Rule, s *model.Snapshot, pod *model.Pod, remote netip.Addr) (peer SuggestedPeer, note []string) {
	if pod == nil {
		block := netip.PrefixFrom(remote, remote.BitLen())
		rule.Peers = []model.Peer{{Kind: model.PeerBlock, Block: model.IPBlock{CIDR: block}}}
		return SuggestedPeer{Block: &SuggestedBlock{block.String()}}, nil
	}
	labels := make(map[string]string)
	var requirements []model.Requirement
	for key, value := range pod.Labels.All() {
		if !slices.Contains(model.ControllerLabels(), key) {
			labels[key] = value
			requirements = append(requirements, model.Requirement{Key: key, Operator: model.In, Values: []string{value}})
		}
	}
	inside := model.Requirement{Key: model.MetadataName, Operator: model.In, Values: []string{pod.Namespace}}
	rule.Peers = []model.Peer{{Kind: model.PeerPods, Pods: model.PodSelector{Namespaces: model.MakeSelector(inside), Pods: model.MakeSelector(requirements...)}}}
	others := 0
	for _, p := range s.Pods.All() {
		if p != pod && p.Policed() && p.Namespace == pod.Namespace && rule.Peers[0].Pods.Pods.Matches(p.Labels) {
			others++
		}
	}
	if others > 0 {
		note = append(note, fmt.Sprintf("other pods have these labels too (%d)", others))
	}
	return SuggestedPeer{Namespaces: &SuggestedSelector{map[string]string{model.MetadataName: pod.Namespace}}, Pods: &SuggestedSelector{labels}}, note
}

// kubectl returns the command that adds a rule to a policy.
func kubectl(p *model.Policy, d model.Direction, rule SuggestedRule) string {
	path, value := "/spec/"+d.String()+"/-", any(rule)
	if len(p.Rules[d]) == 0 { // the list may be missing, and JSON Patch appends to no missing list
		path, value = "/spec/"+d.String(), []SuggestedRule{rule}
	}
	var patch bytes.Buffer
	enc := json.NewEncoder(&patch)
	enc.SetEscapeHTML(false)
	if err := enc.Encode([]any{map[string]any{"op": "add", "path": path, "value": value}}); err != nil {
		panic(err) // strings and numbers only
	}
	args := []string{"kubectl", "patch", "networkpolicy", p.Origin.Name, "-n", p.Origin.Namespace, "--type=json", "-p", strings.TrimSpace(patch.String())}
	for i, a := range args {
		args[i] = shellQuote(a)
	}
	return strings.Join(args, " ")
}

var plainWord = regexp.MustCompile(`^[A-Za-z0-9_./:=-]+$`)

// shellQuote quotes a word for a POSIX shell. Objects that an API server stores may have labels
// with any characters.
func shellQuote(word string) string {
	if plainWord.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net/netip"
	"slices"
	"strconv"

	"github.com/isthmus-net/isthmus/common/model"
)

// Answer states whether the peers of a rule match a remote address.
type Answer uint8

// The answers. AnswerMaybe depends on an unknown, such as the labels of a pod of which only
// the address is known.
const (
	AnswerNo    = Answer(no)
	AnswerMaybe = Answer(maybe)
	AnswerYes   = Answer(yes)
)

// Remote is a remote address with its owner in the snapshot of an Evaluator.
type Remote struct{ remote }

// Remote resolves an address.
func (e *Evaluator) Remote(a netip.Addr) Remote { return Remote{e.remote(a)} }

// Answer evaluates the peers of a rule for a remote address. The result does not depend on
// the pod that the rule applies to.
func (e *Evaluator) Answer(r *model.Rule, remote Remote) Answer {
	return Answer(e.matchesPeers(r, question{remote: remote.remote}))
}

// PodEvaluator is the reference for one direction of one pod, for callers that evaluate many
// remote addresses. It is not safe for concurrent use.
type PodEvaluator struct {
	evaluator Evaluator // with the policies that select the pod
	pod       *model.Pod
	direction model.Direction
	rules     []*model.Rule
	key       []byte
}

// Pod prepares to decide one direction of a pod. It omits policies that do not select the
// pod, because they have no effect on it.
func (e *Evaluator) Pod(pod *model.Pod, d model.Direction) *PodEvaluator {
	p := &PodEvaluator{evaluator: *e, pod: pod}
	p.evaluator.policies, p.evaluator.selected = nil, true
	for _, policy := range e.policies {
		if e.selects(policy.Subject, pod) {
			p.evaluator.policies = append(p.evaluator.policies, policy)
		}
	}
	return p.Toward(d)
}

// Toward returns the evaluator for a direction of the same pod.
func (p *PodEvaluator) Toward(d model.Direction) *PodEvaluator {
	q := &PodEvaluator{evaluator: p.evaluator, pod: p.pod, direction: d}
	for _, policy := range q.evaluator.policies {
		for i := range policy.Rules[d] {
			q.rules = append(q.rules, &policy.Rules[d][i])
		}
	}
	return q
}

// Policies lists the policies that select the pod, in order of evaluation. Callers must not
// modify it.
func (p *PodEvaluator) Policies() []*model.Policy { return p.evaluator.policies }

// Rules lists the rules of these policies in the direction, in the same order. Callers must
// not modify it.
func (p *PodEvaluator) Rules() []*model.Rule { return p.rules }

// Decide is Evaluator.Endpoint for the pod and direction.
func (p *PodEvaluator) Decide(remote netip.Addr, proto model.Protocol, port uint16) model.Decision {
	return p.evaluator.Endpoint(p.pod, p.direction, remote, proto, port)
}

// Alike returns a text that two remote addresses share only if they get the same decision
// for every protocol and port. The text holds everything that Endpoint reads of an address:
// whether it belongs to the pod or its node, and the answer of the peers of each rule. For
// egress it also holds the meaning of port names there. answers are those of
// Evaluator.Answer, by rule of Rules.
func (p *PodEvaluator) Alike(r Remote, answers []Answer) string {
	p.key = p.key[:0]
	if slices.Contains(p.pod.IPs, r.addr) {
		return "self"
	}
	if r.pod == nil && r.node != nil && r.node.Name == p.pod.Node {
		p.key = append(p.key, "node "...)
	}
	named := false
	for i, a := range answers {
		p.key = append(p.key, '0'+byte(a))
		named = named || a != AnswerNo && hasNames(p.rules[i].Ports)
	}
	if named && p.direction == model.Egress {
		p.key = strconv.AppendBool(p.key, r.unknown)
		if r.pod != nil {
			for _, n := range r.pod.Ports {
				p.key = append(p.key, ' ', byte(n.Protocol), byte(n.Port>>8), byte(n.Port))
				p.key = append(p.key, n.Name...)
			}
		}
	}
	return string(p.key)
}

// RemoteEvaluator is the reference for one direction of one pod and one remote address, for
// callers that evaluate many ports. It is not safe for concurrent use.
type RemoteEvaluator struct {
	evaluator Evaluator
	question  question
	self      bool
}

// At prepares to decide flows with a remote address. It omits rules whose peers do not match
// the address. answers are those of Evaluator.Answer, by rule of Rules.
func (p *PodEvaluator) At(remote Remote, answers []Answer) *RemoteEvaluator {
	r := &RemoteEvaluator{evaluator: p.evaluator, self: slices.Contains(p.pod.IPs, remote.addr),
		question: question{pod: p.pod, direction: p.direction, remote: remote.remote}}
	r.evaluator.policies = nil
	for _, policy := range p.evaluator.policies {
		all := policy.Rules[p.direction]
		reduced := *policy
		reduced.Rules = [2][]model.Rule{}
		for i, a := range answers[:len(all)] {
			if a == AnswerNo {
				continue
			}
			rule := all[i]
			if rule.AnyPeer, rule.Peers = a == AnswerYes, nil; a == AnswerMaybe {
				rule.Peers = []model.Peer{{Kind: model.PeerUnknown}}
			}
			reduced.Rules[p.direction] = append(reduced.Rules[p.direction], rule)
		}
		if answers = answers[len(all):]; len(reduced.Rules[p.direction]) > 0 || policy.Isolates[p.direction] {
			r.evaluator.policies = append(r.evaluator.policies, &reduced)
		}
	}
	return r
}

// Decide is Evaluator.Endpoint for the pod, the direction and the remote address.
func (r *RemoteEvaluator) Decide(proto model.Protocol, port uint16) model.Decision {
	if r.self {
		return model.Decision{Verdict: model.Allow, Cause: &model.Cause{Reason: model.ReasonSelf, Direction: r.question.direction}}
	}
	q := r.question
	q.protocol, q.port = proto, port
	return r.evaluator.endpoint(q)
}

// hasNames reports whether a rule names ports by name.
func hasNames(ports []model.PortMatch) bool {
	return slices.ContainsFunc(ports, func(m model.PortMatch) bool { return m.Name != "" })
}

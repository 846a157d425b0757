// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net/netip"
	"slices"
	"strconv"

	"github.com/isthmus-net/isthmus/common/model"
)

// PodEvaluator is the reference for one direction of one pod, for whoever asks
// about many remote addresses. It is not safe for concurrent use.
type PodEvaluator struct {
	evaluator Evaluator // with the policies that select the pod
	pod       *model.Pod
	direction model.Direction
	key       []byte
}

// Pod prepares to decide one direction of a pod: policies that do not select it
// say nothing about it, and are left out.
func (e *Evaluator) Pod(pod *model.Pod, d model.Direction) *PodEvaluator {
	p := &PodEvaluator{evaluator: *e, pod: pod, direction: d}
	p.evaluator.policies = nil
	for _, policy := range e.policies {
		if e.selects(policy.Subject, pod) {
			p.evaluator.policies = append(p.evaluator.policies, policy)
		}
	}
	return p
}

// Decide is Evaluator.Endpoint for the pod and direction.
func (p *PodEvaluator) Decide(remote netip.Addr, proto model.Protocol, port uint16) model.Decision {
	return p.evaluator.Endpoint(p.pod, p.direction, remote, proto, port)
}

// Alike returns a text that two remote addresses share only if they are decided
// alike for every protocol and port: all that Endpoint looks at of an address is
// in it. That is whether it is the pod's own or its node's, what the peers of
// each rule answer, and for egress what port names mean there.
func (p *PodEvaluator) Alike(remote netip.Addr) string {
	p.key = p.key[:0]
	if slices.Contains(p.pod.IPs, remote) {
		return "self"
	}
	q := question{pod: p.pod, direction: p.direction, remote: p.evaluator.remote(remote)}
	if q.remote.pod == nil && q.remote.node != nil && q.remote.node.Name == p.pod.Node {
		p.key = append(p.key, "node "...)
	}
	for _, policy := range p.evaluator.policies {
		for i := range policy.Rules[p.direction] {
			r := &policy.Rules[p.direction][i]
			m := is(r.AnyPeer)
			for _, peer := range r.Peers {
				m = max(m, p.evaluator.matchesPeer(peer, q))
			}
			p.key = append(p.key, '0'+byte(m))
		}
	}
	if p.direction == model.Egress {
		p.key = strconv.AppendBool(p.key, q.remote.unknown)
		if q.remote.pod != nil {
			for _, n := range q.remote.pod.Ports {
				p.key = append(p.key, ' ', byte(n.Protocol), byte(n.Port>>8), byte(n.Port))
				p.key = append(p.key, n.Name...)
			}
		}
	}
	return string(p.key)
}

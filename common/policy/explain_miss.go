// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
)

// maxMisses bounds how many alternatives of one rule are explained in one line.
const maxMisses = 5

func join(misses []string) string {
	if len(misses) > maxMisses {
		return strings.Join(misses[:maxMisses], "; ") + fmt.Sprintf("; and %d more", len(misses)-maxMisses)
	}
	return strings.Join(misses, "; ")
}

// peerMisses gives for each peer of a rule the reason why it does not certainly match. It is
// empty if one matches.
func (e *Evaluator) peerMisses(r *model.Rule, q question) []string {
	if r.AnyPeer {
		return nil
	}
	if len(r.Peers) == 0 {
		return []string{"the rule has no peers"}
	}
	var misses []string
	for _, p := range r.Peers {
		if e.matchesPeer(p, q) == yes {
			return nil
		}
		misses = append(misses, e.peerMiss(p, q))
	}
	return misses
}

func (e *Evaluator) peerMiss(p model.Peer, q question) string {
	switch p.Kind {
	case model.PeerPods:
		switch {
		case q.remote.unknown:
			return fmt.Sprintf("%s is in a pod range, but its pod is not known", q.remote.addr)
		case q.remote.pod == nil:
			return fmt.Sprintf("%s is not the address of a pod", q.remote.addr)
		}
		return strings.Join(e.selectorMisses(p.Pods, q.remote.pod), ", ")
	case model.PeerBlock:
		if !p.Block.CIDR.Contains(q.remote.addr) {
			return fmt.Sprintf("%s is not in %s", q.remote.addr, p.Block.CIDR)
		}
		for _, hole := range p.Block.Except {
			if hole.Contains(q.remote.addr) {
				return fmt.Sprintf("%s is in %s, which is an exception of %s", q.remote.addr, hole, p.Block.CIDR)
			}
		}
	case model.PeerNodes:
		if q.remote.pod != nil || q.remote.node == nil {
			return fmt.Sprintf("%s is not the address of a node", q.remote.addr)
		}
		return strings.Join(misses("node "+q.remote.node.Name, p.Nodes, q.remote.node.Labels), ", ")
	}
	return "this version does not know the kind of the peer"
}

// selectorMisses lists the conditions of a selector that a pod does not meet.
func (e *Evaluator) selectorMisses(s model.PodSelector, pod *model.Pod) []string {
	var all []string
	if s.Namespace != "" && s.Namespace != pod.Namespace {
		all = append(all, fmt.Sprintf("namespace is %s, not %s", pod.Namespace, s.Namespace))
	} else if s.Namespace == "" {
		all = misses("namespace "+pod.Namespace, s.Namespaces, e.snapshot.Namespace(pod.Namespace).Labels)
	}
	return append(all, misses("pod "+pod.PodID.String(), s.Pods, pod.Labels)...)
}

// misses lists the requirements that labels do not meet.
func misses(whose string, s model.Selector, labels model.Labels) []string {
	var all []string
	for _, r := range s.Requirements() {
		if r.Matches(labels) {
			continue
		}
		has := "no label " + r.Key
		if v, ok := labels.Get(r.Key); ok {
			has = r.Key + "=" + v
		}
		all = append(all, fmt.Sprintf("%s has %s, not %s", whose, has, r))
	}
	return all
}

// portMisses gives for each port of a rule the reason why it does not certainly match. It is
// empty if one matches.
func (e *Evaluator) portMisses(r *model.Rule, q question) []string {
	if r.AnyPort {
		return nil
	}
	if len(r.Ports) == 0 {
		return []string{"the rule has no ports"}
	}
	at := q.protocol.String()
	if q.protocol.HasPorts() {
		at = fmt.Sprintf("%s %d", q.protocol, q.port)
	}
	var misses []string
	for _, m := range r.Ports {
		switch {
		case e.matchesPort(m, q) == yes:
			return nil
		case m.Name == "":
			misses = append(misses, fmt.Sprintf("%s is not %s", at, m))
		default:
			misses = append(misses, fmt.Sprintf("%s is not %s: %s", at, m, q.meaning(m)))
		}
	}
	return misses
}

// meaning describes the resolution of a port name at the destination.
func (q question) meaning(m model.PortMatch) string {
	destination := q.pod
	if q.direction == model.Egress {
		destination = q.remote.pod
	}
	if destination == nil {
		return fmt.Sprintf("%s is not a known pod and has no port names", q.remote.addr)
	}
	var found []string
	for _, p := range destination.Resolve(m.Name, m.Protocol) {
		found = append(found, fmt.Sprintf("%s %d", p.Protocol, p.Port))
	}
	if found == nil {
		return fmt.Sprintf("pod %s has no such port name", destination.PodID)
	}
	return fmt.Sprintf("on pod %s that is %s", destination.PodID, strings.Join(found, " and "))
}

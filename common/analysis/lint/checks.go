// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
)

// checks are the checks besides enforceability.
func checks() []func(*Cluster) []Finding {
	return []func(*Cluster) []Finding{checkSubjects, checkNamespaces, checkEnforcement, checkIgnoredRules, checkPortNames, checkPeers, checkEveryAddress,
		checkBlocks, checkRepeated, checkPriorities, checkHiddenClients, checkServiceAddresses}
}

// selected lists the pods that a selector matches, one for each kind.
func (l *Cluster) selected(s model.PodSelector) []*model.Pod {
	var found []*model.Pod
	for _, p := range l.pods {
		if s.MatchesNamespace(l.Snapshot.Namespace(p.Namespace)) && s.Pods.Matches(p.Labels) {
			found = append(found, p)
		}
	}
	return found
}

// eachRule calls f for every rule that can have an effect.
func (l *Cluster) eachRule(f func(p *model.Policy, d model.Direction, r *model.Rule)) {
	for _, p := range l.policies {
		for _, d := range model.Directions {
			if p.Tier == model.TierNetworkPolicy && !p.Isolates[d] {
				continue
			}
			for i := range p.Rules[d] {
				f(p, d, &p.Rules[d][i])
			}
		}
	}
}

func atRule(s Severity, check string, p *model.Policy, d model.Direction, r *model.Rule, format string, args ...any) Finding {
	return Finding{Severity: s, Check: check, Policy: p.Origin.String(), Direction: d.String(), Rule: &r.Index, Message: fmt.Sprintf(format, args...)}
}

// checkSubjects finds policies that select no pod. It skips a directory without any pods,
// which holds only policies.
func checkSubjects(l *Cluster) []Finding {
	var all []Finding
	for _, p := range l.Unselecting() {
		f := Finding{Severity: Warning, Check: "selects-no-pod", Policy: p.Origin.String()}
		if _, _, ok := policy.PlaceholderPod(l.Snapshot, p); !ok {
			f.Message = fmt.Sprintf("its selector (%s) contradicts itself: no pod can match it", p.Subject)
		} else if hosts := l.onHost(p.Subject); hosts != "" {
			f.Message = fmt.Sprintf("its selector (%s) matches only pods on the host network, to which no policy applies: %s", p.Subject, hosts)
		} else if len(l.pods) > 0 {
			f.Message = fmt.Sprintf("its selector (%s) matches no pod: it applies to nothing", p.Subject)
		} else {
			continue
		}
		all = append(all, f)
	}
	return all
}

// checkEnforcement finds namespaces whose annotation about observation means nothing.
func checkEnforcement(l *Cluster) (all []Finding) {
	for name, ns := range l.Snapshot.Namespaces.All() {
		if problem := model.EnforcementProblem(ns.Enforcement); problem != "" {
			all = append(all, Finding{Severity: Warning, Check: "enforcement", Policy: model.Origin{Kind: "Namespace", Name: name}.String(),
				Message: fmt.Sprintf("annotation %s: %s", model.AnnotationEnforcement, problem)})
		}
	}
	return all
}

// checkNamespaces finds policies in namespaces that no object describes.
func checkNamespaces(l *Cluster) []Finding {
	if l.namespaces == nil {
		return nil
	}
	used := make(map[string]bool)
	for _, p := range l.pods {
		used[p.Namespace] = true
	}
	var all []Finding
	for _, p := range l.policies {
		if ns := p.Origin.Namespace; ns != "" && !l.namespaces[ns] && !used[ns] {
			all = append(all, Finding{Severity: Warning, Check: "unknown-namespace", Policy: p.Origin.String(),
				Message: fmt.Sprintf("there is no Namespace object %s, and no pod in it", ns)})
		}
	}
	return all
}

// checkIgnoredRules finds rules of a direction that policyTypes does not list.
func checkIgnoredRules(l *Cluster) []Finding {
	var all []Finding
	for _, p := range l.policies {
		for _, d := range model.Directions {
			if p.Tier == model.TierNetworkPolicy && !p.Isolates[d] && len(p.Rules[d]) > 0 {
				all = append(all, Finding{Severity: Warning, Check: "ignored-rules", Policy: p.Origin.String(), Direction: d.String(),
					Message: "policyTypes does not list this direction, so its rules have no effect"})
			}
		}
	}
	return all
}

// checkPortNames finds port names that no destination of the rule defines.
func checkPortNames(l *Cluster) []Finding {
	var all []Finding
	l.eachRule(func(p *model.Policy, d model.Direction, r *model.Rule) {
		for _, m := range r.Ports {
			if m.Name == "" || len(l.pods) == 0 {
				continue
			}
			destinations := l.selected(p.Subject)
			if d == model.Egress {
				destinations = l.peers(r)
			}
			if !slices.ContainsFunc(destinations, func(pod *model.Pod) bool { return len(pod.Resolve(m.Name, m.Protocol)) > 0 }) {
				all = append(all, atRule(Warning, "unresolved-port", p, d, r,
					"no destination pod of the rule has a port named %s: it matches nothing", m))
			}
		}
	})
	return all
}

// peers lists the pods that a rule matches.
func (l *Cluster) peers(r *model.Rule) []*model.Pod {
	if r.AnyPeer {
		return l.pods
	}
	var found []*model.Pod
	for _, pod := range l.pods {
		if slices.ContainsFunc(r.Peers, func(p model.Peer) bool { return l.matches(p, pod) }) {
			found = append(found, pod)
		}
	}
	return found
}

func (l *Cluster) matches(p model.Peer, pod *model.Pod) bool {
	switch p.Kind {
	case model.PeerPods:
		return p.Pods.MatchesNamespace(l.Snapshot.Namespace(pod.Namespace)) && p.Pods.Pods.Matches(pod.Labels)
	case model.PeerBlock:
		return slices.ContainsFunc(pod.IPs, p.Block.Contains)
	}
	return p.Kind == model.PeerUnknown
}

// checkPeers finds selectors of peers that match no pod.
func checkPeers(l *Cluster) []Finding {
	var all []Finding
	l.eachRule(func(p *model.Policy, d model.Direction, r *model.Rule) {
		for _, peer := range r.Peers {
			if peer.Kind != model.PeerPods || len(l.pods) == 0 || len(l.selected(peer.Pods)) > 0 {
				continue
			}
			text := fmt.Sprintf("no pod matches %s", peer)
			if hosts := l.onHost(peer.Pods); hosts != "" {
				text += fmt.Sprintf(" but pods on the host network (%s), which have the addresses of their nodes: an ipBlock matches these", hosts)
			}
			all = append(all, atRule(Note, "peer-matches-nothing", p, d, r, "%s", text))
		}
	})
	return all
}

// checkEveryAddress finds NetworkPolicy rules that are open to every address, by an empty or
// a missing list.
func checkEveryAddress(l *Cluster) []Finding {
	var all []Finding
	l.eachRule(func(p *model.Policy, d model.Direction, r *model.Rule) {
		if !r.AnyPeer || p.Tier != model.TierNetworkPolicy {
			return
		}
		field := [...]string{"from", "to"}[d]
		ports := "the ports of the rule"
		if r.AnyPort {
			ports = "every protocol and port"
		}
		all = append(all, atRule(Note, "every-address", p, d, r, "%s is missing or empty: the rule matches every address, also outside the cluster, on %s",
			field, ports))
	})
	return all
}

// checkBlocks finds blocks with addresses of pods. A block matches pods like any other
// address, although users often mean only addresses outside the cluster.
func checkBlocks(l *Cluster) []Finding {
	var ranges []netip.Prefix
	for _, n := range l.declared.Nodes.All() {
		ranges = append(ranges, n.PodCIDRs...)
	}
	var addresses []netip.Addr
	for _, p := range l.declared.Pods.All() {
		if p.Policed() {
			addresses = append(addresses, p.IPs...)
		}
	}
	var all []Finding
	l.eachRule(func(p *model.Policy, d model.Direction, r *model.Rule) {
		for _, peer := range r.Peers {
			if peer.Kind != model.PeerBlock {
				continue
			}
			b := peer.Block
			inRange := slices.ContainsFunc(ranges, func(r netip.Prefix) bool {
				return b.CIDR.Overlaps(r) && !slices.ContainsFunc(b.Except, func(e netip.Prefix) bool { return e.Bits() <= r.Bits() && e.Contains(r.Addr()) })
			})
			switch {
			case b.CIDR.Bits() == 0 && len(b.Except) == 0:
				all = append(all, atRule(Note, "block-of-pods", p, d, r, "%s also contains addresses of pods", b))
			case inRange || slices.ContainsFunc(addresses, b.Contains):
				all = append(all, atRule(Warning, "block-of-pods", p, d, r, "%s contains addresses of pods: they match, whatever their labels are; "+
					"exclude the pod ranges with except if you do not mean them", b))
			}
		}
	})
	return all
}

// checkRepeated finds rules without effect, because an earlier or another rule of the policy
// matches all their flows.
func checkRepeated(l *Cluster) []Finding {
	var all []Finding
	for _, p := range l.policies {
		for _, d := range model.Directions {
			rules := p.Rules[d]
			for i := range rules {
				if j := covering(p, rules, i); j >= 0 {
					all = append(all, atRule(Warning, "repeated-rule", p, d, &rules[i], "rule %d already matches all its flows: the rule has no effect", rules[j].Index))
				}
			}
		}
	}
	return all
}

// covering returns the index of a rule that makes rule i redundant, or -1. If order counts,
// that is an earlier rule. If it does not, the later of two equal rules is redundant.
func covering(p *model.Policy, rules []model.Rule, i int) int {
	for j := range rules {
		switch {
		case j == i || !covers(&rules[j], &rules[i]):
		case j < i:
			return j
		case p.Tier == model.TierNetworkPolicy && !covers(&rules[i], &rules[j]):
			return j
		}
	}
	return -1
}

// covers reports whether a certainly matches everything that b may match.
func covers(a, b *model.Rule) bool {
	unknown := func(p model.Peer) bool { return p.Kind == model.PeerUnknown }
	if slices.ContainsFunc(a.Peers, unknown) || slices.ContainsFunc(b.Peers, unknown) {
		return false
	}
	peers := a.AnyPeer || !b.AnyPeer && !slices.ContainsFunc(b.Peers, func(p model.Peer) bool {
		return !slices.ContainsFunc(a.Peers, func(q model.Peer) bool { return q.String() == p.String() || coversBlock(q, p) })
	})
	ports := a.AnyPort || !b.AnyPort && !slices.ContainsFunc(b.Ports, func(m model.PortMatch) bool {
		return !slices.ContainsFunc(a.Ports, func(n model.PortMatch) bool { return coversPort(n, m) })
	})
	return peers && ports
}

func coversBlock(a, b model.Peer) bool {
	return a.Kind == model.PeerBlock && b.Kind == model.PeerBlock && len(a.Block.Except) == 0 &&
		a.Block.CIDR.Bits() <= b.Block.CIDR.Bits() && a.Block.CIDR.Contains(b.Block.CIDR.Addr())
}

func coversPort(a, b model.PortMatch) bool {
	if a.Name != "" || b.Name != "" {
		all := a.Name == "" && a.First == 0 && a.Last == 65535
		return a.Protocol == b.Protocol && (a.Name == b.Name || all)
	}
	return a.Protocol == b.Protocol && a.First <= b.First && b.Last <= a.Last
}

// checkPriorities finds policies whose order the API does not define.
// ClusterNetworkPolicySpec.priority says:
//
// "If two (or more) policies in the same tier with the same priority could match a
// connection, then the implementation can apply any of the matching policies to the
// connection".
//
// Rules with one action give one verdict in either order, and the check ignores them.
func checkPriorities(l *Cluster) []Finding {
	var all []Finding
	for i, p := range l.policies {
		for _, q := range l.policies[i+1:] {
			if p.Tier == model.TierNetworkPolicy || p.Tier != q.Tier || p.Priority != q.Priority || !l.shareSubject(p, q) {
				continue
			}
			for _, d := range model.Directions {
				if pairs := l.conflicts(p, q, d); len(pairs) > 0 {
					all = append(all, Finding{Severity: Warning, Check: "equal-priority", Policy: p.Origin.String(), Direction: d.String(),
						Message: fmt.Sprintf("%s has the same priority %d in tier %s and selects the same pods: for connections that both match "+
							"(rules %s) the API lets an implementation apply either; this one applies %s first, by kind and name; give them unique priorities",
							q.Origin, q.Priority, q.Tier, shorten(pairs), p.Origin)})
				}
			}
		}
	}
	return all
}

// shareSubject reports whether both policies select a common pod. Without pods it reports
// whether both certainly select the same.
func (l *Cluster) shareSubject(p, q *model.Policy) bool {
	if len(l.pods) == 0 {
		return p.Subject.String() == q.Subject.String()
	}
	both := l.selected(p.Subject)
	return slices.ContainsFunc(both, func(pod *model.Pod) bool {
		return q.Subject.MatchesNamespace(l.Snapshot.Namespace(pod.Namespace)) && q.Subject.Pods.Matches(pod.Labels)
	})
}

// conflicts lists the pairs of rules with different actions that could match one connection,
// as "0 and 2".
func (l *Cluster) conflicts(p, q *model.Policy, d model.Direction) []string {
	var pairs []string
	for i := range p.Rules[d] {
		for j := range q.Rules[d] {
			a, b := &p.Rules[d][i], &q.Rules[d][j]
			if a.Action != b.Action && l.peersMeet(a, b) && portsMeet(a, b) {
				pairs = append(pairs, fmt.Sprintf("%d and %d", a.Index, b.Index))
			}
		}
	}
	return pairs
}

// shorten lists the first three pairs and counts the rest.
func shorten(pairs []string) string {
	if len(pairs) <= 3 {
		return strings.Join(pairs, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(pairs[:3], ", "), len(pairs)-3)
}

// peersMeet reports whether one remote address could match both rules.
func (l *Cluster) peersMeet(a, b *model.Rule) bool {
	if a.AnyPeer || b.AnyPeer {
		return true
	}
	for _, p := range a.Peers {
		for _, q := range b.Peers {
			blocks := p.Kind == model.PeerBlock && q.Kind == model.PeerBlock && p.Block.CIDR.Overlaps(q.Block.CIDR)
			unknown := p.Kind == model.PeerUnknown || q.Kind == model.PeerUnknown
			nodes := p.Kind == model.PeerNodes && q.Kind == model.PeerNodes ||
				p.Kind == model.PeerNodes && q.Kind == model.PeerBlock || p.Kind == model.PeerBlock && q.Kind == model.PeerNodes
			equal := p.String() == q.String()
			if equal || blocks || unknown || nodes || slices.ContainsFunc(l.pods, func(pod *model.Pod) bool { return l.matches(p, pod) && l.matches(q, pod) }) {
				return true
			}
		}
	}
	return false
}

// portsMeet reports whether one port could match both rules. A name may be any port.
func portsMeet(a, b *model.Rule) bool {
	if a.AnyPort || b.AnyPort {
		return true
	}
	for _, m := range a.Ports {
		for _, n := range b.Ports {
			if m.Protocol != n.Protocol && m.Protocol != model.AnyProtocol && n.Protocol != model.AnyProtocol {
				continue
			}
			if m.Name != "" || n.Name != "" || m.First <= n.Last && n.First <= m.Last {
				return true
			}
		}
	}
	return false
}

// checkHiddenClients finds external Services that masquerade a client with the address of a
// node and send it to a pod of another node. Ingress policy then sees the node instead of
// the client.
func checkHiddenClients(l *Cluster) []Finding {
	var all []Finding
	for _, s := range l.Services {
		if !s.HidesClients() {
			continue
		}
		for _, p := range l.policies {
			if l.decidesIngress(p, s) {
				all = append(all, Finding{Severity: Warning, Check: "hidden-clients", Policy: p.Origin.String(), Direction: model.Ingress.String(),
					Message: fmt.Sprintf("Service %s/%s (%s) sends clients to its pods: a client whose packets arrive at another node than the pod's "+
						"appears with the address of that node; set externalTrafficPolicy: Local on the Service, or do not match clients by address", s.Namespace, s.Name, s.External)})
			}
		}
	}
	return all
}

// decidesIngress reports whether a policy selects a pod of a Service for ingress.
func (l *Cluster) decidesIngress(p *model.Policy, s *model.Service) bool {
	if p.Tier == model.TierNetworkPolicy && !p.Isolates[model.Ingress] || p.Tier != model.TierNetworkPolicy && len(p.Rules[model.Ingress]) == 0 {
		return false
	}
	return slices.ContainsFunc(l.selected(p.Subject), func(pod *model.Pod) bool {
		return pod.Namespace == s.Namespace && s.Pods.Matches(pod.Labels)
	})
}

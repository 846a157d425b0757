// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"

	"github.com/isthmus-net/isthmus/common/model"
)

const kindNetworkPolicy = "NetworkPolicy"

func networkPolicyKind() Kind {
	return Kind{Name: kindNetworkPolicy, Group: networkingv1.GroupName, Versions: []string{"v1"}, Resource: "networkpolicies",
		Typed: &networkingv1.NetworkPolicy{}, AddToScheme: networkingv1.AddToScheme, Namespaced: true, Policy: true,
		Read: reads(func(o *networkingv1.NetworkPolicy, s Strictness) Result {
			defaultNetworkPolicy(o)
			p, errs := convertNetworkPolicy(o, s)
			return Result{Value: p, Errs: errs, Enforced: enforcedNetworkPolicy(o, p)}
		}),
		Put:    putPolicy,
		Record: recordNetworkPolicy,
		store:  policies(kindNetworkPolicy)}
}

// defaultNetworkPolicy sets the defaults that the API server sets on every NetworkPolicy that it reads.
func defaultNetworkPolicy(np *networkingv1.NetworkPolicy) {
	ports := func(list []networkingv1.NetworkPolicyPort) {
		for i := range list {
			if list[i].Protocol == nil {
				tcp := corev1.ProtocolTCP
				list[i].Protocol = &tcp
			}
		}
	}
	for i := range np.Spec.Ingress {
		ports(np.Spec.Ingress[i].Ports)
	}
	for i := range np.Spec.Egress {
		ports(np.Spec.Egress[i].Ports)
	}
	if len(np.Spec.PolicyTypes) == 0 {
		// "policies that contain an egress section are assumed to affect egress,
		// and all policies (whether or not they contain an ingress section) are
		// assumed to affect ingress."
		np.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
		if len(np.Spec.Egress) > 0 {
			np.Spec.PolicyTypes = append(np.Spec.PolicyTypes, networkingv1.PolicyTypeEgress)
		}
	}
}

// convertNetworkPolicy validates and converts a NetworkPolicy that has its defaults. With errors it still
// returns the part that can be enforced safely. It omits rules with errors; as NetworkPolicy rules only
// accept, the rest blocks too much and never too little. If the selected pods are unknown, all pods that
// may be selected are isolated, and no rule accepts anything.
func convertNetworkPolicy(np *networkingv1.NetworkPolicy, s Strictness) (*model.Policy, field.ErrorList) {
	p := &model.Policy{
		Origin: model.Origin{Kind: kindNetworkPolicy, Namespace: np.Namespace, Name: np.Name, UID: string(np.UID)},
		Tier:   model.TierNetworkPolicy,
	}
	spec := field.NewPath("spec")
	errs := validateMeta(&np.ObjectMeta, true, s)
	pods, doubt := selector(&np.Spec.PodSelector, s, spec.Child("podSelector"))
	if errs = append(errs, doubt...); len(doubt) > 0 {
		pods = wider(&np.Spec.PodSelector, s)
	}
	p.Subject = model.PodSelector{Namespace: np.Namespace, Pods: pods}
	var rules [2][]model.Rule
	for i, r := range np.Spec.Ingress {
		rule, more := networkPolicyRule(np.Namespace, i, r.Ports, r.From, s, spec.Child("ingress").Index(i), "from")
		if errs = append(errs, more...); len(more) == 0 {
			rules[model.Ingress] = append(rules[model.Ingress], rule)
		}
	}
	for i, r := range np.Spec.Egress {
		rule, more := networkPolicyRule(np.Namespace, i, r.Ports, r.To, s, spec.Child("egress").Index(i), "to")
		if errs = append(errs, more...); len(more) == 0 {
			rules[model.Egress] = append(rules[model.Egress], rule)
		}
	}
	isolates, more := policyTypes(np.Spec.PolicyTypes, spec.Child("policyTypes"))
	errs = append(errs, more...)
	if p.Isolates = isolates; len(doubt) == 0 {
		p.Rules = rules
	}
	return p, errs
}

// enforcedNetworkPolicy describes how an invalid NetworkPolicy is enforced.
func enforcedNetworkPolicy(np *networkingv1.NetworkPolicy, p *model.Policy) string {
	if _, errs := selector(&np.Spec.PodSelector, Stored, nil); len(errs) > 0 {
		return "it is not known which pods the policy selects: " + possible(p.Subject) + " is isolated, and the policy accepts nothing"
	}
	var out []string
	for d, count := range [2]int{model.Ingress: len(np.Spec.Ingress), model.Egress: len(np.Spec.Egress)} {
		kept := make(map[int]bool)
		for _, r := range p.Rules[d] {
			kept[r.Index] = true
		}
		for i := range count {
			if !kept[i] {
				out = append(out, fmt.Sprintf("%s rule %d", model.Direction(d), i))
			}
		}
	}
	text := "its rules are enforced as written"
	if len(out) > 0 {
		text += ", but without " + strings.Join(out[:min(len(out), maxNamed)], ", ")
		if more := len(out) - maxNamed; more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
	}
	if _, errs := policyTypes(np.Spec.PolicyTypes, nil); len(errs) > 0 {
		text += "; its pods are isolated in both directions"
	}
	return text
}

// policyTypes returns the directions that a policy isolates. Unknown types isolate both.
func policyTypes(types []networkingv1.PolicyType, path *field.Path) (isolates [2]bool, errs field.ErrorList) {
	if len(types) > 2 {
		return [2]bool{true, true}, field.ErrorList{field.Invalid(path, types, "may not specify more than two policyTypes")}
	}
	for i, t := range types {
		switch t {
		case networkingv1.PolicyTypeIngress:
			isolates[model.Ingress] = true
		case networkingv1.PolicyTypeEgress:
			isolates[model.Egress] = true
		default:
			isolates = [2]bool{true, true}
			errs = append(errs, field.NotSupported(path.Index(i), t,
				[]networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}))
		}
	}
	return isolates, errs
}

// networkPolicyRule converts one rule. "If this field is empty or missing, this rule matches all ports
// (traffic not restricted by port)", and the same for peers.
func networkPolicyRule(namespace string, index int, ports []networkingv1.NetworkPolicyPort, peers []networkingv1.NetworkPolicyPeer,
	s Strictness, path *field.Path, peersField string) (model.Rule, field.ErrorList) {
	r := model.Rule{Index: index, Action: model.ActionAccept, AnyPeer: len(peers) == 0, AnyPort: len(ports) == 0}
	var errs field.ErrorList
	for i := range ports {
		m, more := networkPolicyPort(&ports[i], path.Child("ports").Index(i))
		r.Ports = append(r.Ports, m)
		errs = append(errs, more...)
	}
	for i := range peers {
		p, more := networkPolicyPeer(namespace, &peers[i], s, path.Child(peersField).Index(i))
		r.Peers = append(r.Peers, p)
		errs = append(errs, more...)
	}
	return r, errs
}

func networkPolicyPort(p *networkingv1.NetworkPolicyPort, path *field.Path) (model.PortMatch, field.ErrorList) {
	var errs field.ErrorList
	var m model.PortMatch
	m.Protocol, errs = protocol(*p.Protocol, path.Child("protocol"))
	endPath := path.Child("endPort")
	switch {
	case p.Port == nil:
		// "If this field is not provided, this matches all port names and numbers."
		m.First, m.Last = 0, 65535
		if p.EndPort != nil {
			errs = append(errs, field.Invalid(endPath, *p.EndPort, "may not be specified when `port` is not specified"))
		}
	case p.Port.Type == intstr.Int:
		first, more := portNumber(p.Port.IntVal, path.Child("port"))
		errs = append(errs, more...)
		m.First, m.Last = first, first
		if p.EndPort != nil {
			if *p.EndPort < p.Port.IntVal {
				errs = append(errs, field.Invalid(endPath, *p.EndPort, "must be greater than or equal to `port`"))
			}
			m.Last, more = portNumber(*p.EndPort, endPath)
			errs = append(errs, more...)
		}
	default:
		m.Name = p.Port.StrVal
		if p.EndPort != nil {
			errs = append(errs, field.Invalid(endPath, *p.EndPort, "may not be specified when `port` is non-numeric"))
		}
		errs = append(errs, portName(m.Name, path.Child("port"))...)
	}
	return m, errs
}

// protocol parses a protocol with ports.
func protocol(p corev1.Protocol, path *field.Path) (model.Protocol, field.ErrorList) {
	switch p {
	case corev1.ProtocolTCP:
		return model.TCP, nil
	case corev1.ProtocolUDP:
		return model.UDP, nil
	case corev1.ProtocolSCTP:
		return model.SCTP, nil
	}
	return model.AnyProtocol, field.ErrorList{field.NotSupported(path, p,
		[]corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP})}
}

func networkPolicyPeer(namespace string, p *networkingv1.NetworkPolicyPeer, s Strictness, path *field.Path) (model.Peer, field.ErrorList) {
	if p.PodSelector == nil && p.NamespaceSelector == nil && p.IPBlock == nil {
		return model.Peer{}, field.ErrorList{field.Required(path, "must specify a peer: podSelector, namespaceSelector or ipBlock")}
	}
	peer := model.Peer{Kind: model.PeerPods}
	pods, errs := selector(p.PodSelector, s, path.Child("podSelector"))
	namespaces, more := selector(p.NamespaceSelector, s, path.Child("namespaceSelector"))
	errs = append(errs, more...)
	peer.Pods = model.PodSelector{Namespaces: namespaces, Pods: pods}
	if p.NamespaceSelector == nil {
		// "Otherwise it selects the pods matching podSelector in the policy's own
		// namespace."
		peer.Pods.Namespace = namespace
	}
	if p.IPBlock != nil {
		block, more := ipBlock(p.IPBlock, s, path.Child("ipBlock"))
		errs = append(errs, more...)
		peer = model.Peer{Kind: model.PeerBlock, Block: block}
		if p.PodSelector != nil || p.NamespaceSelector != nil {
			errs = append(errs, field.Forbidden(path, "may not specify both ipBlock and another peer"))
		}
	}
	return peer, errs
}

func ipBlock(b *networkingv1.IPBlock, s Strictness, path *field.Path) (model.IPBlock, field.ErrorList) {
	if b.CIDR == "" {
		return model.IPBlock{}, field.ErrorList{field.Required(path.Child("cidr"), "a range such as 10.9.8.0/24 or 2001:db8::/64")}
	}
	all, errs := cidr(b.CIDR, s, path.Child("cidr"))
	if len(errs) > 0 {
		return model.IPBlock{}, errs
	}
	block := model.IPBlock{CIDR: all}
	for i, text := range b.Except {
		hole, more := cidr(text, s, path.Child("except").Index(i))
		if errs = append(errs, more...); len(more) > 0 {
			continue
		}
		// "Except values will be rejected if they are outside the cidr range."
		if !within(all, hole) {
			errs = append(errs, field.Invalid(path.Child("except").Index(i), text, "must be a strict subset of `cidr`"))
			continue
		}
		block.Except = append(block.Except, hole)
	}
	return block, errs
}

// within reports whether inner is a proper subset of outer.
func within(outer, inner netip.Prefix) bool {
	return inner.Bits() > outer.Bits() && outer.Contains(inner.Addr())
}

func recordNetworkPolicy(o runtime.Object) *Record {
	np, ok := o.(*networkingv1.NetworkPolicy)
	if !ok {
		return nil
	}
	defaultNetworkPolicy(np)
	value, errs := convertNetworkPolicy(np, Stored)
	r := recordOf(np, value, errs)
	if r.Bad {
		r.enforced = enforcedNetworkPolicy(np, value)
	}
	return r
}

// DefaultSpec returns the spec of a NetworkPolicy, in JSON, with the defaults that the API server sets.
func DefaultSpec(networkPolicy []byte) ([]byte, error) {
	var np networkingv1.NetworkPolicy
	if err := kjson.UnmarshalCaseSensitivePreserveInts(networkPolicy, &np); err != nil {
		return nil, fmt.Errorf("decode NetworkPolicy: %w", err)
	}
	defaultNetworkPolicy(&np)
	return json.Marshal(np.Spec)
}

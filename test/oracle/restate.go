// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/isthmus-net/isthmus/common/model"
)

// Labels that restated cases put on the pods at the ends of the flow in
// question. No policy of a case names them.
const (
	atSource      = "oracle.test/source"
	atDestination = "oracle.test/destination"
)

// marked returns the objects with the ends of the flow marked.
func marked(c *Case, f model.Flow) Objects {
	o := c.Objects
	o.Pods = make([]*corev1.Pod, len(c.Pods))
	for i, p := range c.Pods {
		o.Pods[i] = p
		for key, end := range map[string]netip.Addr{atSource: f.Src, atDestination: f.Dst} {
			owner := c.Owner(end)
			if owner == nil || owner.Namespace != p.Namespace || owner.Name != p.Name {
				continue
			}
			copied := o.Pods[i].DeepCopy()
			if copied.Labels == nil {
				copied.Labels = make(map[string]string)
			}
			copied.Labels[key] = ""
			o.Pods[i] = copied
		}
	}
	return o
}

// exists selects what has a key.
func exists(key string) metav1.LabelSelector {
	return metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: key, Operator: metav1.LabelSelectorOpExists}}}
}

// splitDirections splits NetworkPolicies by direction. Each end of the flow is then selected only
// by policies that isolate it for its direction of the flow.
func splitDirections(c *Case, f model.Flow) *Case {
	o := marked(c, f)
	o.NetworkPolicies = nil
	for _, p := range c.NetworkPolicies {
		for _, t := range p.Spec.PolicyTypes {
			half := p.DeepCopy()
			half.Name += "-" + string(t)
			half.Spec.PolicyTypes = []networkingv1.PolicyType{t}
			end := atDestination
			if t == networkingv1.PolicyTypeEgress {
				end = atSource
			}
			half.Spec.PodSelector.MatchExpressions = append(half.Spec.PodSelector.MatchExpressions, exists(end).MatchExpressions...)
			o.NetworkPolicies = append(o.NetworkPolicies, half)
		}
	}
	return c.with(o)
}

// peersOf calls edit for every list of peers of copies of the NetworkPolicies.
func (o *Objects) editPeers(edit func(peers []networkingv1.NetworkPolicyPeer, end string) []networkingv1.NetworkPolicyPeer) {
	all := make([]*networkingv1.NetworkPolicy, len(o.NetworkPolicies))
	for i, p := range o.NetworkPolicies {
		all[i] = p.DeepCopy()
		for j := range all[i].Spec.Ingress {
			r := &all[i].Spec.Ingress[j]
			r.From = edit(r.From, atSource)
		}
		for j := range all[i].Spec.Egress {
			r := &all[i].Spec.Egress[j]
			r.To = edit(r.To, atDestination)
		}
	}
	o.NetworkPolicies = all
}

// blocksAsPods adds to each block that contains an end of the flow the pod at that end. It removes
// the blocks of the other IP version.
func blocksAsPods(c *Case, f model.Flow) *Case {
	o := marked(c, f)
	o.editPeers(func(peers []networkingv1.NetworkPolicyPeer, end string) []networkingv1.NetworkPolicyPeer {
		if len(peers) == 0 {
			return peers
		}
		a := f.Src
		if end == atDestination {
			a = f.Dst
		}
		var out []networkingv1.NetworkPolicyPeer
		for _, p := range peers {
			if p.IPBlock != nil && !sameFamily(p.IPBlock.CIDR, a) {
				continue
			}
			out = append(out, p)
			if p.IPBlock != nil && blockContains(p.IPBlock, a) {
				pods := exists(end)
				out = append(out, networkingv1.NetworkPolicyPeer{PodSelector: &pods, NamespaceSelector: &metav1.LabelSelector{}})
			}
		}
		if out == nil { // only blocks of the other family: matches no pod
			none := exists("oracle.test/none")
			out = []networkingv1.NetworkPolicyPeer{{PodSelector: &none}}
		}
		return out
	})
	networksAsPods(&o, f)
	return c.with(o)
}

func sameFamily(cidr string, a netip.Addr) bool {
	p, err := netip.ParsePrefix(cidr)
	return err == nil && p.Addr().Is6() == a.Is6()
}

func contains(cidr string, a netip.Addr) bool {
	p, err := netip.ParsePrefix(cidr)
	return err == nil && p.Masked().Contains(a)
}

func blockContains(b *networkingv1.IPBlock, a netip.Addr) bool {
	if !contains(b.CIDR, a) {
		return false
	}
	for _, e := range b.Except {
		if contains(e, a) {
			return false
		}
	}
	return true
}

// splitNotIn replaces each NotIn by two alternatives: the key has another value, or the key does
// not exist.
func splitNotIn(c *Case, _ model.Flow) *Case {
	o := c.Objects
	o.editPeers(func(peers []networkingv1.NetworkPolicyPeer, _ string) []networkingv1.NetworkPolicyPeer {
		var out []networkingv1.NetworkPolicyPeer
		for _, p := range peers {
			for _, pods := range alternatives(p.PodSelector) {
				for _, ns := range alternatives(p.NamespaceSelector) {
					out = append(out, networkingv1.NetworkPolicyPeer{IPBlock: p.IPBlock, PodSelector: pods, NamespaceSelector: ns})
				}
			}
		}
		return out
	})
	var all []*networkingv1.NetworkPolicy
	for _, p := range o.NetworkPolicies {
		for _, subject := range alternatives(&p.Spec.PodSelector) {
			one := p.DeepCopy()
			one.Spec.PodSelector = *subject
			all = append(all, one)
		}
	}
	o.NetworkPolicies = all
	return c.with(o)
}

// alternatives of nil is nil alone.
func alternatives(s *metav1.LabelSelector) []*metav1.LabelSelector {
	if s == nil {
		return []*metav1.LabelSelector{nil}
	}
	out := []*metav1.LabelSelector{{MatchLabels: s.MatchLabels}}
	for _, e := range s.MatchExpressions {
		var next []*metav1.LabelSelector
		for _, base := range out {
			with := func(e metav1.LabelSelectorRequirement) {
				one := base.DeepCopy()
				one.MatchExpressions = append(one.MatchExpressions, e)
				next = append(next, one)
			}
			with(e)
			if e.Operator == metav1.LabelSelectorOpNotIn {
				with(metav1.LabelSelectorRequirement{Key: e.Key, Operator: metav1.LabelSelectorOpDoesNotExist})
			}
		}
		out = next
	}
	return out
}

// labelsAsExpressions writes matchLabels as matchExpressions.
func labelsAsExpressions(c *Case, _ model.Flow) *Case {
	o := c.Objects
	rewrite := func(s *metav1.LabelSelector) *metav1.LabelSelector {
		if s == nil {
			return nil
		}
		out := &metav1.LabelSelector{MatchExpressions: s.DeepCopy().MatchExpressions}
		for k, v := range s.MatchLabels {
			out.MatchExpressions = append(out.MatchExpressions, metav1.LabelSelectorRequirement{Key: k, Operator: metav1.LabelSelectorOpIn, Values: []string{v}})
		}
		return out
	}
	o.editPeers(func(peers []networkingv1.NetworkPolicyPeer, _ string) []networkingv1.NetworkPolicyPeer {
		for i := range peers {
			peers[i].PodSelector, peers[i].NamespaceSelector = rewrite(peers[i].PodSelector), rewrite(peers[i].NamespaceSelector)
		}
		return peers
	})
	for _, p := range o.NetworkPolicies {
		p.Spec.PodSelector = *rewrite(&p.Spec.PodSelector)
	}
	return c.with(o)
}

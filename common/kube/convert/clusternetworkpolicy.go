// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/isthmus-net/isthmus/common/model"
)

const (
	kindClusterNetworkPolicy = "ClusterNetworkPolicy"
	clusterPolicyGroup       = v1alpha2.GroupName
)

func clusterNetworkPolicyKind() Kind {
	return clusterPolicyKind(kindClusterNetworkPolicy, "clusternetworkpolicies", convertClusterNetworkPolicy, "v1beta1", "v1alpha2")
}

// convertClusterNetworkPolicy converts a ClusterNetworkPolicy v1alpha2, or v1beta1, which has the same
// shape.
func convertClusterNetworkPolicy(cnp *v1alpha2.ClusterNetworkPolicy, s Strictness) converted {
	c := &clusterPolicy{kind: kindClusterNetworkPolicy, meta: &cnp.ObjectMeta, priority: cnp.Spec.Priority, maxItems: 25,
		portsField: "protocols",
		actions:    map[string]model.Action{"Accept": model.ActionAccept, "Deny": model.ActionDeny, "Pass": model.ActionPass}}
	spec := field.NewPath("spec")
	var errs field.ErrorList
	switch cnp.Spec.Tier {
	case v1alpha2.AdminTier:
		c.tier = model.TierAdmin
	case v1alpha2.BaselineTier:
		c.tier = model.TierBaseline
	default:
		c.unplaced = true
		errs = append(errs, field.NotSupported(spec.Child("tier"), cnp.Spec.Tier, []v1alpha2.Tier{v1alpha2.AdminTier, v1alpha2.BaselineTier}))
	}
	c.subject.namespaces = cnp.Spec.Subject.Namespaces
	c.subject.pods = alpha2Pods(cnp.Spec.Subject.Pods)
	for i, r := range cnp.Spec.Ingress {
		rule := clusterRule{name: r.Name, action: string(r.Action), anyPort: r.Protocols == nil,
			ports: alpha2Ports(r.Protocols, spec.Child("ingress").Index(i).Child("protocols"))}
		for _, p := range r.From {
			rule.peers = append(rule.peers, clusterPeer{namespaces: p.Namespaces, pods: alpha2Pods(p.Pods)})
		}
		c.rules[model.Ingress] = append(c.rules[model.Ingress], rule)
	}
	for i, r := range cnp.Spec.Egress {
		rule := clusterRule{name: r.Name, action: string(r.Action), anyPort: r.Protocols == nil,
			ports: alpha2Ports(r.Protocols, spec.Child("egress").Index(i).Child("protocols"))}
		for _, p := range r.To {
			rule.peers = append(rule.peers, clusterPeer{namespaces: p.Namespaces, pods: alpha2Pods(p.Pods), nodes: p.Nodes,
				networks: texts(p.Networks), domainNames: texts(p.DomainNames)})
		}
		c.rules[model.Egress] = append(c.rules[model.Egress], rule)
	}
	out := c.convert(s)
	out.errs = append(errs, out.errs...)
	return out
}

func alpha2Pods(p *v1alpha2.NamespacedPod) *podsPeer {
	if p == nil {
		return nil
	}
	return &podsPeer{namespaces: p.NamespaceSelector, pods: p.PodSelector}
}

// texts converts a list of strings. An absent list stays distinct from an empty one.
func texts[T ~string](list []T) []string {
	if list == nil {
		return nil
	}
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = string(s)
	}
	return out
}

// alpha2Protocol is one of tcp, udp and sctp of a v1alpha2 protocol.
type alpha2Protocol struct {
	field    string
	protocol model.Protocol
	set      bool
	port     *v1alpha2.Port
}

func alpha2Ports(list []v1alpha2.ClusterNetworkPolicyProtocol, path *field.Path) []clusterPort {
	var out []clusterPort
	for i := range list {
		out = append(out, alpha2Port(&list[i], path.Index(i)))
	}
	return out
}

func alpha2Port(p *v1alpha2.ClusterNetworkPolicyProtocol, path *field.Path) clusterPort {
	tcp := alpha2Protocol{field: "tcp", protocol: model.TCP, set: p.TCP != nil}
	udp := alpha2Protocol{field: "udp", protocol: model.UDP, set: p.UDP != nil}
	sctp := alpha2Protocol{field: "sctp", protocol: model.SCTP, set: p.SCTP != nil}
	if p.TCP != nil {
		tcp.port = p.TCP.DestinationPort
	}
	if p.UDP != nil {
		udp.port = p.UDP.DestinationPort
	}
	if p.SCTP != nil {
		sctp.port = p.SCTP.DestinationPort
	}
	out := clusterPort{unknown: true}
	for _, a := range []alpha2Protocol{tcp, udp, sctp} {
		if !a.set {
			continue
		}
		if !out.unknown {
			out.errs = append(out.errs, field.Forbidden(path, "must specify exactly one of tcp, udp, sctp and destinationNamedPort"))
		}
		out.unknown = false
		var errs field.ErrorList
		out.match, errs = a.convert(path.Child(a.field))
		out.errs = append(out.errs, errs...)
	}
	if p.DestinationNamedPort != "" {
		if !out.unknown {
			out.errs = append(out.errs, field.Forbidden(path, "must specify exactly one of tcp, udp, sctp and destinationNamedPort"))
		}
		// The name implies the protocol of the container port.
		out.unknown = false
		out.match = model.PortMatch{Protocol: model.AnyProtocol, Name: p.DestinationNamedPort}
	}
	return out
}

// convert converts the port of one protocol. The API requires a port: all ports are the range from 1 to
// 65535.
func (a alpha2Protocol) convert(path *field.Path) (model.PortMatch, field.ErrorList) {
	m := model.PortMatch{Protocol: a.protocol}
	if a.port == nil {
		return m, field.ErrorList{field.Required(path.Child("destinationPort"), "for all ports write the range from 1 to 65535")}
	}
	path = path.Child("destinationPort")
	var errs field.ErrorList
	switch {
	case a.port.Number != 0 && a.port.Range != nil:
		errs = field.ErrorList{field.Forbidden(path, "must specify exactly one of number and range")}
	case a.port.Range != nil:
		m.First, m.Last, errs = portRange(a.port.Range.Start, a.port.Range.End, path.Child("range"))
	default:
		m.First, errs = portNumber(a.port.Number, path.Child("number"))
		m.Last = m.First
	}
	return m, errs
}

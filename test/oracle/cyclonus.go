// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"net/netip"

	"github.com/mattfenwick/cyclonus/pkg/matcher"
	corev1 "k8s.io/api/core/v1"

	"github.com/isthmus-net/isthmus/common/model"
)

// cyclonus is the NetworkPolicy engine of mattfenwick/cyclonus.
type cyclonus struct{}

// Cyclonus returns the oracle.
func Cyclonus() Oracle { return cyclonus{} }

// Name implements Oracle.
func (cyclonus) Name() string { return "cyclonus" }

// Models implements Oracle: cyclonus implements NetworkPolicy only.
func (cyclonus) Models(c *Case, _ model.Flow) bool {
	return len(c.ClusterPolicies)+len(c.AdminPolicies)+len(c.BaselinePolicies) == 0
}

// Close implements Oracle.
func (cyclonus) Close() error { return nil }

// Deviations implements Oracle.
func (cyclonus) Deviations() []Deviation {
	return []Deviation{selfTraffic, ownNode, unknownAddress, absentKeys, emptyValues, sidecarPorts, namedPorts}
}

// Ask implements Oracle. The engine needs the name of the port.
func (cyclonus) Ask(c *Case, flows []model.Flow) ([]Answer, error) {
	policy := matcher.BuildNetworkPolicies(false, c.NetworkPolicies)
	peers := make(map[netip.Addr]*matcher.TrafficPeer)
	peer := func(a netip.Addr) *matcher.TrafficPeer {
		if peers[a] == nil {
			peers[a] = trafficPeer(c, a)
		}
		return peers[a]
	}
	out := make([]Answer, len(flows))
	for i, f := range flows {
		t := &matcher.Traffic{Source: peer(f.Src), Destination: peer(f.Dst), ResolvedPort: int(f.Port), Protocol: corev1.Protocol(f.Protocol.String())}
		if p := c.Owner(f.Dst); p != nil {
			t.ResolvedPortName = nameOf(p, t.Protocol, f.Port)
		}
		if policy.IsTrafficAllowed(t).IsAllowed() {
			out[i] = Allowed
		}
	}
	return out, nil
}

func trafficPeer(c *Case, a netip.Addr) *matcher.TrafficPeer {
	t := &matcher.TrafficPeer{IP: a.String()}
	if p := c.Owner(a); p != nil {
		t.Internal = &matcher.InternalPeer{Namespace: p.Namespace, NamespaceLabels: c.Namespaces[p.Namespace].Labels, PodLabels: p.Labels}
	}
	return t
}

// nameOf returns the first name of a port.
func nameOf(p *corev1.Pod, protocol corev1.Protocol, number uint16) string {
	for _, c := range p.Spec.Containers {
		for _, port := range c.Ports {
			if port.Name != "" && port.Protocol == protocol && port.ContainerPort == int32(number) {
				return port.Name
			}
		}
	}
	return ""
}

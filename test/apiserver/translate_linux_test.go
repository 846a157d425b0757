// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
)

// outside is the node number of hosts outside the cluster.
const outside = -1

// backend is a backend of a Service.
type backend struct {
	name      string
	node      int
	addresses []netip.Addr
	port      uint16
	pod       bool // not a host
}

// service is a Service that the test writes with its EndpointSlices, because no controller runs.
type service struct {
	name      string
	addresses []netip.Addr
	port      uint16
	nodePort  uint16 // 0 without a node port
	// local: externalTrafficPolicy is Local.
	local     bool
	protocols []model.Protocol
	backends  []*backend
}

// manifest returns the Service for both IP versions.
func (s *service) manifest() string {
	var b strings.Builder
	kind, extra := "ClusterIP", ""
	if s.nodePort != 0 {
		kind = "NodePort"
		if s.local {
			extra = ", externalTrafficPolicy: Local"
		}
	}
	fmt.Fprintf(&b, "{apiVersion: v1, kind: Service, metadata: {name: %s, namespace: shop}, spec: {type: %s, clusterIP: %q, clusterIPs: [%q, %q], "+
		"ipFamilies: [IPv4, IPv6], ipFamilyPolicy: RequireDualStack%s, ports: [", s.name, kind, s.addresses[0], s.addresses[0], s.addresses[1], extra)
	for _, p := range s.protocols {
		fmt.Fprintf(&b, "{name: p%d, protocol: %s, port: %d, targetPort: %d", p, p, s.port, s.backends[0].port)
		if s.nodePort != 0 {
			fmt.Fprintf(&b, ", nodePort: %d", s.nodePort)
		}
		b.WriteString("},")
	}
	b.WriteString("]}}\n---\n")
	return b.String()
}

// slices returns the EndpointSlices of the Service for some backends.
func (s *service) slices(nodes []string, backends ...*backend) string {
	var b strings.Builder
	for i, family := range []string{"IPv4", "IPv6"} {
		fmt.Fprintf(&b, "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: %[1]s-%[2]d, namespace: shop, labels: {kubernetes.io/service-name: %[1]s}}, "+
			"addressType: %[3]s, ports: [", s.name, i, family)
		for _, p := range s.protocols {
			fmt.Fprintf(&b, "{name: p%d, protocol: %s, port: %d},", p, p, s.backends[0].port)
		}
		b.WriteString("], endpoints: [")
		for _, e := range backends {
			on := ""
			if e.node != outside {
				on = "nodeName: " + nodes[e.node] + ", "
			}
			fmt.Fprintf(&b, "{addresses: [%q], %sconditions: {ready: true, serving: true, terminating: false}},", familyOf(e.addresses, i == 1), on)
		}
		b.WriteString("]}\n---\n")
	}
	return b.String()
}

// client is the origin of flows: a pod, a node or a host outside the cluster.
type client struct {
	name string
	node int
	pod  bool
	asker
}

// call is a flow to a Service, by its ClusterIP or by a node port.
type call struct {
	from     client
	to       *service
	protocol model.Protocol
	// via is the node whose port the client calls, or outside for the ClusterIP.
	via int
	// at is the destination, viaAddress the address of the node via, own the address of the
	// client's node.
	at              netip.AddrPort
	viaAddress, own netip.Addr
}

func (c *call) String() string {
	return fmt.Sprintf("%s from %s to %s at %s", c.protocol, c.from.name, c.to.name, c.at)
}

// want is the expected result of a call.
type want struct {
	// allowed maps the backends that may answer to the client address that each must see; denied
	// counts the other backends that kube-proxy may choose.
	allowed map[string]netip.Addr
	denied  int
}

// expect returns the expected result of a call. It follows the documentation of kube-proxy, and for
// each backend the reference's verdict on the flow that remains after translation at each end.
func (c *call) expect(e *policy.Evaluator) want {
	w := want{allowed: make(map[string]netip.Addr)}
	v6 := c.at.Addr().Is6()
	for _, b := range c.to.backends {
		if c.to.local && c.from.node == outside && b.node != c.via {
			continue // not for clients outside the cluster
		}
		dst := familyOf(b.addresses, v6)
		toward := netip.AddrPortFrom(dst, b.port)
		if c.via != outside && c.from.node != c.via {
			toward = c.at // another node translates
		}
		seen := c.seen(b, dst)
		client := seen
		if b.node == c.via || c.via == outside && c.from.from == dst {
			client = c.from.from // masqueraded on the node of the backend, which decides about the real client
		}
		egress, _ := e.Flow(model.Flow{Src: c.from.from, Dst: toward.Addr(), Protocol: c.protocol, Port: toward.Port()})
		_, ingress := e.Flow(model.Flow{Src: client, Dst: dst, Protocol: c.protocol, Port: b.port})
		if min(egress.Verdict, ingress.Verdict) == model.Allow && !c.overblocked(b) && !c.unanswered(e, b, dst) {
			w.allowed[b.name] = seen
		} else {
			w.denied++
		}
	}
	return w
}

// overblocked reports whether a call is denied because the programs cannot find the flow of a translated SCTP
// packet in connection tracking: its source is an address of the node, or of a Service (docs/policy.md).
func (c *call) overblocked(b *backend) bool {
	if c.protocol != model.SCTP || !b.pod && b.node == c.from.node {
		return false
	}
	request := b.pod && c.via == b.node && !c.to.local && (c.from.pod || c.from.node != b.node)
	answer := c.from.pod && (c.via == c.from.node || c.via == outside && b.pod && b.node == c.from.node)
	return request || answer
}

// unanswered reports whether the backend of an SCTP call by its own node may not answer. The answer goes to another port than that
// of the client, so it looks like a flow of the pod (docs/policy.md).
func (c *call) unanswered(e *policy.Evaluator, b *backend, at netip.Addr) bool {
	if c.protocol != model.SCTP || c.from.pod || !b.pod || b.node != c.from.node {
		return false
	}
	back, _ := e.Flow(model.Flow{Src: at, Dst: c.from.from, Protocol: c.protocol, Port: 40000})
	return back.Verdict == model.Deny
}

// seen is the client address that a backend sees. Connections by the port of a node
// have that of the node, unless the Service preserves it. Connections of a pod to
// itself, or out of the cluster, have the address of its node.
func (c *call) seen(b *backend, at netip.Addr) netip.Addr {
	switch {
	case c.via != outside && !c.to.local:
		return c.viaAddress
	case c.from.pod && (c.from.from == at || b.node == outside):
		return c.own
	}
	return c.from.from
}

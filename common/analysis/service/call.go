// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
)

// Call is what a client calls: a Service by its name, or an address and port that lead to it.
type Call struct {
	Service *model.Service
	// To is the address that the client calls. Without one it calls a cluster IP or, of a headless Service, the pods.
	To netip.Addr
	// NodePort is the port of the node with the address To; 0 if the port is that of the Service.
	NodePort uint16
}

// Called returns the Service that a port of an address belongs to, or nil if the address belongs to none. port and protocol are
// as of Port: several Services can share an address.
func (t *Services) Called(a netip.Addr, port string, protocol *model.Protocol) (*model.Service, error) {
	all := t.At(a)
	if len(all) < 2 {
		return append(all, nil)[0], nil
	}
	var known []string
	var found []*model.Service
	for _, s := range all {
		known = append(known, s.Namespace+"/"+s.Name)
		if _, err := Port(s, port, protocol); err == nil {
			found = append(found, s)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return nil, fmt.Errorf("no Service with the address %s has this port: it belongs to %s", a, strings.Join(known, ", "))
	}
	return nil, fmt.Errorf("%s is an address of several Services, %s: give the port and its protocol", a, strings.Join(known, ", "))
}

// AtNode returns the call of a port of a node's own address, and the port of the Service to which it leads. The Service is nil
// if the address is not that of a node, or if the port leads to none.
func (t *Services) AtNode(a netip.Addr, protocol model.Protocol, port uint16) (Call, model.ServicePort) {
	if t.owners.Nodes[a] == nil || port == 0 {
		return Call{}, model.ServicePort{}
	}
	var found Call
	var at model.ServicePort
	for _, s := range t.all {
		for _, p := range s.Ports {
			switch {
			case p.Protocol != protocol:
			case p.Port == port && slices.Contains(s.Addresses, a): // some load balancers have the addresses of nodes
				return Call{Service: s, To: a}, p
			case p.Node == port && found.Service == nil:
				found, at = Call{Service: s, To: a, NodePort: port}, p
			}
		}
	}
	return found, at
}

// Connection is a connection to a backend, as the policies of both ends see it.
type Connection struct {
	Backend Backend
	// Egress is the flow that the policy of the client decides, Ingress that of the policy of the backend. They differ if the
	// node that forwards is another one than that of the client, or of the backend.
	Egress, Ingress model.Flow
	// Hidden is the node whose address the backend sees instead of that of the client; "" if it sees the client.
	Hidden string
	// DropsRequests and DropsAnswers report what Linux nodes drop although policy allows it: packets to the backend, or its answers to
	// the client. Both are of SCTP that a node translates, which the programs cannot look up in connection tracking.
	DropsRequests, DropsAnswers bool
}

// Connections lists the connections to which a call can lead, one for each backend. from are the addresses of the client. It is
// as kube-proxy forwards: with internalTrafficPolicy Local, a client in the cluster reaches by a cluster IP the backends on its
// own node only. With externalTrafficPolicy Local, a client of a node port that is not a pod reaches those on the node only. Pods
// reach all, as they do by an external address. Otherwise the node that forwards a client of an external address or of a node port
// masquerades it, and a backend on another node sees that node. loadBalancerSourceRanges holds for the addresses of a load balancer.
func (t *Services) Connections(c Call, port model.ServicePort, from []netip.Addr) ([]Connection, error) {
	all, err := t.Backends(c.Service, port)
	if err != nil {
		return nil, err
	}
	if !c.To.IsValid() {
		c.To = primary(c.Service, from)
	}
	client := from[0]
	if i := slices.IndexFunc(from, func(a netip.Addr) bool { return a.Is4() == c.To.Is4() }); c.To.IsValid() && i >= 0 {
		client = from[i]
	}
	if !c.accepts(client) {
		return nil, fmt.Errorf("no backend of Service %s/%s for %s: loadBalancerSourceRanges does not have this client", c.Service.Namespace, c.Service.Name, client)
	}
	by := t.forwarder(c, client)
	backends, err := t.reached(c, port, client, by, all)
	if err != nil {
		return nil, err
	}
	var found []Connection
	for _, b := range backends {
		if one, ok := t.connect(c, port, by, from, b); ok {
			found = append(found, one)
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("no backend of Service %s/%s: the client or every backend has %s", c.Service.Namespace, c.Service.Name, noAddress(c.To))
	}
	return found, nil
}

// primary returns the cluster IP that a client calls by name: the first one of a family that it has.
func primary(s *model.Service, from []netip.Addr) netip.Addr {
	cluster := s.Addresses[:s.ClusterIPs]
	for _, a := range cluster {
		if slices.ContainsFunc(from, func(f netip.Addr) bool { return f.Is4() == a.Is4() }) {
			return a
		}
	}
	return append(slices.Clone(cluster), netip.Addr{})[0]
}

func noAddress(called netip.Addr) string {
	switch {
	case called.Is4():
		return "no IPv4 address"
	case called.Is6():
		return "no IPv6 address"
	}
	return "no address of the other's family"
}

// external reports whether traffic to an address counts as external.
func (c Call) external() bool {
	return c.NodePort != 0 || c.To.IsValid() && !slices.Contains(c.Service.Addresses[:c.Service.ClusterIPs], c.To)
}

// accepts reports whether nodes forward a client. "If specified and supported by the platform, this will restrict traffic through
// the cloud-provider load-balancer will be restricted to the specified client IPs." On Linux, kube-proxy restricts pods and nodes, too.
func (c Call) accepts(client netip.Addr) bool {
	s := c.Service
	if c.NodePort != 0 || !slices.Contains(s.Addresses[s.ClusterIPs+s.ExternalIPs:], c.To) {
		return true
	}
	sameFamily := func(p netip.Prefix) bool { return p.Addr().Is4() == client.Is4() }
	return !slices.ContainsFunc(s.Sources, sameFamily) || slices.ContainsFunc(s.Sources, func(p netip.Prefix) bool { return p.Contains(client) })
}

// forwarder returns the node that chooses the backend; "" if it is not known.
func (t *Services) forwarder(c Call, client netip.Addr) string {
	if own := t.nodeOf(client); own != "" && c.NodePort == 0 {
		return own
	}
	if n := t.owners.Nodes[c.To]; n != nil {
		return n.Name
	}
	return ""
}

// reached returns the backends to which a node forwards a client.
func (t *Services) reached(c Call, port model.ServicePort, client netip.Addr, by string, all []Backend) ([]Backend, error) {
	s, policy, where := c.Service, "internalTrafficPolicy", "on the node of the client"
	switch external := c.external(); {
	case s.Headless, by == "", !external && !s.OwnNode, external && !s.KeepsClients:
		return all, nil
	case external && (t.owners.Pods[client] != nil || t.nodeOf(client) == by):
		return all, nil
	case external:
		policy, where = "externalTrafficPolicy", "on this node"
	}
	elsewhere := func(b Backend) bool { return t.nodeOf(b.Addresses[0]) != by }
	local := slices.DeleteFunc(slices.Clone(all), elsewhere)
	if len(local) == 0 { // those that drain may be on this node
		draining, _ := t.sliced(s, port, true)
		local = slices.DeleteFunc(draining, elsewhere)
	}
	if len(local) == 0 {
		return nil, fmt.Errorf("no backend of Service %s/%s: %s is Local, and none is %s", s.Namespace, s.Name, policy, where)
	}
	return local, nil
}

// connect returns the connection to one backend; it is not ok if the ends have no addresses of one family.
func (t *Services) connect(c Call, port model.ServicePort, by string, from []netip.Addr, b Backend) (one Connection, ok bool) {
	f := model.Flow{Protocol: port.Protocol, Port: b.Port}
	for _, src := range from {
		for _, dst := range b.Addresses {
			if src.Is4() == dst.Is4() && (c.To.IsValid() && c.To.Is4() == src.Is4() || !c.To.IsValid() && c.Service.Serves(src.Is6())) && !f.Src.IsValid() {
				f.Src, f.Dst = src, dst
			}
		}
	}
	if !f.Src.IsValid() {
		return one, false
	}
	one = Connection{Backend: b, Egress: f, Ingress: f}
	t.sctp(c, by, &one)
	if !c.external() {
		return one, true
	}
	if own := t.nodeOf(f.Src); c.NodePort != 0 && own != by {
		one.Egress.Dst, one.Egress.Port = c.To, c.NodePort
	}
	if at := t.nodeOf(f.Dst); !c.Service.KeepsClients && by != "" && at != "" && at != by && (t.owners.Nodes[f.Src] == nil || t.nodeOf(f.Src) != by) {
		n, _ := t.snapshot.Nodes.Get(by)
		if i := slices.IndexFunc(n.Addresses, func(a netip.Addr) bool { return a.Is4() == f.Src.Is4() }); i >= 0 {
			one.Ingress.Src, one.Hidden = n.Addresses[i], by
		}
	}
	return one, true
}

// sctp sets what Linux nodes drop of a connection, which has the addresses of both ends.
func (t *Services) sctp(c Call, by string, one *Connection) {
	f := one.Egress
	pod, own, at := t.owners.Pods[f.Src] != nil, t.nodeOf(f.Src), t.nodeOf(f.Dst)
	toPod := t.owners.Pods[f.Dst] != nil
	if f.Protocol != model.SCTP || c.Service.Headless || !toPod && at == own {
		return
	}
	masquerades := c.external() && !c.Service.KeepsClients && by != "" && by == at
	one.DropsRequests = toPod && masquerades && (pod || own != at)
	one.DropsAnswers = pod && (c.NodePort != 0 && by == own || c.NodePort == 0 && toPod && at == own)
}

// nodeOf returns the node of a pod, or of the node itself, by an address; "" for any other address.
func (t *Services) nodeOf(a netip.Addr) string {
	if pod := t.owners.Pods[a]; pod != nil {
		return pod.Node
	}
	if n := t.owners.Nodes[a]; n != nil {
		return n.Name
	}
	return ""
}

// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy/compile"
)

// ErrImpossible is returned for flows that no packet can have: between address families, or
// of an ICMP protocol of the other family.
var ErrImpossible = errors.New("no such packet can exist")

// Question is one cell: a flow at one of its ends.
type Question struct {
	Node      string
	Endpoint  model.EndpointID
	Pod       *model.Pod
	Direction model.Direction
	Remote    netip.Addr
	Protocol  model.Protocol
	Port      uint16
}

// String names the cell in one line.
func (q Question) String() string {
	return fmt.Sprintf("%s %s %s %s/%d", q.Pod.PodID, q.Direction, q.Remote, q.Protocol, q.Port)
}

// Engine decides cells of the cluster that it loaded last.
type Engine interface {
	// Name is the name that users write.
	Name() string
	// Load replaces the loaded cluster as a running node would.
	Load(c *Cluster) error
	// Decide returns the decision for one cell. An engine that has several ways to decide
	// returns an error with the details if they differ.
	Decide(q Question) (model.Verdict, error)
	// Close releases the resources of the engine.
	Close() error
}

// Cluster is a snapshot with the State of every node.
type Cluster struct {
	Snapshot *model.Snapshot
	// States are by node. A node is listed if it runs a pod with policies.
	States map[string]*model.State
	// Unsupported is what cannot be compiled exactly, by node.
	Unsupported map[string][]model.Unsupported
	owners      model.Owners
}

// unboundNode is the node of pods that are not bound to a node (yet).
const unboundNode = "(no node)"

// nodeOf is the node that enforces for a pod.
func nodeOf(p *model.Pod) string {
	if p.Node == "" {
		return unboundNode
	}
	return p.Node
}

// EndpointOf is the endpoint that stands for a pod.
func EndpointOf(p *model.Pod) model.EndpointID {
	return model.MakeEndpointID(p.Namespace+"_"+p.Name, "eth0")
}

// Endpoints returns the endpoints of every node: the pods that policies apply to and that
// have an address. Pods that are not bound to a node are under "(no node)".
func Endpoints(s *model.Snapshot) map[string]map[model.EndpointID]compile.Endpoint {
	endpoints := make(map[string]map[model.EndpointID]compile.Endpoint)
	for _, p := range s.Pods.All() {
		if !p.Policed() || len(p.IPs) == 0 {
			continue
		}
		node := nodeOf(p)
		if endpoints[node] == nil {
			endpoints[node] = make(map[model.EndpointID]compile.Endpoint)
		}
		endpoints[node][EndpointOf(p)] = compile.Endpoint{Pod: p.PodID, IPs: p.IPs}
	}
	return endpoints
}

// Compile compiles a snapshot for every node. previous, if not nil, holds the States that
// the nodes enforced before.
func Compile(s *model.Snapshot, previous *Cluster) *Cluster {
	c := &Cluster{Snapshot: s, States: make(map[string]*model.State), Unsupported: make(map[string][]model.Unsupported), owners: s.Owners()}
	for node, local := range Endpoints(s) {
		in := compile.Input{Snapshot: s, Node: node, Endpoints: local}
		if previous != nil {
			in.Previous = previous.States[node]
		}
		state, unsupported := compile.Once(in)
		c.States[node] = state
		if len(unsupported) > 0 {
			c.Unsupported[node] = unsupported
		}
	}
	return c
}

// Questions returns the cells that decide a flow: at the source if that is a pod with
// policies, and likewise at the destination.
func (c *Cluster) Questions(f model.Flow) []Question { return c.Forwarded(f, f) }

// Forwarded returns the cells that decide a connection that a node forwards: the egress flow at its source, and the ingress flow
// at its destination.
func (c *Cluster) Forwarded(egress, ingress model.Flow) []Question {
	var qs []Question
	add := func(p *model.Pod, d model.Direction, remote netip.Addr, f model.Flow) {
		qs = append(qs, Question{Node: nodeOf(p), Endpoint: EndpointOf(p), Pod: p, Direction: d, Remote: remote, Protocol: f.Protocol, Port: f.Port})
	}
	if p, ok := c.owners.Pods[egress.Src]; ok {
		add(p, model.Egress, egress.Dst, egress)
	}
	if p, ok := c.owners.Pods[ingress.Dst]; ok {
		add(p, model.Ingress, ingress.Src, ingress)
	}
	return qs
}

// Decide evaluates both ends of a flow with an engine. The flow is allowed if every end
// allows it.
func (c *Cluster) Decide(e Engine, f model.Flow) (model.Verdict, error) {
	verdict := model.Allow
	for _, q := range c.Questions(f) {
		v, err := e.Decide(q)
		if err != nil {
			return model.Deny, fmt.Errorf("%s: %s: %w", e.Name(), q, err)
		}
		verdict = min(verdict, v)
	}
	return verdict, nil
}

// Self reports whether the remote address is the pod's own. Such traffic never leaves the
// pod.
func (q Question) Self() bool { return slices.Contains(q.Pod.IPs, q.Remote) }

// Possible reports whether a packet of the cell can exist. The pod must have an address of
// the family of the remote address, and ICMP belongs to one family.
func (q Question) Possible() bool {
	if q.Protocol == model.ICMP && q.Remote.Is6() || q.Protocol == model.ICMPv6 && q.Remote.Is4() {
		return false
	}
	return slices.ContainsFunc(q.Pod.IPs, func(ip netip.Addr) bool { return ip.Is6() == q.Remote.Is6() })
}

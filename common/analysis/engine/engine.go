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

// ErrImpossible is returned for flows that no packet can be made for: between
// address families, or to protocols of the other family.
var ErrImpossible = errors.New("no such packet can exist")

// Question is one cell: what is decided at one end of a flow.
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

// Engine decides cells of the cluster that it was last given.
type Engine interface {
	// Name is what users call it.
	Name() string
	// Load takes a cluster in, replacing the one before as a running node
	// would.
	Load(c *Cluster) error
	// Decide answers for one cell. An engine that has several ways to decide
	// and finds that they differ returns an error that says how.
	Decide(q Question) (model.Verdict, error)
	// Close releases what the engine holds.
	Close() error
}

// Cluster is a snapshot with what every node should enforce for it.
type Cluster struct {
	Snapshot *model.Snapshot
	// States are by node. A node is listed if it runs a policed pod.
	States map[string]*model.State
	// Unsupported is what cannot be compiled exactly, by node.
	Unsupported map[string][]model.Unsupported
	owners      model.Owners
}

// homeless is the node of pods that are bound to none (yet).
const homeless = "(no node)"

// nodeOf is the node that enforces for a pod.
func nodeOf(p *model.Pod) string {
	if p.Node == "" {
		return homeless
	}
	return p.Node
}

// EndpointOf is the endpoint that stands for a pod.
func EndpointOf(p *model.Pod) model.EndpointID {
	return model.MakeEndpointID(p.Namespace+"_"+p.Name, "eth0")
}

// Endpoints returns the endpoints of every node: the pods that policies apply to and
// that have an address. Pods that are bound to no node are under "(no node)".
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

// Compile compiles a snapshot for every node. previous, if given, is what the
// nodes enforced before.
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

// Questions returns the cells that decide a flow: at the source if that is a
// policed pod, and at the destination if that is one.
func (c *Cluster) Questions(f model.Flow) []Question {
	var qs []Question
	add := func(p *model.Pod, d model.Direction, remote netip.Addr) {
		qs = append(qs, Question{Node: nodeOf(p), Endpoint: EndpointOf(p), Pod: p, Direction: d, Remote: remote, Protocol: f.Protocol, Port: f.Port})
	}
	if p, ok := c.owners.Pods[f.Src]; ok {
		add(p, model.Egress, f.Dst)
	}
	if p, ok := c.owners.Pods[f.Dst]; ok {
		add(p, model.Ingress, f.Src)
	}
	return qs
}

// Decide asks an engine about both ends of a flow. It is allowed if every end
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

// Self reports whether the remote address is the pod's own. Such traffic never
// leaves the pod.
func (q Question) Self() bool { return slices.Contains(q.Pod.IPs, q.Remote) }

// Possible reports whether a packet of the cell can exist: the pod must have an
// address of the family of the remote one, and ICMP belongs to one family.
func (q Question) Possible() bool {
	if q.Protocol == model.ICMP && q.Remote.Is6() || q.Protocol == model.ICMPv6 && q.Remote.Is4() {
		return false
	}
	return slices.ContainsFunc(q.Pod.IPs, func(ip netip.Addr) bool { return ip.Is6() == q.Remote.Is6() })
}

// SPDX-License-Identifier: Apache-2.0

package connectivity

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/isthmus-net/isthmus/common/connectivity/probe"
	"github.com/isthmus-net/isthmus/common/model"
)

const (
	// Port is the port of servers that policies allow.
	Port = 7000
	// ClosedPort is one that they do not allow.
	ClosedPort = 7001
)

// Node is a node that takes part.
type Node struct {
	Name      string
	OS        model.OS
	Addresses []netip.Addr
	// KubeletPort is a TCP port at which the node accepts connections.
	KubeletPort uint16
	// Image is the image of the pods there.
	Image string
}

// Role is what a pod does.
type Role string

// The roles of pods.
const (
	Client Role = "client"
	Server Role = "server"
)

// Pod is a pod of a test. A server has a Service of the same name.
type Pod struct {
	Name string
	Role Role
	Node Node
}

// Pods returns the pods of a test.
func Pods(nodes []Node) []Pod {
	var all []Pod
	for _, role := range []Role{Client, Server} {
		for i, n := range nodes {
			all = append(all, Pod{fmt.Sprintf("%s-%d", role, i+1), role, n})
		}
	}
	return all
}

// Placed is a pod that runs.
type Placed struct {
	Pod
	Addresses []netip.Addr
	// Service holds the addresses of the Service of a server.
	Service []netip.Addr
}

// Policy is a NetworkPolicy of a test. It isolates the pods of a role, or accepts flows between clients and servers at Port.
type Policy struct {
	Name      string
	Role      Role
	Direction model.Direction
	Accept    bool
}

// Phase is a set of policies, and the flows under them.
type Phase struct {
	Name     string
	Policies []Policy
	// Blocked is true if the policies deny all flows to servers.
	Blocked bool
}

// Phases returns the phases of a test in their order.
func Phases() []Phase {
	denyIn, denyOut := Policy{"deny-ingress", Server, model.Ingress, false}, Policy{"deny-egress", Client, model.Egress, false}
	allowIn, allowOut := Policy{"allow-ingress", Server, model.Ingress, true}, Policy{"allow-egress", Client, model.Egress, true}
	return []Phase{
		{Name: "open"},
		{"ingress denied", []Policy{denyIn}, true},
		{"ingress allowed", []Policy{denyIn, allowIn}, false},
		{"egress denied", []Policy{denyOut}, true},
		{"egress allowed", []Policy{denyOut, allowOut}, false},
	}
}

// The kinds of flows.
const (
	ToPod     = "pod"
	ToService = "service"
	ToNode    = "node"
	ToName    = "name"
)

// Flow is a flow of a test, with what is expected.
type Flow struct {
	Phase, Kind string
	From        Placed
	// To is the pod that must answer; its Name is empty if the destination is a node.
	To     Placed
	Target probe.Target
	// Blocked is true if nothing must come back.
	Blocked bool
	// Source is the address that the server must see; not valid if it may see any.
	Source netip.Addr
}

// Protocol returns the protocol of the flow.
func (f *Flow) Protocol() model.Protocol {
	if f.Target.Kind == probe.UDP {
		return model.UDP
	}
	return model.TCP
}

// String describes the flow in one line.
func (f *Flow) String() string {
	to := "node " + f.To.Node.Name
	switch f.Kind {
	case ToPod, ToName:
		to = fmt.Sprintf("%s (%s)", f.To.Name, f.To.Node.Name)
	case ToService:
		to = fmt.Sprintf("Service %s (%s)", f.To.Name, f.To.Node.Name)
	}
	return fmt.Sprintf("%s (%s) -> %s, %s", f.From.Name, f.From.Node.Name, to, f.Target)
}

// Flows returns the flows of a phase. Without policies these are all pairs by TCP and UDP, and all addresses. Under policies
// every server has a client on its node and one on the next node.
func Flows(phase Phase, pods []Placed) []Flow {
	var clients, servers []Placed
	for _, p := range pods {
		if p.Role == Client {
			clients = append(clients, p)
		} else {
			servers = append(servers, p)
		}
	}
	var all []Flow
	for c, from := range clients {
		for _, to := range servers {
			if len(phase.Policies) == 0 {
				all = append(all, toPod(phase, from, to, Port)...)
				all = append(all, toService(phase, from, to)...)
				continue
			}
			if next := servers[(c+1)%len(servers)]; from.Node.Name != to.Node.Name && to.Name != next.Name {
				continue
			}
			all = append(all, toPod(phase, from, to, Port)...)
			all = append(all, toService(phase, from, to)...)
			if !phase.Blocked {
				closed := slices.DeleteFunc(toPod(phase, from, to, ClosedPort), func(f Flow) bool { return f.Target.Kind != probe.TCP })
				all = append(all, closed...)
			}
		}
		if len(phase.Policies) == 0 && len(servers) > 0 {
			all = append(all, toNode(phase, from)...)
			all = append(all, toName(phase, from, servers[(c+1)%len(servers)]))
		}
	}
	return all
}

// toPod returns the flows to the addresses of a server.
func toPod(phase Phase, from, to Placed, port uint16) []Flow {
	return between(phase, ToPod, from, to, to.Addresses, port)
}

// toService returns the flows to the addresses of the Service of a server.
func toService(phase Phase, from, to Placed) []Flow {
	return between(phase, ToService, from, to, to.Service, Port)
}

func between(phase Phase, kind string, from, to Placed, addresses []netip.Addr, port uint16) (all []Flow) {
	for _, a := range addresses {
		source := sameFamily(from.Addresses, a)
		if !source.IsValid() {
			continue
		}
		for _, protocol := range []string{probe.TCP, probe.UDP} {
			f := Flow{Phase: phase.Name, Kind: kind, From: from, To: to, Target: probe.Target{Kind: protocol, Host: a.String(), Port: port},
				Blocked: phase.Blocked || port == ClosedPort}
			if kind == ToPod {
				f.Source = source
			}
			all = append(all, f)
		}
	}
	return all
}

// toNode returns the flows of a pod to the kubelet of its node.
func toNode(phase Phase, from Placed) (all []Flow) {
	for _, a := range from.Node.Addresses {
		if from.Node.KubeletPort != 0 && sameFamily(from.Addresses, a).IsValid() {
			all = append(all, Flow{Phase: phase.Name, Kind: ToNode, From: from, To: Placed{Pod: Pod{Node: from.Node}},
				Target: probe.Target{Kind: probe.Connect, Host: a.String(), Port: from.Node.KubeletPort}})
		}
	}
	return all
}

// toName returns the flow to the Service of a server by its name.
func toName(phase Phase, from, to Placed) Flow {
	return Flow{Phase: phase.Name, Kind: ToName, From: from, To: to, Target: probe.Target{Kind: probe.TCP, Host: to.Name, Port: Port}}
}

// sameFamily returns the first address of the family of another.
func sameFamily(all []netip.Addr, as netip.Addr) netip.Addr {
	for _, a := range all {
		if a.Is4() == as.Is4() {
			return a
		}
	}
	return netip.Addr{}
}

// Judge compares the end of an attempt with what is expected. wrong says what differs; empty if nothing does.
func (f *Flow) Judge(a *probe.Answer) (wrong string) {
	answered := a.State == probe.Answered || f.Kind == ToNode && a.State == probe.Refused
	switch {
	case f.Blocked && a.State == probe.Timeout:
		return ""
	case f.Blocked && answered:
		return fmt.Sprintf("%s answered, but policy must block the flow", a.Server)
	case f.Blocked:
		return "not blocked in silence: " + a.Error
	case a.State == probe.Timeout:
		return "no answer"
	case !answered:
		return a.Error
	case f.To.Name != "" && a.Server != f.To.Name:
		return fmt.Sprintf("%s answered instead of %s", a.Server, f.To.Name)
	case f.Source.IsValid() && a.Client != f.Source:
		return fmt.Sprintf("the server sees %s as the source, not the pod's address %s: something on the path masquerades", a.Client, f.Source)
	}
	return ""
}

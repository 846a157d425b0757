// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"net/netip"
	"time"
)

// Host is the device of packets that processes of the node send.
const Host = 0

// Pod is a local pod and its attachment.
type Pod struct {
	Name   string
	Addrs  []netip.Addr // at most one per family
	MAC    [6]byte
	Device int // the host's end of its interface
	Slot   int
	// Limited is true if the bandwidth is limited: other pods reach it by the queues
	// of its interface only.
	Limited bool
	Policy  Policy
	// Epoch changes with every change of Policy.
	Epoch int
}

func (p *Pod) addr(v6 bool) (netip.Addr, bool) {
	for _, a := range p.Addrs {
		if a.Is6() == v6 {
			return a, true
		}
	}
	return netip.Addr{}, false
}

func (p *Pod) has(a netip.Addr) bool {
	own, ok := p.addr(a.Is6())
	return ok && own == a
}

// linkLocal is the link-local address that the pod's interface derives from its MAC (RFC 4291, appendix A).
func (p *Pod) linkLocal() netip.Addr {
	m := p.MAC
	return netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 8: m[0] ^ 2, 9: m[1], 10: m[2], 11: 0xff, 12: 0xfe, 13: m[3], 14: m[4], 15: m[5]})
}

// NodeRoute is the route to the pods of another node.
type NodeRoute struct {
	Range  netip.Prefix
	Device int
	// Direct is true if packets may use the fast path.
	Direct bool
}

// Timeouts bound the idle time of a flow, by its state.
type Timeouts struct {
	Opening, TCP, Other, Closing, Datagram time.Duration
}

// Tunnel holds the outer address of another node, and the inner sources that it may send.
type Tunnel struct {
	Outer []netip.Addr
	Inner []netip.Prefix
}

// Node is the state of the packet path of a node.
type Node struct {
	Pods map[int]*Pod // by device
	// Remote are pods of other nodes and Outside are prefixes outside the cluster. The values are names of
	// parties.
	Remote  map[netip.Addr]string
	Outside map[netip.Prefix]string
	// Own are the addresses of the node; Broadcast are further ones by which it receives; Ranges are its pod ranges.
	Own       []netip.Addr
	Broadcast []netip.Addr
	Ranges    []netip.Prefix
	Routes    []NodeRoute
	// TunnelPort is 0 without tunnels.
	TunnelPort uint16
	Tunnels    []Tunnel
	// TunnelProtocols are those directly in IP of the node's tunnel devices. Pods send them to pods only.
	TunnelProtocols []uint8
	MTU             int
	// Deny are the prefixes of the deny list, Exempt are addresses in them that are not denied.
	Deny     []netip.Prefix
	Exempt   []netip.Addr
	Timeouts Timeouts
	// Errors is the number of ICMP errors that a pod may send, and receive, until its budget refills.
	Errors int
	// Shared is true if programs of an older layout share the records; Handover is true if those programs leave no
	// marks (ADR 31).
	Shared, Handover bool

	// Tracked reports whether connection tracking knows a flow, in any direction.
	Tracked func(src, dst netip.AddrPort, proto uint8) bool
	// Receives returns the address to which connection tracking sends what src sends to dst, if it knows the flow.
	Receives func(src, dst netip.AddrPort, proto uint8) (netip.Addr, bool)
	// Track makes connection tracking know a TCP connection.
	Track func(src, dst netip.AddrPort)

	now       time.Duration
	flows     map[Key]*flow
	created   *Key // the last new flow since Follow read the table
	datagrams map[place]datagram
	records   map[int]*record
	replaced  *record // the record whose place the last one took, if it was there
	written   int
	errors    map[place]int // since the last call of Age
}

// Reset forgets all packets.
func (n *Node) Reset() {
	n.flows, n.datagrams, n.records, n.written = make(map[Key]*flow), make(map[place]datagram), make(map[int]*record), 0
	n.created, n.errors = nil, make(map[place]int)
}

// Age advances the clock.
func (n *Node) Age(d time.Duration) {
	n.now += d
	clear(n.errors) // the budget refills within seconds
}

// Party returns the name of the owner of an address, "" for any other host.
func (n *Node) Party(a netip.Addr) string {
	for _, p := range n.Pods {
		if p.has(a) {
			return p.Name
		}
	}
	if name, ok := n.Remote[a]; ok {
		return name
	}
	for prefix, name := range n.Outside {
		if prefix.Contains(a) {
			return name
		}
	}
	return ""
}

// isPod reports whether a known pod has the address.
func (n *Node) isPod(a netip.Addr) bool {
	if _, ok := n.Remote[a]; ok {
		return true
	}
	return n.local(a) != nil
}

func (n *Node) local(a netip.Addr) *Pod {
	for _, p := range n.Pods {
		if p.has(a) {
			return p
		}
	}
	return nil
}

// reachable returns the local pod with an address, if other pods may reach it on the fast path.
func (n *Node) reachable(a netip.Addr) *Pod {
	if p := n.local(a); p != nil && !p.Limited {
		return p
	}
	return nil
}

// attached reports whether packets may go to the pod of a slot on the fast path.
func (n *Node) attached(slot int) bool {
	for _, p := range n.Pods {
		if p.Slot == slot {
			return !p.Limited
		}
	}
	return false
}

func (n *Node) isOwn(a netip.Addr) bool {
	for _, own := range n.Own {
		if own == a {
			return true
		}
	}
	return false
}

// isHere reports whether an address belongs to this node or one of its pods.
func (n *Node) isHere(a netip.Addr) bool {
	for _, r := range n.Ranges {
		if r.Contains(a) {
			return true
		}
	}
	return n.isOwn(a) || n.local(a) != nil
}

func (n *Node) route(a netip.Addr) *NodeRoute {
	for i := range n.Routes {
		if n.Routes[i].Range.Contains(a) {
			return &n.Routes[i]
		}
	}
	return nil
}

// allows evaluates the policy of a pod for a remote end.
func (n *Node) allows(p *Pod, dir Direction, remote netip.Addr, proto uint8, port uint16) bool {
	if p.has(remote) {
		return true // a pod always reaches itself
	}
	if !HasPorts(proto) {
		port = 0
	}
	return p.Policy.Allows(dir, n.Party(remote), proto, port)
}

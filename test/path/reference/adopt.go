// SPDX-License-Identifier: Apache-2.0

package reference

import "net/netip"

// The map layouts that Adopt can copy flows from.
const (
	// WithoutBackends is layout v1, which does not store the backend of a translated flow.
	WithoutBackends = 1
	// WithBackends is layout v2, which does not distinguish processes of the node from other clients.
	WithBackends = 2
	// WithClients is layout v3, which also stores the clients that the node masquerades, without their ports.
	WithClients = 3
)

// never is an epoch that no pod has, noSlot a slot that no pod has.
const never, noSlot = -1, -1

// Adopt copies the flows of the previous layout into a new one: the next packet of each
// revalidates it (ADR 31). Flows without a pod of this node are not copied.
func (n *Node) Adopt(layout int) {
	was := n.flows
	n.flows, n.created = make(map[Key]*flow), nil
	for k, f := range was {
		pod, remote := n.local(k.end[0].Addr()), k.end[1].Addr()
		if pod == nil {
			pod, remote = n.local(k.end[1].Addr()), k.end[0].Addr()
		}
		if pod == nil || n.now-f.seen > n.limit(f, k.proto) {
			continue
		}
		now := &flow{seen: f.seen, state: f.state, sent: f.sent, direct: f.direct, device: [2]int{noDevice, noDevice}, owner: pod.Slot}
		now.outside = !n.isPod(remote)
		now.slots = [2]int{n.slot(k.end[0].Addr()), n.slot(k.end[1].Addr())}
		for end, had := range f.authorised {
			had.epoch = never
			had.ofHost = had.ofHost && layout >= WithClients
			now.authorised[end] = had
		}
		if layout >= WithBackends && f.translated {
			now.translated, now.backend = true, f.backend
		}
		if layout >= WithClients && f.client.IsValid() {
			now.client = netip.AddrPortFrom(f.client.Addr(), 0)
		}
		n.flows[k] = now
	}
}

// slot returns the slot of the pod of this node that has an address, or noSlot.
func (n *Node) slot(addr netip.Addr) int {
	if pod := n.local(addr); pod != nil {
		return pod.Slot
	}
	return noSlot
}

// SPDX-License-Identifier: Apache-2.0

package reference

import "net/netip"

// Fate is the result of a program for a packet.
type Fate int

// The fates.
const (
	Dropped Fate = iota
	// ToStack continues in the host stack, or from there into the pod.
	ToStack
	// ToPod is redirected into the interface of another pod of this node, on the fast path.
	ToPod
	// ToNode is sent to another node on the fast path.
	ToNode
)

// String returns the fate as one word.
func (f Fate) String() string { return [...]string{"dropped", "stack", "pod", "node"}[f] }

// Verdict is the required result for a packet.
type Verdict struct {
	Fate Fate
	// Pod is the receiver of ToPod.
	Pod *Pod
	// Record is the number of the packet's record, from 1; 0 means that policy already allows the packet.
	Record int
	// Why explains the verdict in messages.
	Why string
}

func drop(why string) Verdict { return Verdict{Fate: Dropped, Why: why} }

// record describes a packet whose destination the stack may translate. The verdict follows after DNAT.
type record struct {
	pod      *Pod
	epoch    int // of the pod; 0 for a packet to itself, which policy does not decide
	packet   Packet
	src, dst netip.AddrPort
	answer   bool // policy allows it, unless the stack translates it
	opens    bool // it opens a connection that policy decides after translation
}

// Records is the number of places for records. They are used in turn.
const Records = 65536

// SkipRecords writes records of other packets, so that the next one takes the place of the last one.
func (n *Node) SkipRecords() { n.written += Records - 1 }

// leave writes a record of the packet, so that policy decides after DNAT.
func (n *Node) leave(w *walk, answer bool) Verdict {
	if f := n.find(w.k); f != nil && f.portTaken && !answer && w.packet.Opens() && n.Track != nil {
		n.Track(w.src, f.backend)
	}
	n.written++
	n.replaced = n.records[n.written-Records]
	delete(n.records, n.written-Records) // its place is taken
	epoch := w.pod.Epoch
	if w.packet.Src == w.packet.Dst {
		epoch = 0
	}
	n.records[n.written] = &record{w.pod, epoch, *w.packet, w.src, w.dst, answer, w.packet.Opens() && !answer}
	return Verdict{Fate: ToStack, Record: n.written, Why: "decided after translation"}
}

// KeepRecord takes the last record back, because its packet names an earlier one. It reports whether the packet may:
// nothing decides another way by the earlier record, and it stays for as long as the next half of the places.
func (n *Node) KeepRecord(earlier int) bool {
	was, now := n.records[earlier], n.records[n.written]
	if was == nil || n.written-earlier > Records/2 || was.pod.Slot != now.pod.Slot || was.epoch != now.epoch || was.src != now.src || was.dst != now.dst ||
		was.packet.follows() != now.packet.follows() || was.opens != now.opens || was.answer != now.answer {
		return false
	}
	delete(n.records, n.written)
	if n.replaced != nil {
		n.records[n.written-Records] = n.replaced
	}
	n.written--
	return true
}

// walk is the evaluation of one packet by one program of a pod.
type walk struct {
	pod      *Pod
	packet   *Packet
	dir      Direction // Egress: the pod sends it
	src, dst netip.AddrPort
	k        Key
	from     int
	// For a packet to the pod: the device on which it arrived, and its sender.
	device int
	sender *Sender
	host   bool
	// exchanged is true if the stack replaced the source address.
	exchanged bool
	client    netip.AddrPort // the original client, if the packet was masqueraded
	asked     bool
}

// end returns the pod's own end of the flow.
func (w *walk) end() int {
	if w.dir == Egress {
		return w.from
	}
	return 1 - w.from
}

// translatable reports whether kube-proxy translates packets of this protocol.
func (w *walk) translatable() bool { return HasPorts(w.packet.Proto) }

// evaluate reports whether the policy of the pod allows the flow that the packet opens.
func (n *Node) evaluate(w *walk) bool {
	switch {
	case w.asked:
		return true
	case w.dir == Egress:
		return n.allows(w.pod, Egress, w.dst.Addr(), w.packet.Proto, w.dst.Port())
	case w.host:
		return true
	case w.client.IsValid():
		return n.allows(w.pod, Ingress, w.client.Addr(), w.packet.Proto, w.dst.Port())
	}
	return n.allows(w.pod, Ingress, w.src.Addr(), w.packet.Proto, w.dst.Port())
}

// stillAllowed evaluates policy again for an authorisation that the pod has at an end of a flow.
func (n *Node) stillAllowed(pod *Pod, f *flow, k Key, end int, opened bool) bool {
	r, own, remote := f.authorised[end], k.end[end], k.end[1-end]
	switch {
	case opened && f.translated:
		return n.allows(pod, Egress, f.backend.Addr(), k.proto, f.backend.Port())
	case opened:
		return n.allows(pod, Egress, remote.Addr(), k.proto, remote.Port())
	case r.ofHost:
		return true
	case f.client.IsValid():
		return n.allows(pod, Ingress, f.client.Addr(), k.proto, own.Port())
	}
	return n.allows(pod, Ingress, remote.Addr(), k.proto, own.Port())
}

// revalidate evaluates the authorisations of an end again after a policy change. It removes those that policy no
// longer allows.
func (n *Node) revalidate(pod *Pod, f *flow, k Key, end int) bool {
	had := f.authorised[end]
	kept := authorisation{epoch: pod.Epoch}
	kept.opened = had.opened && n.stillAllowed(pod, f, k, end, true)
	if had.accepted && n.stillAllowed(pod, f, k, end, false) {
		kept.accepted, kept.ofHost = true, had.ofHost
	}
	if pod.Limited {
		f.bypassEnds()
	}
	if !kept.any() {
		kept = had
		kept.revoked, kept.epoch = true, pod.Epoch
	}
	f.authorised[end] = kept
	return !kept.revoked
}

func (f *flow) bypassEnds() { f.direct, f.remote = false, false }

// authorise evaluates policy for a new authorisation of the pod in a known flow, and records it.
func (n *Node) authorise(w *walk, f *flow) bool {
	if !n.evaluate(w) {
		return false
	}
	had := f.authorised[w.end()]
	now := authorisation{epoch: w.pod.Epoch}
	if had.epoch == w.pod.Epoch && !had.revoked {
		now.opened = had.opened
		if w.dir == Egress {
			now.accepted, now.ofHost = had.accepted, had.ofHost
		}
	}
	if w.dir == Egress {
		now.opened = true
	} else {
		now.accepted, now.ofHost = true, w.host
	}
	if w.pod.Limited {
		f.bypassEnds()
	}
	f.authorised[w.end()] = now
	return true
}

// allowKnown reports whether the pod may send or receive a packet of a known flow.
func (n *Node) allowKnown(w *walk, f *flow) bool {
	r := f.authorised[w.end()]
	current := r.epoch == w.pod.Epoch
	if w.packet.Opens() {
		wanted := r.opened
		if w.dir == Ingress {
			wanted = r.accepted
		}
		if wanted && !r.revoked && current {
			return true
		}
		return n.authorise(w, f)
	}
	if !r.any() {
		return n.authorise(w, f)
	}
	if !current {
		return n.revalidate(w.pod, f, w.k, w.end())
	}
	return !r.revoked
}

// allowPeer decides for the pod at the other end of a flow on the fast path.
func (n *Node) allowPeer(w *walk, f *flow) Verdict {
	end := 1 - w.from
	peer := n.reachable(w.dst.Addr())
	if peer == nil {
		f.bypassEnds()
		return Verdict{Fate: ToStack, Why: "no pod here has the address any more"}
	}
	other := *w
	other.pod, other.dir, other.asked = peer, Ingress, false
	r := f.authorised[end]
	if f.slots[end] == peer.Slot && r.epoch == peer.Epoch && r.holds() && (!w.packet.Opens() || r.accepted) {
		return Verdict{Fate: ToPod, Pod: peer, Why: "known flow"}
	}
	f.slots[end] = peer.Slot
	if !n.allowKnown(&other, f) {
		return drop("the receiver's policy")
	}
	return Verdict{Fate: ToPod, Pod: peer, Why: "known flow, allowed again"}
}

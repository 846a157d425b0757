// SPDX-License-Identifier: Apache-2.0

package reference

import "net/netip"

// Fate is what becomes of a packet at a program.
type Fate int

// The fates.
const (
	Dropped Fate = iota
	// ToStack goes on to the network stack, or from there into the pod.
	ToStack
	// ToPod goes into the interface of another pod of this node, bypassing the stack.
	ToPod
	// ToNode is sent to another node bypassing the stack.
	ToNode
)

// String returns a word.
func (f Fate) String() string { return [...]string{"dropped", "stack", "pod", "node"}[f] }

// Verdict is what has to become of a packet.
type Verdict struct {
	Fate Fate
	// Pod is the receiver of ToPod.
	Pod *Pod
	// Record is the number of the record that was left of it, from 1; 0 is approved.
	Record int
	// Why is for people.
	Why string
}

func drop(why string) Verdict { return Verdict{Fate: Dropped, Why: why} }

// record is what is kept of a packet to an address that the stack may translate.
type record struct {
	pod      *Pod
	packet   Packet
	src, dst netip.AddrPort
	answer   bool
}

// leave makes a record: its packet is decided after translation.
func (n *Node) leave(w *walk, answer bool) Verdict {
	n.written++
	n.records[n.written] = &record{w.pod, *w.packet, w.src, w.dst, answer}
	return Verdict{Fate: ToStack, Record: n.written, Why: "decided after translation"}
}

// walk is one packet at one program of a pod.
type walk struct {
	pod      *Pod
	packet   *Packet
	dir      Direction // Egress: the pod sends it
	src, dst netip.AddrPort
	k        Key
	from     int
	// Of a packet to the pod: by which device, and who sends it.
	device int
	sender *Sender
	host   bool
	client netip.Addr // a masqueraded one
	asked  bool
}

// end is the pod's own end of the flow.
func (w *walk) end() int {
	if w.dir == Egress {
		return w.from
	}
	return 1 - w.from
}

// translatable reports whether kube-proxy translates its protocol.
func (w *walk) translatable() bool { return HasPorts(w.packet.Proto) }

// judge asks whether the pod may have the flow that the packet opens.
func (n *Node) judge(w *walk) bool {
	switch {
	case w.asked:
		return true
	case w.dir == Egress:
		return n.says(w.pod, Egress, w.dst.Addr(), w.packet.Proto, w.dst.Port())
	case w.host:
		return true
	case w.client.IsValid():
		return n.says(w.pod, Ingress, w.client, w.packet.Proto, w.dst.Port())
	}
	return n.says(w.pod, Ingress, w.src.Addr(), w.packet.Proto, w.dst.Port())
}

// again asks about a role that a pod was granted before, at end of the flow.
func (n *Node) again(pod *Pod, f *flow, k Key, end int, opened bool) bool {
	r, own, remote := f.roles[end], k.end[end], k.end[1-end]
	switch {
	case opened && f.translated:
		return n.says(pod, Egress, f.backend.Addr(), k.proto, f.backend.Port())
	case opened:
		return n.says(pod, Egress, remote.Addr(), k.proto, remote.Port())
	case r.ofHost:
		return true
	case f.client.IsValid():
		return n.says(pod, Ingress, f.client, k.proto, own.Port())
	}
	return n.says(pod, Ingress, remote.Addr(), k.proto, own.Port())
}

// confirm revalidates the authorisations of an end from before a policy change.
func (n *Node) confirm(pod *Pod, f *flow, k Key, end int) bool {
	had := f.roles[end]
	kept := role{epoch: pod.Epoch}
	kept.opened = had.opened && n.again(pod, f, k, end, true)
	if had.accepted && n.again(pod, f, k, end, false) {
		kept.accepted, kept.ofHost = true, had.ofHost
	}
	if pod.Limited {
		f.bypassEnds()
	}
	if !kept.any() {
		kept = had
		kept.revoked, kept.epoch = true, pod.Epoch
	}
	f.roles[end] = kept
	return !kept.revoked
}

func (f *flow) bypassEnds() { f.direct, f.remote = false, false }

// grant gives the pod a new role in a known flow.
func (n *Node) grant(w *walk, f *flow) bool {
	if !n.judge(w) {
		return false
	}
	had := f.roles[w.end()]
	now := role{epoch: w.pod.Epoch}
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
	f.roles[w.end()] = now
	return true
}

// admit decides whether the pod may send or receive a packet of a known flow.
func (n *Node) admit(w *walk, f *flow) bool {
	r := f.roles[w.end()]
	current := r.epoch == w.pod.Epoch
	if w.packet.Opens() {
		wanted := r.opened
		if w.dir == Ingress {
			wanted = r.accepted
		}
		if wanted && !r.revoked && current {
			return true
		}
		return n.grant(w, f)
	}
	if !r.any() {
		return n.grant(w, f)
	}
	if !current {
		return n.confirm(w.pod, f, w.k, w.end())
	}
	return !r.revoked
}

// admitPeer decides for the pod at the other end of a flow bypassing the stack.
func (n *Node) admitPeer(w *walk, f *flow) Verdict {
	end := 1 - w.from
	peer := n.reachable(w.dst.Addr())
	if peer == nil {
		f.bypassEnds()
		return Verdict{Fate: ToStack, Why: "no pod here has the address any more"}
	}
	other := *w
	other.pod, other.dir, other.asked = peer, Ingress, false
	r := f.roles[end]
	if f.slots[end] == peer.Slot && r.epoch == peer.Epoch && r.holds() && (!w.packet.Opens() || r.accepted) {
		return Verdict{Fate: ToPod, Pod: peer, Why: "known flow"}
	}
	f.slots[end] = peer.Slot
	if !n.admit(&other, f) {
		return drop("the receiver's policy")
	}
	return Verdict{Fate: ToPod, Pod: peer, Why: "known flow, allowed again"}
}

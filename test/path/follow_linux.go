// SPDX-License-Identifier: Apache-2.0

package path

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/isthmus-net/isthmus/linux/loader"
	"github.com/isthmus-net/isthmus/test/path/reference"
)

// send follows a packet from its entry until it is delivered, leaves the node or is dropped.
func (r *Runner) send(s *Step) error {
	p := *s.Packet
	switch s.At {
	case "uplink", "wire":
		return r.sendFromNode(s, &p, uplink)
	case "tunnel":
		return r.sendFromNode(s, &p, tunnel)
	case "host":
		return r.sendFromHost(s, &p)
	}
	return r.sendFromPod(s, &p)
}

func (r *Runner) sendFromPod(s *Step, p *reference.Packet) error {
	device := deviceOf(s.At)
	want := r.node.FromPod(device, p)
	out, err := r.run(loader.AtFromPod, device, 0, 0, p, macOf(s.At)) // the pod may have been removed
	if err != nil {
		return err
	}
	if err := r.compare("from_pod", out, want, p); err != nil || want.Fate != reference.ToStack {
		return err
	}
	mark, record := out.Mark, want.Record
	if record > 0 {
		if record, err = r.recordOf(mark, want, p); err != nil {
			return err
		}
		r.marks = append(r.marks, left{mark, record})
	}
	switch {
	case s.Mark == "none":
		mark, record = 0, reference.NoMark
	case s.Mark == "old" && len(r.marks) > 1:
		old := r.marks[len(r.marks)-2]
		mark, record = old.mark, old.record
	}
	return r.inStack(s, device, p, mark, record)
}

// recordOf returns the record that a mark names: the new one, or an earlier one.
func (r *Runner) recordOf(mark uint32, want reference.Verdict, p *reference.Packet) (int, error) {
	at := slices.IndexFunc(r.marks, func(l left) bool { return l.mark == mark })
	if at < 0 {
		return want.Record, nil
	}
	earlier := r.marks[at].record
	if !r.node.KeepRecord(earlier) {
		return 0, r.fail("record", "from_pod", fmt.Sprintf("mark of record %d of %d", earlier, want.Record), want, p)
	}
	return earlier, nil
}

// sendFromHost delivers a packet of a process of this node, which the stack may translate and masquerade.
func (r *Runner) sendFromHost(s *Step, p *reference.Packet) error {
	if routed(p) && !p.IsError() {
		var t *translation
		var err error
		if p, t, err = r.translate(s, p); err != nil {
			return err
		}
		if t != nil && t.src.IsValid() {
			p.Src, p.Sport = t.src.Addr(), t.src.Port()
		}
	}
	return r.toPod(reference.Host, p)
}

func (r *Runner) sendFromNode(s *Step, p *reference.Packet, device int) error {
	if device == uplink {
		want := r.node.Uplink(p)
		r.buf = frame(r.buf, p, outerMAC, hostMAC)
		passed, err := r.uplink.RunPieces(r.buf, r.firstPiece(p))
		if err != nil {
			return err
		}
		if err := r.compare("uplink", loader.Outcome{Passed: passed}, want, p); err != nil || want.Fate == reference.Dropped {
			return err
		}
	}
	if p.Tags > 0 || s.At == "wire" {
		return nil // for another device, or none
	}
	want := r.node.FromNode(device, p)
	out, err := r.run(loader.AtFromNode, device, device, 0, p, outerMAC)
	if err != nil {
		return err
	}
	if err := r.compare("from_node", out, want, p); err != nil || want.Fate != reference.ToStack {
		return err
	}
	return r.inStack(s, device, p, 0, notOurs)
}

// firstPiece returns the number of bytes in the first buffer of the frame.
func (r *Runner) firstPiece(p *reference.Packet) int {
	if p.Piece == 0 {
		return len(r.buf)
	}
	return min(len(r.buf), 14+4*p.Tags+p.Piece)
}

// notOurs is the record number of a packet that no pod sent.
const notOurs = -2

// inStack follows a packet that a program passed to the stack, which reassembles fragments, translates, and
// routes. Programs at its hooks decide in between. record is the number of the record that from_pod wrote.
func (r *Runner) inStack(s *Step, device int, p *reference.Packet, mark uint32, record int) error {
	if !routed(p) {
		return nil // a packet of the host
	}
	parts := []reference.Packet{*p}
	if s.Defragment && p.Fragment != reference.Whole {
		d := r.gather(p, device, mark, record)
		if d == nil {
			return nil // it waits for the other fragments
		}
		p, device, mark, record, parts = d.whole(), d.device, d.mark, d.record, d.parts
	}
	if s.Copied {
		if _, err := r.decide(loader.AtLocalOut, "local_out", device, p, mark, record); err != nil {
			return err
		}
	}
	if passed, err := r.decide(loader.AtPreRouting, "pre_routing", device, p, mark, record); err != nil || !passed {
		return err
	}
	was := *p
	p, t, err := r.translate(s, p)
	if err != nil {
		return err
	}
	hook, name := loader.AtForward, "forward"
	switch {
	case t != nil && t.ipvs: // IPVS receives the packet on LOCAL_IN, and sends it on LOCAL_OUT
		passed, err := r.decide(loader.AtLocalIn, "local_in", device, &was, mark, record)
		if err != nil {
			return err
		}
		if !passed {
			return r.untrack(t)
		}
		hook, name = loader.AtLocalOut, "local_out"
	case r.isNode(p.Dst) && !p.V6() && p.Fragment != reference.Whole:
		return nil // the stack reassembles IPv4 before LOCAL_IN
	case r.isNode(p.Dst):
		hook, name = loader.AtLocalIn, "local_in"
	case s.Raised:
		p.Hops = 255
	default:
		p.Hops = p.HopLimit() - 1
	}
	passed, err := r.decide(hook, name, device, p, mark, record)
	if err != nil {
		return err
	}
	if !passed {
		return r.untrack(t)
	}
	return r.route(device, p, t, parts)
}

// untrack removes the flow of a dropped first packet, as connection tracking does.
func (r *Runner) untrack(t *translation) error {
	if t == nil || t.fresh == nil {
		return nil
	}
	return r.track.forget(t.fresh)
}

// decide runs the program of a hook in the stack, and returns whether the packet passes.
func (r *Runner) decide(h loader.Hook, name string, device int, p *reference.Packet, mark uint32, record int) (bool, error) {
	var want reference.Verdict
	switch {
	case h == loader.AtPreRouting:
		want = r.node.PreRouting(device, p)
	case record != notOurs && r.node.Pods[device] != nil: // the pod may have been removed since the first fragment
		want = r.node.AfterDNAT(device, p, record)
	case h == loader.AtForward:
		want = r.node.Forward(device, p)
	case h == loader.AtLocalIn:
		want = r.node.LocalIn(device, p)
	default:
		want = r.node.LocalOut(device, p)
	}
	out, err := r.run(h, device, device, mark, p, hostMAC)
	if err != nil {
		return false, err
	}
	return want.Fate == reference.ToStack, r.compare(name, out, want, p)
}

// isNode reports whether the stack receives packets to an address.
func (r *Runner) isNode(a netip.Addr) bool {
	return slices.Contains(nodeAddrs, a) || slices.Contains(broadcasts, a)
}

// routed reports whether the stack routes a packet: it is IP, well-formed and may leave the link.
func routed(p *reference.Packet) bool {
	return p.Ether == "" && p.Version == 0 && !p.Lengthless && (p.Cut == 0 && p.Claims == 0 || p.Cut == p.Claims &&
		p.Fragment == reference.Whole) && p.HopLimit() > 1 &&
		!p.Dst.IsMulticast() && !p.Dst.IsLinkLocalUnicast() && !p.Src.IsLinkLocalUnicast() && !p.Src.IsUnspecified()
}

// route delivers a packet that passed the stack, in its original fragments. t is its translation, or nil.
func (r *Runner) route(device int, p *reference.Packet, t *translation, parts []reference.Packet) error {
	if r.isNode(p.Dst) {
		return nil // the packet is delivered
	}
	if t != nil && t.src.IsValid() { // SNAT is the last step
		p.Src, p.Sport = t.src.Addr(), t.src.Port()
	}
	for _, part := range parts {
		part.Src, part.Dst, part.Sport, part.Dport, part.Hops, part.Quote = p.Src, p.Dst, p.Sport, p.Dport, p.Hops, p.Quote
		if err := r.toPod(device, &part); err != nil {
			return err
		}
	}
	return nil
}

// toPod delivers a packet to the pod with its destination address, if the pod is on this node.
func (r *Runner) toPod(device int, p *reference.Packet) error {
	for _, pod := range r.node.Pods {
		for _, a := range pod.Addrs {
			if a != p.Dst {
				continue
			}
			want := r.node.ToPod(pod, device, p, r.sender)
			out, err := r.run(loader.AtToPod, pod.Device, device, 0, p, hostMAC)
			if err != nil {
				return err
			}
			return r.compare("to_pod", out, want, p)
		}
	}
	return nil
}

// translation is the NAT of a packet that connection tracking knows.
type translation struct {
	src   netip.AddrPort
	fresh *tracked // set for the first packet
	ipvs  bool     // to the backend
}

// translate applies DNAT to a packet, as the stack does before routing. The translation that it returns has the
// new source, if there is one.
func (r *Runner) translate(s *Step, p *reference.Packet) (*reference.Packet, *translation, error) {
	if p.IsError() {
		p, t := r.translateError(p)
		return p, t, nil
	}
	if !reference.HasPorts(p.Proto) || p.Fragment != reference.Whole {
		return p, nil, nil
	}
	src, dst := p.Ends()
	if t := r.track.answered(src, dst, p.Proto); t != nil {
		p.Dst, p.Dport = t.src.Addr(), t.src.Port()
		return p, &translation{src: t.dst}, nil
	}
	fresh := false
	t := r.track.sent(src, dst, p.Proto)
	if t != nil && s.Fresh && s.Backend.IsValid() {
		if err := r.track.forget(t); err != nil {
			return p, nil, err
		}
		t = nil
	}
	if t == nil && !s.Backend.IsValid() && r.track.taken(dst, src, p.Proto) {
		s.Backend = dst // the stack replaces the source port only
	}
	if t == nil && s.Backend.IsValid() && s.Backend.Addr().Is6() == p.V6() {
		t = &tracked{src: src, dst: dst, from: src, to: s.Backend, proto: p.Proto, ipvs: s.IPVS}
		if s.Masquerade > 0 {
			own := nodeAddrs[:2]
			if s.Gateway {
				own = nodeAddrs[2:]
			}
			t.from = netip.AddrPortFrom(same(own, p.V6()), s.Masquerade)
		}
		r.track.otherPort(t)
		if ok, err := r.track.add(t); err != nil || !ok {
			return p, nil, err
		}
		fresh = true
	}
	if t == nil {
		return p, nil, nil
	}
	p.Dst, p.Dport = t.to.Addr(), t.to.Port()
	now := &translation{src: t.from, ipvs: t.ipvs}
	if fresh {
		now.fresh = t
	}
	return p, now, nil
}

// sender returns, according to connection tracking, the sender of a packet to a pod, whose ends are src and dst. It
// looks up answers of the pod, and packets that an error quotes.
func (r *Runner) sender(p *reference.Packet, src, dst netip.AddrPort) *reference.Sender {
	src, dst = dst, src
	proto := p.Proto
	if p.IsError() && p.Quote != nil {
		if !p.Quotes() {
			return nil
		}
		src, dst = p.Quote.Ends()
		proto = p.Quote.Proto
	}
	if proto != reference.TCP && proto != reference.UDP {
		return nil
	}
	if t := r.track.sent(src, dst, proto); t != nil {
		return &reference.Sender{From: t.to}
	}
	if t := r.track.answered(src, dst, proto); t != nil {
		return &reference.Sender{From: t.src, Reached: true}
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package path

import (
	"net/netip"

	"github.com/isthmus-net/isthmus/linux/loader"
	"github.com/isthmus-net/isthmus/test/path/reference"
)

// send follows a packet from where it enters until it is delivered, has left or is dropped.
func (r *Runner) send(s *Step) error {
	p := *s.Packet
	switch s.At {
	case "uplink":
		return r.sendFromNode(s, &p, uplink)
	case "tunnel":
		return r.sendFromNode(s, &p, tunnel)
	case "host":
		return r.toPod(reference.Host, &p, nil)
	}
	return r.sendFromPod(s, &p)
}

func (r *Runner) sendFromPod(s *Step, p *reference.Packet) error {
	device := deviceOf(s.At)
	pod := r.node.Pods[device]
	if pod == nil {
		return nil // it is gone
	}
	want := r.node.FromPod(device, p)
	out, err := r.run(loader.AtFromPod, device, 0, 0, p, pod.MAC)
	if err != nil {
		return err
	}
	if err := r.compare("from_pod", out, want, p); err != nil || want.Fate != reference.ToStack {
		return err
	}
	mark, record := out.Mark, want.Record
	if record > 0 {
		r.marks = append(r.marks, left{mark, record})
	}
	switch {
	case s.Mark == "none":
		mark, record = 0, -1
	case s.Mark == "old" && len(r.marks) > 1:
		old := r.marks[len(r.marks)-2]
		mark, record = old.mark, old.record
	}
	if !routed(p) {
		return nil // the host's own
	}
	hook, t, err := r.translate(s, p)
	if err != nil {
		return err
	}
	if r.reassembled(hook) {
		return nil
	}
	r.atStack(hook)
	want = r.node.Behind(device, hook, record)
	return r.behind(device, hook, mark, want, t)
}

func (r *Runner) sendFromNode(s *Step, p *reference.Packet, device int) error {
	if device == uplink {
		want := r.node.Uplink(p)
		r.buf = frame(r.buf, p, outerMAC, hostMAC)
		passed, err := r.uplink.Run(r.buf)
		if err != nil {
			return err
		}
		if err := r.compare("uplink", loader.Outcome{Passed: passed}, want, p); err != nil || want.Fate == reference.Dropped {
			return err
		}
	}
	if p.Ether == "vlan" {
		return nil // for another device
	}
	want := r.node.FromNode(device, p)
	out, err := r.run(loader.AtFromNode, device, device, 0, p, outerMAC)
	if err != nil {
		return err
	}
	if err := r.compare("from_node", out, want, p); err != nil || want.Fate != reference.ToStack || !routed(p) {
		return err
	}
	hook, t, err := r.translate(s, p)
	if err != nil {
		return err
	}
	if r.reassembled(hook) {
		return nil
	}
	r.atStack(hook)
	if r.isNode(hook.Dst) {
		want = r.node.LocalIn(device, hook)
	} else {
		want = r.node.Forward(device, hook)
	}
	return r.behind(device, hook, 0, want, t)
}

// reassembled reports whether the stack waits for the rest of a packet: it puts IPv4
// together before LOCAL_IN.
func (r *Runner) reassembled(p *reference.Packet) bool {
	return r.isNode(p.Dst) && !p.V6() && p.Fragment != reference.Whole
}

// behind runs the program of the hook that the packet gets to, and routes what passes.
func (r *Runner) behind(device int, p *reference.Packet, mark uint32, want reference.Verdict, t *translation) error {
	hook, name := loader.AtForward, "forward"
	if r.isNode(p.Dst) {
		hook, name = loader.AtLocalIn, "local_in"
	}
	out, err := r.run(hook, device, device, mark, p, hostMAC)
	if err != nil {
		return err
	}
	if err := r.compare(name, out, want, p); err != nil {
		return err
	}
	if want.Fate == reference.ToStack {
		return r.route(device, p, t)
	}
	if t != nil && t.fresh != nil { // connection tracking forgets what is dropped
		return r.track.forget(t.fresh)
	}
	return nil
}

func (r *Runner) isNode(a netip.Addr) bool {
	for _, own := range nodeAddrs {
		if a == own {
			return true
		}
	}
	return false
}

// routed reports whether the stack looks for a route for a packet: it is IP, well-formed
// and may leave the link.
func routed(p *reference.Packet) bool {
	return p.Ether == "" && p.Cut == 0 && p.Claims == 0 && p.HopLimit() > 1 &&
		!p.Dst.IsMulticast() && !p.Dst.IsLinkLocalUnicast() && !p.Src.IsLinkLocalUnicast() && !p.Src.IsUnspecified()
}

// atStack takes the hop of a packet that the stack forwards.
func (r *Runner) atStack(p *reference.Packet) {
	if !r.isNode(p.Dst) {
		p.Hops = p.HopLimit() - 1
	}
}

// route delivers a packet that passed the stack. t is what translates it.
func (r *Runner) route(device int, p *reference.Packet, t *translation) error {
	if r.isNode(p.Dst) {
		return nil // it is there
	}
	if t != nil && t.src.IsValid() { // sources are exchanged last
		p.Src, p.Sport = t.src.Addr(), t.src.Port()
	}
	return r.toPod(device, p, r.sender(p))
}

// toPod hands a packet to the pod that has its destination, if it is on the node.
func (r *Runner) toPod(device int, p *reference.Packet, sender *reference.Sender) error {
	for _, pod := range r.node.Pods {
		for _, a := range pod.Addrs {
			if a != p.Dst {
				continue
			}
			want := r.node.ToPod(pod, device, p, sender)
			out, err := r.run(loader.AtToPod, pod.Device, device, 0, p, hostMAC)
			if err != nil {
				return err
			}
			return r.compare("to_pod", out, want, p)
		}
	}
	return nil
}

// translation is what the stack does to a packet that connection tracking knows.
type translation struct {
	src   netip.AddrPort
	fresh *tracked // of the first packet
}

// translate exchanges the destination of a packet, as the stack does before its route is
// looked for, and says what the source will be.
func (r *Runner) translate(s *Step, p *reference.Packet) (*reference.Packet, *translation, error) {
	if (p.Proto != reference.TCP && p.Proto != reference.UDP) || p.Fragment != reference.Whole || p.Inner != nil {
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
	if t == nil && s.Backend.IsValid() && s.Backend.Addr().Is6() == p.V6() && !r.node.IsPodAddress(p.Dst) {
		t = &tracked{src: src, dst: dst, from: src, to: s.Backend, proto: p.Proto}
		if s.Masquerade > 0 {
			t.from, t.masquerading = netip.AddrPortFrom(same(nodeAddrs, p.V6()), s.Masquerade), true
		}
		if ok, err := r.track.add(t); err != nil || !ok {
			return p, nil, err
		}
		fresh = true
	}
	if t == nil {
		return p, nil, nil
	}
	p.Dst, p.Dport = t.to.Addr(), t.to.Port()
	now := &translation{src: t.from}
	if fresh {
		now.fresh = t
	}
	return p, now, nil
}

// sender is what connection tracking says of who sends a packet to a pod: it is asked for
// what the pod answers, or what an error quotes.
func (r *Runner) sender(p *reference.Packet) *reference.Sender {
	src, dst := p.Ends()
	src, dst = dst, src
	proto := p.Proto
	if p.IsError() && p.Quote != nil {
		src, dst = p.Quote.Ends()
		proto = p.Quote.Proto
	}
	if proto != reference.TCP && proto != reference.UDP {
		return nil
	}
	if t := r.track.sent(src, dst, proto); t != nil {
		return &reference.Sender{Addr: t.to.Addr()}
	}
	if t := r.track.answered(src, dst, proto); t != nil {
		return &reference.Sender{Addr: t.src.Addr(), Reached: true}
	}
	return nil
}

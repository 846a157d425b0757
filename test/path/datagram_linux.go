// SPDX-License-Identifier: Apache-2.0

package path

import (
	"net/netip"

	"github.com/isthmus-net/isthmus/test/path/reference"
)

// datagram is a fragmented datagram that the stack reassembles, because connection tracking needs whole packets.
// It has the mark and the device of the first fragment.
type datagram struct {
	parts  []reference.Packet
	device int
	mark   uint32
	record int
	first  bool // the first fragment is among parts
}

// fragmentKey identifies the fragments of one datagram.
type fragmentKey struct {
	src, dst netip.Addr
	id       uint32
	proto    uint8
}

// gather keeps a fragment. It returns the datagram as soon as it has the first fragment and a later one, which
// represents all later ones.
func (r *Runner) gather(p *reference.Packet, device int, mark uint32, record int) *datagram {
	k := fragmentKey{p.Src, p.Dst, p.ID, p.Proto}
	d := r.waiting[k]
	if d == nil {
		d = &datagram{}
		r.waiting[k] = d
	}
	if p.Fragment == reference.FirstFragment {
		if d.first {
			return nil // a duplicate
		}
		d.first, d.device, d.mark, d.record = true, device, mark, record
		d.parts = append([]reference.Packet{*p}, d.parts...)
	} else {
		d.parts = append(d.parts, *p)
	}
	if !d.first || len(d.parts) < 2 {
		return nil
	}
	delete(r.waiting, k)
	return d
}

// whole returns the datagram as one packet.
func (d *datagram) whole() *reference.Packet {
	p := d.parts[0]
	p.Fragment = reference.Whole
	for _, later := range d.parts[1:] {
		p.Size += later.Size
	}
	return &p
}

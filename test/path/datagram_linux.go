// SPDX-License-Identifier: Apache-2.0

package path

import (
	"net/netip"

	"github.com/isthmus-net/isthmus/test/path/reference"
)

// datagram is a fragmented one that the stack puts together: connection tracking needs
// whole packets. Mark and device are those of the first fragment, wherever the others are from.
type datagram struct {
	parts  []reference.Packet
	device int
	mark   uint32
	record int
	first  bool // is among parts
}

// fragmentKey is what fragments of a datagram have in common.
type fragmentKey struct {
	src, dst netip.Addr
	id       uint32
	proto    uint8
}

// gather keeps a fragment. It returns the datagram when the first fragment and a later one
// are there, which stands for all of them.
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

// whole is the datagram as one packet.
func (d *datagram) whole() *reference.Packet {
	p := d.parts[0]
	p.Fragment = reference.Whole
	for _, later := range d.parts[1:] {
		p.Size += later.Size
	}
	return &p
}

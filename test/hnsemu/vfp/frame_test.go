// SPDX-License-Identifier: Apache-2.0

package vfp_test

import (
	"encoding/binary"
	"net/netip"

	"github.com/isthmus-net/isthmus/common/model"
)

// wire is a packet of a flow on the wire. It has no checksums: the switch reads none.
type wire struct {
	src, dst         netip.Addr
	protocol         uint8
	srcPort, dstPort uint16
	reply            bool
}

func (w wire) back() wire {
	return wire{w.dst, w.src, w.protocol, w.dstPort, w.srcPort, !w.reply}
}

// frame makes an Ethernet frame; the switch sets the MAC addresses.
func (w wire) frame() []byte {
	b := make([]byte, 14, 14+40+20)
	payload := w.payload()
	if w.src.Is4() {
		binary.BigEndian.PutUint16(b[12:], 0x0800)
		ip := make([]byte, 20)
		ip[0], ip[8], ip[9] = 0x45, 64, w.protocol
		binary.BigEndian.PutUint16(ip[2:], uint16(20+len(payload)))
		copy(ip[12:], w.src.AsSlice())
		copy(ip[16:], w.dst.AsSlice())
		return append(append(b, ip...), payload...)
	}
	binary.BigEndian.PutUint16(b[12:], 0x86DD)
	ip := make([]byte, 40)
	ip[0], ip[6], ip[7] = 0x60, w.protocol, 64
	binary.BigEndian.PutUint16(ip[4:], uint16(len(payload)))
	copy(ip[8:], w.src.AsSlice())
	copy(ip[24:], w.dst.AsSlice())
	return append(append(b, ip...), payload...)
}

func (w wire) payload() []byte {
	b := make([]byte, 20)
	switch model.Protocol(w.protocol) {
	case model.ICMP, model.ICMPv6:
		request, reply := byte(8), byte(0)
		if model.Protocol(w.protocol) == model.ICMPv6 {
			request, reply = 128, 129
		}
		b[0] = request
		id := w.srcPort
		if w.reply {
			b[0], id = reply, w.dstPort
		}
		binary.BigEndian.PutUint16(b[4:], id)
	default:
		binary.BigEndian.PutUint16(b, w.srcPort)
		binary.BigEndian.PutUint16(b[2:], w.dstPort)
		b[12] = 0x50
		b[13] = 0x02 // SYN
		if w.reply {
			b[13] = 0x12
		}
	}
	return b
}

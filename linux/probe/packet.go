// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"encoding/binary"
	"net"

	"github.com/isthmus-net/isthmus/common/model"
)

// First returns the first packet of a flow as an Ethernet frame. It is a TCP SYN, an SCTP INIT,
// an ICMP echo request, a datagram, or eight bytes for other protocols. source is the source
// port, or the identifier of an echo request. Checksums are zero, because no program checks
// them.
func First(f model.Flow, source uint16, src, dst net.HardwareAddr) []byte {
	payload := transport(f, source)
	frame := append(append(make([]byte, 0, 96), dst...), src...)
	if f.Src.Is6() {
		frame = append(frame, 0x86, 0xdd)
		frame = append(frame, ip6(f, len(payload))...)
	} else {
		frame = append(frame, 0x08, 0x00)
		frame = append(frame, ip4(f, len(payload))...)
	}
	return append(frame, payload...)
}

func ip4(f model.Flow, payload int) []byte {
	h := make([]byte, 20)
	h[0] = 0x45
	binary.BigEndian.PutUint16(h[2:], uint16(20+payload))
	h[8] = 64
	h[9] = byte(f.Protocol)
	copy(h[12:], f.Src.AsSlice())
	copy(h[16:], f.Dst.AsSlice())
	return h
}

func ip6(f model.Flow, payload int) []byte {
	h := make([]byte, 40)
	h[0] = 0x60
	binary.BigEndian.PutUint16(h[4:], uint16(payload))
	h[6] = byte(f.Protocol)
	h[7] = 64
	copy(h[8:], f.Src.AsSlice())
	copy(h[24:], f.Dst.AsSlice())
	return h
}

func transport(f model.Flow, source uint16) []byte {
	h := make([]byte, 20)
	binary.BigEndian.PutUint16(h, source)
	binary.BigEndian.PutUint16(h[2:], f.Port)
	switch f.Protocol {
	case model.TCP:
		h[12] = 5 << 4
		h[13] = 0x02 // SYN
	case model.UDP:
		binary.BigEndian.PutUint16(h[4:], 8)
		return h[:8]
	case model.SCTP:
		h[12] = 1 // INIT
	case model.ICMP, model.ICMPv6:
		clear(h)
		h[0] = 8 // echo request
		if f.Protocol == model.ICMPv6 {
			h[0] = 128
		}
		binary.BigEndian.PutUint16(h[4:], source)
		return h[:8]
	default:
		clear(h)
		return h[:8]
	}
	return h
}

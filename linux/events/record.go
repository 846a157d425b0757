// SPDX-License-Identifier: Apache-2.0

package events

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/bpfobj"
)

// Record is one event as a program wrote it: struct event of bpf/include/events.h.
type Record struct {
	// Time is the time of CLOCK_MONOTONIC, since an arbitrary start.
	Time time.Duration
	// ID is the counter of the packet.
	ID        int
	Direction model.Direction
	// Src and Dst are zero if the packet was not parsed.
	Src, Dst         netip.Addr
	SrcPort, DstPort uint16
	Protocol         model.Protocol
	// Service is the destination that the pod used, if DNAT changed it to Dst and DstPort.
	Service netip.AddrPort
	// Masquerade is the source with which the host stack replaces Src and SrcPort, if it does.
	Masquerade netip.AddrPort
	// Detail is the type of an ICMP message, or the EtherType of a frame without addresses.
	Detail uint16
	// Slot is bpfobj.NoSlot if the packet belongs to no pod.
	Slot         uint32
	Table, Epoch uint32
	Class        model.PeerClass
}

// Size is the length of a record in bytes.
const Size = 88

// Decode decodes a record as a program wrote it.
func Decode(raw []byte) (Record, error) {
	// The ring returns multiples of eight bytes.
	if len(raw) != Size {
		return Record{}, fmt.Errorf("decode flow event: it has %d bytes, not %d: were the programs loaded by another build?", len(raw), Size)
	}
	word, short := binary.NativeEndian.Uint32, binary.NativeEndian.Uint16
	flags := raw[85]
	r := Record{
		Time: time.Duration(binary.NativeEndian.Uint64(raw)), ID: int(raw[84]), Detail: short(raw[82:]),
		SrcPort: short(raw[40:]), DstPort: short(raw[42:]), Protocol: model.Protocol(raw[44]),
		Slot: word(raw[64:]), Table: word(raw[68:]), Epoch: word(raw[72:]), Class: model.PeerClass(word(raw[76:])),
	}
	if r.ID >= bpfobj.Counters {
		return Record{}, fmt.Errorf("decode flow event: kind %d is not known", r.ID)
	}
	if r.Time < 0 {
		return Record{}, fmt.Errorf("decode flow event: time %d is out of range", r.Time)
	}
	if flags&bpfobj.EventEgress != 0 {
		r.Direction = model.Egress
	}
	v6 := flags&bpfobj.EventV6 != 0
	r.Src, r.Dst = address(raw[8:24], v6), address(raw[24:40], v6)
	if !r.Src.IsValid() || !r.Dst.IsValid() {
		r.Src, r.Dst = netip.Addr{}, netip.Addr{}
	}
	other := netip.AddrPortFrom(address(raw[48:64], v6), short(raw[80:]))
	switch {
	case flags&bpfobj.EventMasqueraded != 0:
		r.Masquerade = other
	case flags&bpfobj.EventTranslated != 0:
		r.Service = other
	}
	return r, nil
}

// address decodes struct ip, which has IPv4 in its last word. A packet that was not parsed has
// only zeros.
func address(raw []byte, v6 bool) netip.Addr {
	if [16]byte(raw) == [16]byte{} {
		return netip.Addr{}
	}
	if v6 {
		return netip.AddrFrom16([16]byte(raw))
	}
	return netip.AddrFrom4([4]byte(raw[12:16]))
}

// Verdict returns the verdict on a new flow; ok is false for drops for other reasons.
func (r Record) Verdict() (v model.Verdict, ok bool) {
	return model.Verdict(r.ID & 1), r.ID < bpfobj.DropNoEndpoint
}

// own returns the address of the pod's end of the flow.
func (r Record) own() netip.Addr {
	if r.Direction == model.Egress {
		return r.Src
	}
	return r.Dst
}

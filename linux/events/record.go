// SPDX-License-Identifier: Apache-2.0

package events

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"
	"unsafe"

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
const Size = int(unsafe.Sizeof(bpfobj.PodEvent{}))

// Decode decodes a record as a program wrote it: a struct event.
func Decode(raw []byte) (Record, error) {
	// The ring returns multiples of eight bytes.
	if len(raw) != Size {
		return Record{}, fmt.Errorf("decode flow event: it has %d bytes, not %d: were the programs loaded by another build?", len(raw), Size)
	}
	// PodEvent has the layout of the struct in C, without implicit padding, and any bytes are
	// valid values of its fields. encoding/binary would use reflection for every event.
	var e bpfobj.PodEvent
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&e)), Size), raw)
	r := Record{
		Time: time.Duration(e.Time), ID: int(e.Id), SrcPort: e.Flow.SrcPort, DstPort: e.Flow.DstPort, Protocol: model.Protocol(e.Flow.Protocol),
		Detail: e.Detail, Slot: e.Slot, Table: e.Table, Epoch: e.Epoch, Class: model.PeerClass(e.Class),
	}
	if r.ID >= bpfobj.Counters {
		return Record{}, fmt.Errorf("decode flow event: kind %d is not known", r.ID)
	}
	if r.Time < 0 {
		return Record{}, fmt.Errorf("decode flow event: time %d is out of range", r.Time)
	}
	if e.Flags&bpfobj.EventEgress != 0 {
		r.Direction = model.Egress
	}
	v6 := e.Flags&bpfobj.EventV6 != 0
	r.Src, r.Dst = address(e.Flow.Src.Word, v6), address(e.Flow.Dst.Word, v6)
	if !r.Src.IsValid() || !r.Dst.IsValid() {
		r.Src, r.Dst = netip.Addr{}, netip.Addr{}
	}
	other := netip.AddrPortFrom(address(e.Service.Word, v6), e.ServicePort)
	switch {
	case e.Flags&bpfobj.EventMasqueraded != 0:
		r.Masquerade = other
	case e.Flags&bpfobj.EventTranslated != 0:
		r.Service = other
	}
	return r, nil
}

// address decodes struct ip: words in network byte order. IPv4 uses the last word. A packet that
// was not parsed has only zeros.
func address(words [4]uint32, v6 bool) netip.Addr {
	if words == [4]uint32{} {
		return netip.Addr{}
	}
	var b [16]byte
	for i, w := range words {
		binary.NativeEndian.PutUint32(b[i*4:], w)
	}
	if v6 {
		return netip.AddrFrom16(b)
	}
	return netip.AddrFrom4([4]byte(b[12:]))
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

// SPDX-License-Identifier: Apache-2.0

package model

import (
	"net/netip"
	"time"
)

// FlowEvent is what became known of one packet: it opened a flow, which a pod's
// policy decided, or it was dropped.
type FlowEvent struct {
	Time time.Time
	// Endpoint and Pod are whose policy was asked, or whose packet it was; empty if
	// that is not known.
	Endpoint  EndpointID
	Pod       PodID
	Direction Direction
	// Verdict is what policy says, unless Drop names another reason.
	Verdict Verdict
	Drop    string
	// Src and Dst are invalid if the packet has no addresses, or was not read so
	// far. Ports are those of TCP, UDP and SCTP, the identifier of ICMP echo, or 0.
	Src, Dst         netip.Addr
	SrcPort, DstPort uint16
	Protocol         Protocol
	// Detail is the type of an ICMP message, or the type of an Ethernet frame
	// without addresses.
	Detail uint16
	// Service is where a pod sent what was translated to Dst; else invalid.
	Service netip.AddrPort
	// Masquerade is the address and port that the node puts in place of Src and
	// SrcPort before the packet reaches the pod; zero if it does not.
	Masquerade netip.AddrPort
	// Cause is why policy says so; nil if the rules in force at that time are not
	// known any more, or not yet.
	Cause *Cause
	// Table, Epoch and Class are by which table, which version of the endpoint's
	// policy and as what class of peers the data path decided.
	Table, Epoch uint32
	Class        PeerClass
}

// Denied reports whether the packet went no further.
func (e *FlowEvent) Denied() bool { return e.Drop != "" || e.Verdict == Deny }

// Remote is the address of the end that is not the pod's own.
func (e *FlowEvent) Remote() netip.Addr {
	if e.Direction == Egress {
		return e.Dst
	}
	return e.Src
}

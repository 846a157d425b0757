// SPDX-License-Identifier: Apache-2.0

package model

import (
	"net/netip"
	"time"
)

// FlowEvent is what the data path reports about one packet. A pod's policy decided the flow that the packet
// opened, or the packet was dropped.
type FlowEvent struct {
	Time time.Time
	// Endpoint and Pod are those whose policy decided, or that sent or received the packet; empty if
	// unknown.
	Endpoint  EndpointID
	Pod       PodID
	Direction Direction
	// Verdict is the verdict of policy, unless Drop names another reason.
	Verdict Verdict
	Drop    DropReason
	// Observed: the packet passed in spite of Verdict and Drop, because the pod is observed.
	Observed bool
	// Src and Dst are invalid if the packet has no addresses, or parsing stopped before them. Ports are
	// those of TCP, UDP and SCTP, the identifier of ICMP echo, or 0.
	Src, Dst         netip.Addr
	SrcPort, DstPort uint16
	Protocol         Protocol
	// Detail is the type of an ICMP message, or the type of an Ethernet frame
	// without addresses. UnknownICMPType is not a type.
	Detail uint16
	// Service is the destination before DNAT to Dst; otherwise invalid.
	Service netip.AddrPort
	// Masquerade is the address and port to which the node masquerades Src and SrcPort before the packet
	// reaches the pod. It is zero without masquerading.
	Masquerade netip.AddrPort
	// Cause is the cause of the verdict. It is nil if the rules of that time are not known any more, or not
	// yet.
	Cause *Cause
	// Table, Epoch and Class are the table, the version of the endpoint's policy and the peer class by
	// which the data path decided.
	Table, Epoch uint32
	Class        PeerClass
}

// UnknownICMPType is the Detail of an ICMP message whose type the data path does not report. Types are below it.
const UnknownICMPType = 256

// Denied reports whether the packet was denied or dropped, or would have been if its pod were not observed.
func (e *FlowEvent) Denied() bool { return e.Drop != NotDropped || e.Verdict == Deny }

// Remote returns the address of the remote end, seen from the pod.
func (e *FlowEvent) Remote() netip.Addr {
	if e.Direction == Egress {
		return e.Dst
	}
	return e.Src
}

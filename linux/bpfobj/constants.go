// SPDX-License-Identifier: Apache-2.0

package bpfobj

import "github.com/isthmus-net/isthmus/common/model"

// The counters of the programs, by enum counter_id and enum outcome in bpf/include/types.h. The
// first four count verdicts on new flows: direction * 2 + verdict. CountUntracked counts allowed
// flows that found the flow table full; the others count drops.
const (
	CountIngressDeny  = int(PodCounterIdCOUNT_INGRESS_DENY)
	CountIngressAllow = int(PodCounterIdCOUNT_INGRESS_ALLOW)
	CountEgressDeny   = int(PodCounterIdCOUNT_EGRESS_DENY)
	CountEgressAllow  = int(PodCounterIdCOUNT_EGRESS_ALLOW)
	DropNoEndpoint    = int(PodOutcomeDROP_NO_ENDPOINT)
	DropNotIP         = int(PodOutcomeDROP_NOT_IP)
	DropMalformed     = int(PodOutcomeDROP_MALFORMED)
	DropSpoofed       = int(PodOutcomeDROP_SPOOFED)
	DropFragment      = int(PodOutcomeDROP_FRAGMENT)
	DropRevoked       = int(PodOutcomeDROP_REVOKED)
	DropNeighbour     = int(PodOutcomeDROP_NEIGHBOUR)
	DropUnmarked      = int(PodOutcomeDROP_UNMARKED)
	DropTunnel        = int(PodOutcomeDROP_TUNNEL)
	DropPortTaken     = int(PodOutcomeDROP_PORT_TAKEN)
	CountUntracked    = int(PodCounterIdCOUNT_UNTRACKED)
	Counters          = int(PodCounterIdCOUNTERS)
)

// DropReasons are the reasons that the counters of drops count, by counter.
var DropReasons = map[int]model.DropReason{
	DropNoEndpoint: model.DropNoEndpoint,
	DropNotIP:      model.DropNotIP,
	DropMalformed:  model.DropMalformed,
	DropSpoofed:    model.DropSpoofed,
	DropFragment:   model.DropFragment,
	DropRevoked:    model.DropRevoked,
	DropNeighbour:  model.DropNeighbour,
	DropUnmarked:   model.DropUnmarked,
	DropTunnel:     model.DropTunnel,
	DropPortTaken:  model.DropPortTaken,
}

// The flags of PodEvent.Flags.
const (
	EventEgress      = uint8(PodEventFlagEVENT_EGRESS)
	EventV6          = uint8(PodEventFlagEVENT_V6)
	EventTranslated  = uint8(PodEventFlagEVENT_TRANSLATED)
	EventMasqueraded = uint8(PodEventFlagEVENT_MASQUERADED)
)

// The keys of the map event_losses: why a program discarded an event.
const (
	EventsLimited = uint32(PodEventLossEVENTS_LIMITED)
	EventsFormer  = uint32(PodEventLossEVENTS_FORMER)
	EventsLost    = uint32(PodEventLossEVENTS_LOST)
)

// Slots is the maximum number of pods on a node. NoSlot is the slot number in records that
// concern no pod.
const (
	Slots  = uint32(PodSlotNumberSLOTS)
	NoSlot = uint32(PodSlotNumberNO_SLOT)
)

// TableObserved is the bit of PodSlot.Table that marks a pod whose policy is observed.
const TableObserved = uint32(PodTableFlagTABLE_OBSERVED)

// PeerPod is the bit of PodPeerClass.Class that marks the address of a pod.
const PeerPod = uint32(PodClassFlagPEER_POD)

// The rows of PodVerdictRow.Row that need no entry in the map rows.
const (
	RowDeny  = uint32(PodRowNumberROW_DENY)
	RowAllow = uint32(PodRowNumberROW_ALLOW)
)

// The roles of PodApproval.Authorised.
const (
	RoleOpened   = uint8(PodRoleROLE_OPENED)
	RoleAccepted = uint8(PodRoleROLE_ACCEPTED)
	RoleOfHost   = uint8(PodRoleROLE_OF_HOST)
	RoleRevoked  = uint8(PodRoleROLE_REVOKED)
)

// The flags of PodConn.FlowFlags.
const (
	ConnDirect      = uint32(PodConnFlagCONN_DIRECT)
	ConnTranslated  = uint32(PodConnFlagCONN_TRANSLATED)
	ConnRemote      = uint32(PodConnFlagCONN_REMOTE)
	ConnMasqueraded = uint32(PodConnFlagCONN_MASQUERADED)
	ConnOutside     = uint32(PodConnFlagCONN_OUTSIDE)
)

// The states of PodConn.State.
const (
	ConnOpening     = uint8(PodConnStateCONN_OPENING)
	ConnEstablished = uint8(PodConnStateCONN_ESTABLISHED)
	ConnClosing     = uint8(PodConnStateCONN_CLOSING)
)

// The owners of PodOwnerEntry.Owner.
const (
	OwnerNode = uint32(PodOwnerOWNER_NODE)
	OwnerPod  = uint32(PodOwnerOWNER_POD)
	// OwnerBroadcast is a flag.
	OwnerBroadcast = uint32(PodOwnerOWNER_BROADCAST)
)

// Interfaces is the number of entries of the map interfaces.
const Interfaces = uint32(PodInterfaceNumberINTERFACES)

// InterfaceKept is the bit of PodInterface.Ifindex that marks an entry as taken but empty.
const InterfaceKept = uint32(PodInterfaceNumberINTERFACE_KEPT)

// The results of the program adopt_flow.
const (
	FlowAdopted = uint32(PodAdoptionResultFLOW_ADOPTED)
	FlowKnown   = uint32(PodAdoptionResultFLOW_KNOWN)
	FlowNoRoom  = uint32(PodAdoptionResultFLOW_NO_ROOM)
)

// The numbers of causes that have a fixed meaning. CauseOther counts for direction * 2 + verdict, CauseSelf and
// CausePending for a direction. Causes is the number of counters.
const (
	CauseNone    = uint32(PodCauseNumberCAUSE_NONE)
	CauseOther   = uint32(PodCauseNumberCAUSE_OTHER)
	CauseSelf    = uint32(PodCauseNumberCAUSE_SELF)
	CauseNode    = uint32(PodCauseNumberCAUSE_NODE)
	CausePending = uint32(PodCauseNumberCAUSE_PENDING)
	CauseFirst   = uint32(PodCauseNumberCAUSE_FIRST)
	Causes       = uint32(PodCauseNumberCAUSES)
)

// The form of PodVerdictRow.Causes for a row whose cause depends on the port, and the sizes of the maps that it
// leads to.
const (
	CausesByPort = uint32(PodCauseLayoutCAUSES_BY_PORT)
	CausesWidth  = uint32(PodCauseLayoutCAUSES_WIDTH)
	BlockCauses  = uint32(PodCauseLayoutBLOCK_CAUSES)
	CauseBlocks  = uint32(PodCauseLayoutCAUSE_BLOCKS)
	TablePlaces  = uint32(PodCauseLayoutTABLE_PLACES)
)

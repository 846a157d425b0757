// SPDX-License-Identifier: Apache-2.0

package bpfobj

// The values of enum counter_id in bpf/include/types.h. The first four count verdicts on new
// flows: direction * 2 + verdict. CountUntracked counts allowed flows that found the flow table
// full; the others count drops.
const (
	CountIngressDeny = iota
	CountIngressAllow
	CountEgressDeny
	CountEgressAllow
	DropNoEndpoint
	DropNotIP
	DropMalformed
	DropSpoofed
	DropFragment
	DropRevoked
	DropNeighbour
	DropUnmarked
	DropTunnel
	CountUntracked
	Counters
)

// DropReasons are the names, as in metrics, of the counters of drops that are not verdicts of
// policy.
var DropReasons = map[int]string{
	DropNoEndpoint: "no_endpoint",
	DropNotIP:      "not_ip",
	DropMalformed:  "malformed",
	DropSpoofed:    "spoofed",
	DropFragment:   "fragment",
	DropRevoked:    "revoked",
	DropNeighbour:  "neighbour",
	DropUnmarked:   "unmarked",
	DropTunnel:     "tunnel",
}

// The values of enum event_flag in bpf/include/events.h.
const (
	EventEgress      = 1
	EventV6          = 2
	EventTranslated  = 4
	EventMasqueraded = 8
)

// The values of enum event_loss: why an event was discarded.
const (
	EventsLimited = iota
	EventsLost
)

// Slots is SLOTS, the maximum number of pods on a node. NoSlot is NO_SLOT, the slot number in
// records that concern no pod.
const (
	Slots  = 4096
	NoSlot = Slots
)

// PeerPod is PEER_POD, the bit of peer_class.class that marks the address of a pod.
const PeerPod = 1 << 31

// The values of enum role.
const (
	RoleOpened   = 1
	RoleAccepted = 2
	RoleOfHost   = 4
	RoleRevoked  = 8
)

// The values of enum conn_flag.
const (
	ConnDirect      = 1
	ConnTranslated  = 2
	ConnRemote      = 4
	ConnMasqueraded = 8
	ConnOutside     = 16
)

// The values of enum conn_state.
const (
	ConnOpening = iota
	ConnEstablished
	ConnClosing
)

// The values of enum owner.
const (
	OwnerNode = 1
	OwnerPod  = 2
)

// Interfaces is INTERFACES, the number of entries of the map interfaces.
const Interfaces = 8192

// InterfaceKept is INTERFACE_KEPT, the bit of interface.ifindex that marks an entry as taken
// but empty.
const InterfaceKept = 1 << 31

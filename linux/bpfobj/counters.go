// SPDX-License-Identifier: Apache-2.0

package bpfobj

// The twins of enum counter_id in bpf/include/types.h. The first four are
// verdicts on new flows: direction * 2 + verdict. CountUntracked counts allowed
// flows for which the flow table had no room; the others are drops.
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

// DropReasons name the counters of drops for other reasons than a policy, as
// metrics do.
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

// The twins of enum event_flag in bpf/include/events.h.
const (
	EventEgress      = 1
	EventV6          = 2
	EventTranslated  = 4
	EventMasqueraded = 8
)

// The twins of enum event_loss: why an event was not written.
const (
	EventsLimited = iota
	EventsLost
)

// Slots is SLOTS: how many pods a node can have. NoSlot is NO_SLOT: the slot of what
// belongs to no pod.
const (
	Slots  = 4096
	NoSlot = Slots
)

// PeerPod is PEER_POD: the bit of peer_class.class which says that an address is
// a pod's.
const PeerPod = 1 << 31

// The twins of enum role.
const (
	RoleOpened   = 1
	RoleAccepted = 2
	RoleOfHost   = 4
	RoleRevoked  = 8
)

// The twins of enum conn_flag.
const (
	ConnDirect      = 1
	ConnTranslated  = 2
	ConnRemote      = 4
	ConnMasqueraded = 8
	ConnOutside     = 16
)

// The twins of enum conn_state.
const (
	ConnOpening = iota
	ConnEstablished
	ConnClosing
)

// The twins of enum owner.
const (
	OwnerNode = 1
	OwnerPod  = 2
)

// Interfaces is INTERFACES: how many entries the map of that name has.
const Interfaces = 8192

// InterfaceKept is INTERFACE_KEPT: the bit of interface.ifindex which says that a
// place is taken, but not to be read.
const InterfaceKept = 1 << 31

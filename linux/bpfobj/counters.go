// SPDX-License-Identifier: Apache-2.0

package bpfobj

// The twins of enum counter_id in bpf/include/types.h. The first four are
// verdicts on new flows: direction * 2 + verdict.
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
}

// SPDX-License-Identifier: Apache-2.0

package model

// DropReason is why the data path dropped a packet, other than by a verdict of policy. The zero value means
// that it did not.
type DropReason uint8

// Reasons of the packet path of pods. docs/operate/debugging.md describes each.
const (
	NotDropped DropReason = iota
	DropNoEndpoint
	DropNotIP
	DropMalformed
	DropSpoofed
	DropFragment
	DropRevoked
	DropNeighbour
	DropUnmarked
	DropTunnel
	DropPortTaken
)

// dropReasons are the names, as in metrics and events.
var dropReasons = [...]string{
	NotDropped:     "",
	DropNoEndpoint: "no_endpoint",
	DropNotIP:      "not_ip",
	DropMalformed:  "malformed",
	DropSpoofed:    "spoofed",
	DropFragment:   "fragment",
	DropRevoked:    "revoked",
	DropNeighbour:  "neighbour",
	DropUnmarked:   "unmarked",
	DropTunnel:     "tunnel",
	DropPortTaken:  "port_taken",
}

// String returns the name of the reason, as in metrics and events; "" for NotDropped.
func (r DropReason) String() string { return dropReasons[r] }

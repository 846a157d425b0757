// SPDX-License-Identifier: Apache-2.0

package model

import "fmt"

// Features is what a node's data path can do; the backend reports it.
type Features struct {
	OS OS
	// Platform names the kernel release or the HNS version, for people.
	Platform string
	// IPv6 tells whether pods can have IPv6 addresses.
	IPv6 bool
	// HostPorts tells whether ports of the node can lead to pods.
	HostPorts bool
	// Bandwidth tells whether what pods receive and send can be limited.
	Bandwidth bool
	// EgressBandwidth tells, where Bandwidth is false, that at least what pods
	// send can be.
	EgressBandwidth bool
}

// Effect says what happens instead of what a policy asked for.
type Effect uint8

// The effects. Nothing is ever enforced less strictly than asked.
const (
	// OverBlocks: some traffic that the policy allows is denied.
	OverBlocks Effect = iota
	// Refused: the object is not taken in; what it would have selected stays
	// under the policies that are in force.
	Refused
)

// String returns "over-blocks" or "refused".
func (e Effect) String() string {
	if e == Refused {
		return "refused"
	}
	return "over-blocks"
}

// Unsupported is a construct that a node cannot enforce exactly.
type Unsupported struct {
	Policy    Origin
	Direction Direction
	// Rule is the index in the API object; -1 when the whole policy is meant.
	Rule int
	// Construct names the field or feature.
	Construct string
	OS        OS
	Platform  string
	Effect    Effect
	Reason    string
}

// String says everything in one line.
func (u Unsupported) String() string {
	where := u.Policy.String()
	if u.Rule >= 0 {
		where += fmt.Sprintf(" %s rule %d", u.Direction, u.Rule)
	}
	return fmt.Sprintf("%s: %s on %s (%s): %s: %s", where, u.Construct, u.OS, u.Platform, u.Effect, u.Reason)
}

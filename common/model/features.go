// SPDX-License-Identifier: Apache-2.0

package model

import "fmt"

// Features are the capabilities of a node's data path; the backend reports them.
type Features struct {
	OS OS
	// Platform is the kernel release or the HNS version, for people.
	Platform string
	// IPv6 reports whether pods can have IPv6 addresses.
	IPv6 bool
	// HostPorts reports whether ports of the node can be forwarded to pods.
	HostPorts bool
	// Bandwidth reports whether traffic to and from pods can be limited.
	Bandwidth bool
	// EgressBandwidth reports whether at least egress can be limited if Bandwidth is false.
	EgressBandwidth bool
	// MinEgressRate is the lowest egress rate that can be enforced, in bits per second; 0 for any.
	MinEgressRate uint64
	// DNS reports whether the data path configures the resolvers of pods. Where it does not, the runtime
	// writes a file.
	DNS bool
	// Flows is which flows the data path reports.
	Flows FlowReports
}

// FlowReports is which flows a data path reports.
type FlowReports uint8

// The reports. A data path that reports flows implements dataplane.Watcher.
const (
	NoFlows FlowReports = iota
	// DeniedFlows are those that policy denies; allowed flows are neither reported nor counted.
	DeniedFlows
	AllFlows
)

// Verdicts returns the verdicts of the flows that are reported.
func (r FlowReports) Verdicts() []Verdict { return []Verdict{Deny, Allow}[:min(int(r), 2)] }

// Effect is what happens where a policy cannot be enforced as written.
type Effect uint8

// The effects. No policy is ever enforced less strictly than written.
const (
	// OverBlocks: some traffic that the policy allows is denied.
	OverBlocks Effect = iota
	// Refused: the object is not applied. The pods that it would select stay under the policies in force.
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
	// Rule is the index in the API object; -1 means the whole policy.
	Rule int
	// Construct names the field or feature.
	Construct string
	OS        OS
	Platform  string
	Effect    Effect
	Reason    string
}

// String returns all fields in one line.
func (u Unsupported) String() string {
	where := u.Policy.String()
	if u.Rule >= 0 {
		where += fmt.Sprintf(" %s rule %d", u.Direction, u.Rule)
	}
	return fmt.Sprintf("%s: %s on %s (%s): %s: %s", where, u.Construct, u.OS, u.Platform, u.Effect, u.Reason)
}

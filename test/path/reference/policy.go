// SPDX-License-Identifier: Apache-2.0

package reference

import "slices"

// Direction is the direction of policy, from the perspective of the pod.
type Direction int

// The directions.
const (
	Ingress Direction = iota
	Egress
)

// Rule allows traffic with some parties.
type Rule struct {
	Dir Direction `json:"dir"`
	// Parties are names; an empty list means all parties.
	Parties []string `json:"parties,omitempty"`
	// Proto is 0 for every protocol.
	Proto uint8 `json:"proto,omitempty"`
	// Ports of Proto; an empty list means all.
	Ports []uint16 `json:"ports,omitempty"`
}

// Policy holds the rules of one pod. A direction that is not isolated is allowed.
type Policy struct {
	Isolated [2]bool `json:"isolated"` // by Direction
	Rules    []Rule  `json:"rules,omitempty"`
}

// Allows reports whether the policy allows a flow with a party. port is the destination port.
func (p *Policy) Allows(dir Direction, party string, proto uint8, port uint16) bool {
	if !p.Isolated[dir] {
		return true
	}
	for _, r := range p.Rules {
		if r.Dir == dir && (len(r.Parties) == 0 || slices.Contains(r.Parties, party)) &&
			(r.Proto == 0 || r.Proto == proto) && (len(r.Ports) == 0 || slices.Contains(r.Ports, port)) {
			return true
		}
	}
	return false
}

// SPDX-License-Identifier: Apache-2.0

package hns

import "fmt"

// DefaultReading defines which packets are dropped if no Switch rule matches.
type DefaultReading uint8

// Reports exist for both.
const (
	// WholeEndpoint: once an endpoint has any ACL, both directions drop.
	WholeEndpoint DefaultReading = iota
	// PerDirection: only a direction that has ACLs drops.
	PerDirection
)

// TieReading defines which of several matching rules of equal priority decides.
type TieReading uint8

// HNS has its own undocumented tie-break.
const (
	ListOrder TieReading = iota
	ReverseOrder
	BlockFirst
	AllowFirst
)

// HostReading defines what the pod's Windows Firewall does with packets that no Host rule matches.
type HostReading uint8

// The documented default allows most of them; products in the field add Host rules whenever they use Switch
// rules.
const (
	HostOpen HostReading = iota
	// HostClosed: once an endpoint has any ACL, packets that no Host rule allows are dropped.
	HostClosed
)

// SetReading defines what a set without members matches.
type SetReading uint8

// An empty address member means any; whether an empty set does is not known.
const (
	EmptyMatchesNothing SetReading = iota
	EmptyMatchesAll
)

// Reading is one interpretation of the undocumented behaviour of HNS. A list of ACLs is
// right only if it gives the same verdicts under every Reading.
//
// All evidence agrees on the following points, so they are not part of a Reading. The rule
// with the lowest priority value is evaluated first, and the first match decides. With plain
// addresses, Local is the endpoint and Remote the peer; with sets they are source and
// destination. A rule without addresses matches both families.
type Reading struct {
	Default DefaultReading
	Tie     TieReading
	Host    HostReading
	Set     SetReading
}

// String returns a short name for test output.
func (r Reading) String() string {
	return fmt.Sprintf("default=%s,tie=%s,host=%s,set=%s",
		[...]string{"endpoint", "direction"}[r.Default],
		[...]string{"list", "reverse", "block", "allow"}[r.Tie],
		[...]string{"open", "closed"}[r.Host],
		[...]string{"nothing", "all"}[r.Set])
}

// Readings lists every combination.
func Readings() []Reading {
	var all []Reading
	for _, d := range []DefaultReading{WholeEndpoint, PerDirection} {
		for _, t := range []TieReading{ListOrder, ReverseOrder, BlockFirst, AllowFirst} {
			for _, h := range []HostReading{HostOpen, HostClosed} {
				for _, s := range []SetReading{EmptyMatchesNothing, EmptyMatchesAll} {
					all = append(all, Reading{d, t, h, s})
				}
			}
		}
	}
	return all
}

// SPDX-License-Identifier: Apache-2.0

package acl

import (
	"errors"
	"fmt"
	"net/netip"
)

// The layout of priorities. Lower goes first; HNS takes 100..65500.
const (
	// nodePriority is that of the first rule that lets the node reach its pods.
	nodePriority = 900
	// firstPriority is that of the first rule after those.
	firstPriority = 1000
	// lastPriority is the highest that may be given away.
	lastPriority = 65000
)

// Options say what HNS can take and how much of it.
type Options struct {
	// Sets puts the addresses of pods and nodes into sets (hns.Sets), so that a
	// pod that comes or goes changes a set and no list. Without it addresses
	// are in the lists.
	Sets bool
	// NoIPv6 leaves out every rule with IPv6 addresses, for an HNS that does
	// not know them. IPv6 is then denied wherever such a rule would be needed.
	NoIPv6 bool
	// Node are addresses of this node besides those that the State gives to
	// it, such as the host's own address on the pods' network. They reach every
	// endpoint unless the State gives them to somebody else.
	Node []netip.Addr
	// MaxRules bounds the ACLs of one endpoint. What does not fit is denied.
	MaxRules int
	// MaxMembers bounds the addresses and prefixes of one ACL or set; beyond
	// it the rule is repeated.
	MaxMembers int
}

// Defaults fills in what is zero. 4000 members is what the field uses after
// advice from Microsoft. HNS has no documented limit of rules; updates take
// longer with each, and trouble was reported from about 1300 on a node.
func (o Options) Defaults() Options {
	if o.MaxRules == 0 {
		o.MaxRules = 1000
	}
	if o.MaxMembers == 0 {
		o.MaxMembers = 4000
	}
	return o
}

// minRules is what default deny needs: a terminal rule and a firewall rule in
// each direction, and the node's rules.
const minRules = 6

// Validate reports every value that makes no sense.
func (o Options) Validate() error {
	var errs []error
	if o.MaxRules < minRules || o.MaxRules > lastPriority-firstPriority {
		errs = append(errs, fmt.Errorf("rules per endpoint %d: want %d to %d", o.MaxRules, minRules, lastPriority-firstPriority))
	}
	if o.MaxMembers < 1 || o.MaxMembers > 65536 {
		errs = append(errs, fmt.Errorf("members per rule %d: want 1 to 65536", o.MaxMembers))
	}
	for _, a := range o.Node {
		if !a.IsValid() || a.Is4In6() || a.Zone() != "" {
			errs = append(errs, fmt.Errorf("node address %s: want a plain IPv4 or IPv6 address", a))
		}
	}
	return errors.Join(errs...)
}

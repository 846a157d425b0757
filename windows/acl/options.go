// SPDX-License-Identifier: Apache-2.0

package acl

import (
	"errors"
	"fmt"
	"net/netip"
)

// The layout of priorities. A lower number takes precedence; HNS accepts 100..65500.
const (
	// nodePriority is that of the first rule that allows the node to reach its pods.
	nodePriority = 900
	// firstPriority is that of the first rule after those.
	firstPriority = 1000
	// lastPriority is the highest that is used.
	lastPriority = 65000
)

// Options are the capabilities and limits of HNS.
type Options struct {
	// Sets puts the addresses of pods and nodes into sets (hns.Sets). A pod that comes or goes then changes
	// a set and no list. Without it the lists contain the addresses.
	Sets bool
	// NoIPv6 omits every rule with IPv6 addresses, for an HNS without IPv6 ACLs. IPv6 is then denied
	// wherever such a rule would be needed.
	NoIPv6 bool
	// Node are addresses of this node besides those in the State, such as the host's own address on the
	// pods' network. They reach every endpoint, unless the State assigns them to a pod or another node.
	Node []netip.Addr
	// MaxRules bounds the ACLs of one endpoint. Traffic of rules beyond it is denied.
	MaxRules int
	// MaxMembers bounds the addresses and prefixes of one ACL or set; beyond it the rule is repeated.
	MaxMembers int
}

// Defaults replaces zero fields by defaults. 4000 members is the common value in the field after advice
// from Microsoft. HNS documents no limit of rules. Updates take longer with each rule, and trouble was
// reported from about 1300 rules on a node.
func (o Options) Defaults() Options {
	if o.MaxRules == 0 {
		o.MaxRules = 1000
	}
	if o.MaxMembers == 0 {
		o.MaxMembers = 4000
	}
	return o
}

// minRules is the number of rules that default deny needs: a terminal rule and a firewall rule in each
// direction, and the node's rules.
const minRules = 6

// Validate reports every invalid value.
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

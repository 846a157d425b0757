// SPDX-License-Identifier: Apache-2.0

// Package denylist turns the deny lists of a State into ACLs that precede all others of an endpoint. They
// block what listed sources send to pods.
//
// It never calls HNS: the policy core writes the ACLs with the rest of an endpoint's list. It does not protect
// the host, because the ACLs of HNS apply to the ports of pods. Nor does it block answers to connections that
// pods opened, because HNS decides the first packet of a flow. It reports both.
package denylist

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"go4.org/netipx"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// The priorities of the ACLs. All ACLs of package acl have higher numbers.
const (
	firstPriority = 100
	endPriority   = 900
)

// Bounds of the ACLs of an endpoint: prefixes of one ACL, as package acl has it, and of all.
const (
	perACL  = 4000
	maximum = 8000
)

// DenyList is the component. It has the ACLs of the last State.
type DenyList struct {
	exempt []netip.Addr
	noIPv6 bool

	set      *model.DenySet
	stale    bool // the exempt addresses have changed since Apply
	acls     []hns.ACL
	problems []model.Unsupported

	mu      sync.Mutex // guards entries
	entries [2]int
}

var (
	_ dataplane.Component = (*DenyList)(nil)
	_ dataplane.Counter   = (*DenyList)(nil)
)

// New returns the component of a node. The exempt addresses, which are those of the node, are never denied.
// Without IPv6 only IPv4 is denied, as pods have no other addresses.
func New(exempt []netip.Addr, noIPv6 bool) *DenyList {
	return &DenyList{exempt: exempt, noIPv6: noIPv6}
}

// SetExempt replaces the addresses that are never denied, from the next Apply on.
func (d *DenyList) SetExempt(exempt []netip.Addr) { d.exempt, d.stale = exempt, true }

// Apply computes the ACLs. It reports what each list does not deny.
func (d *DenyList) Apply(_ context.Context, s *model.State) ([]model.Unsupported, error) {
	if s.Deny == d.set && !d.stale {
		return d.problems, nil
	}
	d.stale, d.set, d.acls, d.problems = false, s.Deny, nil, nil
	var entries [2]int
	if s.Deny != nil {
		ranges := d.ranges(s.Deny)
		why := "on Windows nodes deny lists protect pods from new connections: not the host, and not from answers to connections that pods opened"
		if n := len(ranges); n > maximum {
			why += fmt.Sprintf("; the lists have %d ranges, of which the first %d are enforced: use fewer, larger ranges", n, maximum)
			ranges = ranges[:maximum]
		}
		d.acls, entries = encode(ranges)
		for _, l := range s.Deny.Lists {
			d.problems = append(d.problems, model.Unsupported{Policy: l.Origin(), Rule: -1, Construct: "spec.entries", Effect: model.Refused, Reason: why})
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.entries = entries
	return d.problems, nil
}

// ranges returns the denied ranges without exempt addresses, sorted and minimal.
func (d *DenyList) ranges(s *model.DenySet) []netip.Prefix {
	var b netipx.IPSetBuilder
	for _, p := range s.Prefixes {
		if p.Addr().Is4() || !d.noIPv6 {
			b.AddPrefix(p)
		}
	}
	for _, a := range slices.Concat(s.Exempt, d.exempt) {
		b.Remove(a)
	}
	set, _ := b.IPSet() // convert has reported prefixes that are not valid
	if set == nil {
		return nil
	}
	return set.Prefixes()
}

// encode returns the ACLs of sorted ranges, and how many ranges of each family there are.
func encode(ranges []netip.Prefix) (list []hns.ACL, entries [2]int) {
	split, _ := slices.BinarySearchFunc(ranges, true, func(p netip.Prefix, _ bool) int {
		if p.Addr().Is4() {
			return -1
		}
		return 1
	})
	for family, part := range [][]netip.Prefix{ranges[:split], ranges[split:]} {
		entries[family] = len(part)
		for chunk := range slices.Chunk(part, perACL) {
			texts := make([]string, len(chunk))
			for i, p := range chunk {
				texts[i] = p.String()
				if p.IsSingleIP() {
					texts[i] = p.Addr().String()
				}
			}
			list = append(list, hns.ACL{ID: fmt.Sprintf("in deny list %d", len(list)), Protocols: "256", Action: hns.Block, Direction: hns.In,
				RemoteAddresses: strings.Join(texts, ","), RuleType: hns.Switch, Priority: firstPriority + uint16(len(list))})
		}
	}
	return list, entries
}

// ACLs returns those of the last State. They precede the other ACLs of an endpoint.
func (d *DenyList) ACLs() []hns.ACL { return d.acls }

// Split separates the ACLs before the first priority of policies, this package's among them, from the others.
func Split(list []hns.ACL) (deny, rest []hns.ACL) {
	for _, a := range list {
		if a.Normal().RuleType == hns.Switch && a.Priority < endPriority {
			deny = append(deny, a)
		} else {
			rest = append(rest, a)
		}
	}
	return deny, rest
}

// Count implements dataplane.Counter.
func (d *DenyList) Count(c *dataplane.Counters) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, n := range d.entries {
		c.Deny.Entries[i] += n
	}
	return nil
}

// Sync does nothing: the audit of ACLs covers those of deny lists.
func (*DenyList) Sync(context.Context, time.Time) error { return nil }

// Problems returns nil: Apply reports sources that it does not deny.
func (*DenyList) Problems() []string { return nil }

// PathModes returns nil.
func (*DenyList) PathModes() []dataplane.PathMode { return nil }

// Close does nothing.
func (*DenyList) Close() error { return nil }

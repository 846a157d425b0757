// SPDX-License-Identifier: Apache-2.0

package reference

import "fmt"

// choice is the number of table entries that are candidates for eviction by a new flow. looks is the number of
// candidates if no flow among the first ones may be evicted (ADR 38).
const choice, looks = 4, 16

// Follow removes the flows that are not in the table of the programs, which has room for size flows of each
// family. It is called after each program. An eviction without a reason is an error: the table must be full, and
// the flow must belong to the pod that needs the entry, or to a pod with more flows (ADR 38).
//
// The programs look at 4 entries for a new flow, and at 16 before they give up. In a larger table the reference
// does not know these entries, so it compares only the owner of the evicted flow. A flow without an answer may
// make room like one that expired: the reference does not know how long the programs took. It returns the number
// of removed flows.
func (n *Node) Follow(table map[Key]bool, size int) (gone int, err error) {
	created := n.created
	n.created = nil
	for k := range table {
		if n.flows[k] == nil {
			return 0, fmt.Errorf("flow %v is in the table, but was not decided", k)
		}
	}
	for k, f := range n.flows {
		if table[k] {
			continue
		}
		if created == nil {
			return 0, fmt.Errorf("flow %v is gone, but nothing needed its place", k)
		}
		expired := n.now-f.seen > n.limit(f, k.proto)
		if expired && k != *created {
			delete(n.flows, k)
			gone++
			continue
		}
		all := size <= choice || k == *created && size <= looks
		if all && f.state != opening && n.hasExpired(*created, table) {
			return 0, fmt.Errorf("flow %v made room, but there is one that expired", k)
		}
		shares, total := n.shares(*created)
		owner := n.flows[*created].owner
		switch {
		case all && total < size:
			return 0, fmt.Errorf("flow %v is not in the table of %d flows, which has %d", k, size, total)
		case k != *created && f.owner != owner && shares[f.owner] <= shares[owner]:
			return 0, fmt.Errorf("flow %v of slot %d, which has %d, made room for slot %d, which has %d", k, f.owner, shares[f.owner], owner, shares[owner])
		case all && k == *created:
			for slot, has := range shares {
				if has > 0 && (slot == owner || has > shares[owner]) {
					return 0, fmt.Errorf("flow %v has no room, but slot %d has %d flows", k, slot, has)
				}
			}
		}
		delete(n.flows, k)
		gone++
	}
	return gone, nil
}

// hasExpired reports whether the table has an expired flow of the same family.
func (n *Node) hasExpired(fresh Key, table map[Key]bool) bool {
	for k, f := range n.flows {
		if table[k] && k != fresh && k.end[0].Addr().Is6() == fresh.end[0].Addr().Is6() && n.now-f.seen > n.limit(f, k.proto) {
			return true
		}
	}
	return false
}

// shares counts the flows of each slot in the family of a flow. It does not count the flow itself.
func (n *Node) shares(fresh Key) (shares map[int]int, total int) {
	shares = make(map[int]int)
	for k, f := range n.flows {
		if k != fresh && k.end[0].Addr().Is6() == fresh.end[0].Addr().Is6() {
			shares[f.owner]++
			total++
		}
	}
	return shares, total
}

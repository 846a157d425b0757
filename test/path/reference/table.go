// SPDX-License-Identifier: Apache-2.0

package reference

import "fmt"

// choice is how many places of a table are looked at for a new flow, and looks how many at most
// if no flow there may make room (ADR 38).
const choice, looks = 4, 16

// Follow forgets the flows that are not in a table with room for size flows of each
// family, which was read after each program. An eviction without a reason is an error. An
// entry may go only if the table is full. It must belong to the pod that needs the place,
// or to one that holds more (ADR 38).
//
// The programs look at 4 places for a new flow, and at 16 before they find none. In a larger
// table that may be the wrong ones: there only whose flow made room is compared. It returns how
// many flows were forgotten.
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
		if all && n.hasExpired(*created, table) {
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

// hasExpired reports whether the table has a flow in the family of another that has expired.
func (n *Node) hasExpired(fresh Key, table map[Key]bool) bool {
	for k, f := range n.flows {
		if table[k] && k != fresh && k.end[0].Addr().Is6() == fresh.end[0].Addr().Is6() && n.now-f.seen > n.limit(f, k.proto) {
			return true
		}
	}
	return false
}

// shares counts the flows of each slot in the family of a flow, without that flow.
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

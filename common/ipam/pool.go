// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"net/netip"
	"slices"

	"go4.org/netipx"
)

// reservedOffsets are never allocated: the network's own address (for IPv6 the subnet-router anycast
// address) and the gateway.
var reservedOffsets = [...]uint64{0, 1}

// pool is one range of addresses.
type pool struct {
	prefix netip.Prefix
	// last is the last address in the prefix.
	last netip.Addr
	// reserved are the addresses that are never allocated, sorted.
	reserved []netip.Addr
	// capacity is the number of addresses that can be allocated, MaxUint64 if it does not fit.
	capacity uint64
	// next is the address at which the search for a free one begins.
	next netip.Addr
	// used and quarantined count the addresses of this pool.
	used, quarantined int
}

// newPool validates a prefix and computes its bounds.
func newPool(p netip.Prefix, offsets []uint64, keepLast bool) (*pool, error) {
	switch {
	case !p.IsValid():
		return nil, errors.New("pod range is not a prefix: write it as ADDRESS/BITS")
	case p.Addr().Is4In6():
		return nil, fmt.Errorf("pod range %s is an IPv4-mapped IPv6 prefix: write it as IPv4", p)
	case p.Addr().Zone() != "":
		return nil, fmt.Errorf("pod range %s has a zone: remove it", p)
	case p != p.Masked():
		return nil, fmt.Errorf("pod range %s has host bits set: write %s", p, p.Masked())
	}
	r := &pool{prefix: p, last: netipx.PrefixLastIP(p)}
	for _, o := range append(reservedOffsets[:], offsets...) {
		if a, ok := offset(p, o); ok {
			r.reserved = append(r.reserved, a)
		}
	}
	if p.Addr().Is4() {
		r.reserved = append(r.reserved, r.last) // the broadcast address
		if before := r.last.Prev(); keepLast && p.Contains(before) {
			r.reserved = append(r.reserved, before)
		}
	}
	slices.SortFunc(r.reserved, netip.Addr.Compare)
	r.reserved = slices.Compact(r.reserved)
	r.capacity = size(p)
	if r.capacity != math.MaxUint64 {
		r.capacity -= min(r.capacity, uint64(len(r.reserved)))
	}
	if r.capacity == 0 {
		kept := len(reservedOffsets) + len(offsets) + 1
		if keepLast {
			kept++
		}
		enough := bits.Len(uint(kept))
		return nil, fmt.Errorf("pod range %s is too small, all of its addresses are reserved: use /%d or shorter",
			p, p.Addr().BitLen()-enough)
	}
	r.next = p.Addr()
	return r, nil
}

// after returns the next address of the pool; after the last it returns the first.
func (p *pool) after(a netip.Addr) netip.Addr {
	if a == p.last {
		return p.prefix.Addr()
	}
	return a.Next()
}

// size returns the number of addresses in a prefix, MaxUint64 if it does not fit.
func size(p netip.Prefix) uint64 {
	host := p.Addr().BitLen() - p.Bits()
	if host >= 64 {
		return math.MaxUint64
	}
	return 1 << host
}

// offset returns the nth address of a prefix.
func offset(p netip.Prefix, n uint64) (netip.Addr, bool) {
	if s := size(p); s != math.MaxUint64 && n >= s {
		return netip.Addr{}, false
	}
	b := p.Addr().AsSlice()
	for i := len(b) - 1; i >= 0 && n > 0; i-- {
		b[i] |= byte(n) // the prefix has no host bits
		n >>= 8
	}
	a, ok := netip.AddrFromSlice(b)
	return a, ok
}

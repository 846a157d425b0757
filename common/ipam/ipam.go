// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Config configures an Allocator.
type Config struct {
	// Prefixes are the node's pod ranges, in order of preference.
	Prefixes []netip.Prefix
	// Reserved are further addresses of each range that pods do not get, as offsets from its first address.
	// The first two addresses and the IPv4 broadcast address are always reserved. On Windows the host has
	// an endpoint at offset 2.
	Reserved []uint64
	// KeepLast also reserves the IPv4 address before the broadcast address. On Windows kube-proxy needs it.
	KeepLast bool
	// Quarantine is the minimum time between release and reuse of an address.
	Quarantine time.Duration
}

// Defaults returns a Config without ranges and with a quarantine of 30 s.
func Defaults() Config { return Config{Quarantine: 30 * time.Second} }

// Validate reports everything that is wrong with the Config.
func (c Config) Validate() error {
	_, err := newPools(c)
	return err
}

func newPools(c Config) ([]*pool, error) {
	var errs []error
	if c.Quarantine < 0 {
		errs = append(errs, fmt.Errorf("quarantine %s is negative: use 0 or more", c.Quarantine))
	}
	if len(c.Prefixes) == 0 {
		errs = append(errs, errors.New("no pod range: give the node at least one"))
	}
	var pools []*pool
	for i, p := range c.Prefixes {
		r, err := newPool(p, c.Reserved, c.KeepLast)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, other := range c.Prefixes[:i] {
			switch {
			case other == p:
				errs = append(errs, fmt.Errorf("pod range %s is listed twice: remove one", p))
			case other.Overlaps(p):
				errs = append(errs, fmt.Errorf("pod ranges %s and %s overlap: use disjoint ranges", other, p))
			}
		}
		pools = append(pools, r)
	}
	return pools, errors.Join(errs...)
}

// Allocator allocates addresses.
type Allocator struct {
	pools      []*pool
	quarantine time.Duration
	// used maps an address to its owner. It may contain restored addresses outside the pools.
	used map[netip.Addr]string
	// owned lists an owner's addresses in the order of families, IPv4 first.
	owned map[string][]netip.Addr
	// free maps a released address to the time when it may be allocated again.
	free map[netip.Addr]time.Time
}

// New returns an Allocator whose addresses are all free. The error is that of Config.Validate.
func New(c Config) (*Allocator, error) {
	pools, err := newPools(c)
	if err != nil {
		return nil, err
	}
	return &Allocator{
		pools:      pools,
		quarantine: c.Quarantine,
		used:       make(map[netip.Addr]string),
		owned:      make(map[string][]netip.Addr),
		free:       make(map[netip.Addr]time.Time),
	}, nil
}

// ExhaustedError reports that a family has no free address.
type ExhaustedError struct {
	// Pools are the ranges of the family.
	Pools []netip.Prefix
	// Used and Quarantined count their addresses.
	Used, Quarantined int
}

// Error names the pools and counts their addresses.
func (e *ExhaustedError) Error() string {
	return fmt.Sprintf("no free address in %s: %d used, %d in quarantine: delete pods, wait for the quarantine to end, or give the node a larger range",
		join(e.Pools), e.Used, e.Quarantined)
}

func prefixes(pools []*pool) string {
	var all []netip.Prefix
	for _, p := range pools {
		all = append(all, p.prefix)
	}
	return join(all)
}

func join(all []netip.Prefix) string {
	var names []string
	for _, p := range all {
		names = append(names, p.String())
	}
	return strings.Join(names, ", ")
}

// Allocate allocates one address of every family that has a pool, IPv4 first. An owner with addresses gets
// the same ones again. The search continues after the last allocated address, so that an address stays
// unused as long as possible. If a family has no free address it returns an *ExhaustedError and allocates
// nothing.
func (a *Allocator) Allocate(owner string, now time.Time) ([]netip.Addr, error) {
	return a.AllocateFixed(owner, nil, now)
}

// allocate allocates the fixed addresses, which are free, and the next free address of the other families.
func (a *Allocator) allocate(owner string, fixed []netip.Addr) ([]netip.Addr, error) {
	var found []netip.Addr
	for _, v6 := range []bool{false, true} {
		if i := slices.IndexFunc(fixed, func(f netip.Addr) bool { return f.Is6() == v6 }); i >= 0 {
			found = append(found, fixed[i])
			continue
		}
		addr, err := a.search(v6)
		if err != nil {
			return nil, err
		}
		if addr.IsValid() {
			found = append(found, addr)
		}
	}
	for _, addr := range found {
		a.hold(addr, owner)
	}
	return slices.Clone(found), nil
}

// search returns the next free address of a family, or the zero Addr if the family has no pool.
func (a *Allocator) search(v6 bool) (netip.Addr, error) {
	var full ExhaustedError
	for _, p := range a.pools {
		if p.prefix.Addr().Is6() != v6 {
			continue
		}
		full.Pools = append(full.Pools, p.prefix)
		full.Used += p.used
		full.Quarantined += p.quarantined
		// The loop skips each unavailable address at most once.
		for addr, n := p.next, p.used+p.quarantined+len(p.reserved); n >= 0; addr, n = p.after(addr), n-1 {
			if a.isFree(p, addr) {
				return addr, nil
			}
		}
	}
	if len(full.Pools) == 0 {
		return netip.Addr{}, nil
	}
	return netip.Addr{}, &full
}

func (a *Allocator) isFree(p *pool, addr netip.Addr) bool {
	if _, reserved := slices.BinarySearchFunc(p.reserved, addr, netip.Addr.Compare); reserved {
		return false
	}
	_, used := a.used[addr]
	_, resting := a.free[addr]
	return !used && !resting
}

// Restore records that an owner has an address, from an endpoint record. It accepts addresses outside every
// pool, as the node's ranges may have changed. It fails if another owner has the address. Restoring in the
// order of allocation restores the position of the search.
func (a *Allocator) Restore(addr netip.Addr, owner string) error {
	addr = addr.Unmap()
	if !addr.IsValid() || owner == "" {
		return fmt.Errorf("restore address %q of %q: both an address and an owner are needed", addr, owner)
	}
	if other, ok := a.used[addr]; ok {
		if other == owner {
			return nil
		}
		return fmt.Errorf("address %s belongs to %s and to %s: delete one of the pods", addr, other, owner)
	}
	a.endQuarantine(addr)
	a.hold(addr, owner)
	return nil
}

// Release takes an address from its owner and puts it in quarantine from the given time on. It does so for
// an address without an owner, too: that replays the record of a released endpoint.
func (a *Allocator) Release(addr netip.Addr, at time.Time) {
	addr = addr.Unmap()
	a.drop(addr)
	p := a.pool(addr)
	if p == nil || a.quarantine == 0 {
		return
	}
	until := at.Add(a.quarantine)
	if was, ok := a.free[addr]; !ok {
		p.quarantined++
	} else if was.After(until) {
		until = was
	}
	a.free[addr] = until
}

// Cancel frees an address at once. No other pod can have seen it in use.
func (a *Allocator) Cancel(addr netip.Addr) { a.drop(addr.Unmap()) }

// Owner returns the owner of an address, and whether it has one.
func (a *Allocator) Owner(addr netip.Addr) (string, bool) {
	owner, ok := a.used[addr.Unmap()]
	return owner, ok
}

// hold assigns an address that is not in quarantine to an owner.
func (a *Allocator) hold(addr netip.Addr, owner string) {
	a.used[addr] = owner
	a.owned[owner] = append(a.owned[owner], addr)
	slices.SortFunc(a.owned[owner], netip.Addr.Compare)
	if p := a.pool(addr); p != nil {
		p.used++
		p.next = p.after(addr)
	}
}

// drop removes an address from its owner.
func (a *Allocator) drop(addr netip.Addr) {
	owner, ok := a.used[addr]
	if !ok {
		return
	}
	delete(a.used, addr)
	a.owned[owner] = slices.DeleteFunc(a.owned[owner], func(x netip.Addr) bool { return x == addr })
	if len(a.owned[owner]) == 0 {
		delete(a.owned, owner)
	}
	if p := a.pool(addr); p != nil {
		p.used--
	}
}

// expire ends the quarantines that are over. One that would last longer than a whole quarantine began before the clock was
// set back: it begins again.
func (a *Allocator) expire(now time.Time) {
	for addr, until := range a.free {
		switch rest := until.Sub(now); {
		case rest <= 0:
			a.endQuarantine(addr)
		case rest > a.quarantine:
			a.free[addr] = now.Add(a.quarantine)
		}
	}
}

func (a *Allocator) endQuarantine(addr netip.Addr) {
	if _, ok := a.free[addr]; ok {
		delete(a.free, addr)
		a.pool(addr).quarantined--
	}
}

// pool returns the pool that contains an address, or nil.
func (a *Allocator) pool(addr netip.Addr) *pool {
	for _, p := range a.pools {
		if p.prefix.Contains(addr) {
			return p
		}
	}
	return nil
}

// Usage counts the addresses of one pool by state.
type Usage struct {
	Pool netip.Prefix
	// Used and Quarantined count addresses. Free counts those that can be allocated now. It is a float
	// because an IPv6 range has more addresses than an integer can hold.
	Used, Quarantined int
	Free              float64
}

// Usage returns the usage of the pools in the order of the Config.
func (a *Allocator) Usage(now time.Time) []Usage {
	a.expire(now)
	all := make([]Usage, len(a.pools))
	for i, p := range a.pools {
		free := float64(p.capacity) - float64(p.used) - float64(p.quarantined)
		all[i] = Usage{Pool: p.prefix, Used: p.used, Quarantined: p.quarantined, Free: max(0, free)}
	}
	return all
}

// Owners lists all owners, sorted.
func (a *Allocator) Owners() []string { return slices.Sorted(maps.Keys(a.owned)) }

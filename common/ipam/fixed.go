// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// TakenError reports that a requested address is not free.
type TakenError struct {
	Addr netip.Addr
	// Owner is the current owner; empty if the address is in quarantine.
	Owner string
	// Until is when the quarantine ends.
	Until time.Time
}

// Error names the address and its owner, or the end of its quarantine.
func (e *TakenError) Error() string {
	if e.Owner != "" {
		return fmt.Sprintf("address %s is in use by %s", e.Addr, e.Owner)
	}
	return fmt.Sprintf("address %s is in quarantine until %s", e.Addr, e.Until.UTC().Format(time.RFC3339))
}

// UnusableError reports that an address can never be allocated.
type UnusableError struct {
	Addr netip.Addr
	Why  string
}

// Error names the address and the reason.
func (e *UnusableError) Error() string { return fmt.Sprintf("address %s %s", e.Addr, e.Why) }

// AllocateFixed allocates the addresses that an owner requests, at most one per family. For the other
// families it allocates one as Allocate does. An owner with addresses gets the same ones again. Otherwise
// it returns a *TakenError, an *UnusableError or an *ExhaustedError, and allocates nothing.
func (a *Allocator) AllocateFixed(owner string, fixed []netip.Addr, now time.Time) ([]netip.Addr, error) {
	if have := a.owned[owner]; len(have) > 0 {
		return slices.Clone(have), nil
	}
	a.expire(now)
	for i, addr := range fixed {
		if err := a.checkFixed(addr); err != nil {
			return nil, err
		}
		for _, other := range fixed[:i] {
			if other.Is6() == addr.Is6() {
				return nil, &UnusableError{addr, fmt.Sprintf("is the second of its family, after %s: use one per family", other)}
			}
		}
	}
	return a.allocate(owner, fixed)
}

// checkFixed returns an error that says why an address is not free.
func (a *Allocator) checkFixed(addr netip.Addr) error {
	p := a.pool(addr)
	if p == nil {
		return &UnusableError{addr, "is in none of the pod ranges " + prefixes(a.pools)}
	}
	if _, reserved := slices.BinarySearchFunc(p.reserved, addr, netip.Addr.Compare); reserved {
		return &UnusableError{addr, fmt.Sprintf("is reserved in the pod range %s", p.prefix)}
	}
	if owner, used := a.used[addr]; used {
		return &TakenError{Addr: addr, Owner: owner}
	}
	if until, resting := a.free[addr]; resting {
		return &TakenError{Addr: addr, Until: until}
	}
	return nil
}

// Recall ends the quarantine of an address. Only its last owner may use it afterwards.
func (a *Allocator) Recall(addr netip.Addr) { a.endQuarantine(addr.Unmap()) }

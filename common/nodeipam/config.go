// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// maxBlockBits bounds the number of blocks of a range: two to this power.
const maxBlockBits = 32

// Config defines the ranges to divide.
type Config struct {
	// Ranges are the cluster's pod ranges, in order of preference. A node gets one block of each family
	// that they contain.
	Ranges []netip.Prefix
	// Mask4 and Mask6 are the prefix lengths of the blocks.
	Mask4, Mask6 int
	// Reserved are not allocated: ranges of services, for example.
	Reserved []netip.Prefix
}

// Defaults returns a Config without ranges, with blocks of /24 and /64.
func Defaults() Config { return Config{Mask4: 24, Mask6: 64} }

func (c Config) mask(v6 bool) int {
	if v6 {
		return c.Mask6
	}
	return c.Mask4
}

// families lists the families of the ranges, IPv4 first.
func (c Config) families() (all []bool) {
	for _, v6 := range []bool{false, true} {
		if slices.ContainsFunc(c.Ranges, func(r netip.Prefix) bool { return r.Addr().Is6() == v6 }) {
			all = append(all, v6)
		}
	}
	return all
}

// Validate reports everything that is wrong with the Config.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if len(c.Ranges) == 0 {
		bad("no pod range: give at least one")
	}
	if c.Mask4 < 1 || c.Mask4 > 30 {
		bad("mask /%d of a node's IPv4 block: use 1 to 30, so that it has addresses for pods", c.Mask4)
	}
	if c.Mask6 < 1 || c.Mask6 > 126 {
		bad("mask /%d of a node's IPv6 block: use 1 to 126", c.Mask6)
	}
	for i, r := range c.Ranges {
		if err := plain(r); err != nil {
			bad("pod range %s", err)
			continue
		}
		mask := c.mask(r.Addr().Is6())
		switch {
		case r.Bits() > mask:
			bad("pod range %s is smaller than the block /%d of one node: use a larger range or smaller blocks", r, mask)
		case mask-r.Bits() > maxBlockBits:
			bad("pod range %s has more than 2^%d blocks of /%d: use a smaller range or larger blocks", r, maxBlockBits, mask)
		}
		for _, other := range c.Ranges[:i] {
			if other.Overlaps(r) {
				bad("pod ranges %s and %s overlap: use disjoint ranges", other, r)
			}
		}
	}
	for _, r := range c.Reserved {
		if err := plain(r); err != nil {
			bad("reserved range %s", err)
		}
	}
	return errors.Join(errs...)
}

// plain returns an error if a range is invalid or has host bits.
func plain(p netip.Prefix) error {
	switch {
	case !p.IsValid() || p.Addr().Is4In6():
		return fmt.Errorf("%s is not valid: use an address and a prefix length, like 10.244.0.0/16", p)
	case p != p.Masked():
		return fmt.Errorf("%s has host bits set: use %s", p, p.Masked())
	}
	return nil
}

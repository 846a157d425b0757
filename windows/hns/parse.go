// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// PortRange is First..Last, inclusive.
type PortRange struct{ First, Last uint16 }

// ParsePorts parses the ports of an ACL: numbers and ascending ranges separated by commas, without blanks.
// Empty text means any port and gives nil.
func ParsePorts(text string) ([]PortRange, error) {
	if text == "" {
		return nil, nil
	}
	var ranges []PortRange
	for token := range strings.SplitSeq(text, ",") {
		first, last, ranged := strings.Cut(token, "-")
		if !ranged {
			last = first
		}
		a, err := parseNumber(first, 65535)
		if err != nil {
			return nil, fmt.Errorf("ports %q: %w", text, err)
		}
		b, err := parseNumber(last, 65535)
		if err != nil {
			return nil, fmt.Errorf("ports %q: %w", text, err)
		}
		if a > b {
			return nil, fmt.Errorf("ports %q: range %q is reversed", text, token)
		}
		ranges = append(ranges, PortRange{uint16(a), uint16(b)})
	}
	return ranges, nil
}

// ParseProtocols parses the protocols of an ACL: numbers from 0 to 255 separated by commas. Empty text and
// "256" mean any protocol and give nil.
func ParseProtocols(text string) ([]uint8, error) {
	if text == "" || text == strconv.Itoa(AnyProtocol) {
		return nil, nil
	}
	var list []uint8
	for token := range strings.SplitSeq(text, ",") {
		n, err := parseNumber(token, 255)
		if err != nil {
			return nil, fmt.Errorf("protocols %q: %w", text, err)
		}
		list = append(list, uint8(n))
	}
	return list, nil
}

// parseNumber accepts plain decimal digits only: no sign, no blank.
func parseNumber(s string, limit uint64) (uint64, error) {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, fmt.Errorf("%q is not a number", s)
		}
	}
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || n > limit {
		return 0, fmt.Errorf("%q is not a number up to %d", s, limit)
	}
	return n, nil
}

// AddressList is the content of one address member of an ACL, or the values of a set: prefixes, or ids of
// sets.
type AddressList struct {
	Prefixes []netip.Prefix
	// Sets are the tokens that are not addresses. All of them must match.
	Sets []string
	// Canonical is true if no prefix has host bits.
	Canonical bool
}

// ParseAddresses parses addresses, CIDRs and ids of sets, separated by commas. Empty text means any address
// and gives an empty list. Like HNS it refuses the word "any", blanks, zones and IPv4 in IPv6 form.
func ParseAddresses(text string) (AddressList, error) {
	list := AddressList{Canonical: true}
	if text == "" {
		return list, nil
	}
	for token := range strings.SplitSeq(text, ",") {
		prefix, ok := parsePrefix(token)
		switch {
		case ok:
			list.Canonical = list.Canonical && prefix == prefix.Masked()
			list.Prefixes = append(list.Prefixes, prefix.Masked())
		case token == "" || strings.EqualFold(token, "any") || strings.ContainsAny(token, " \t/:"):
			return AddressList{}, fmt.Errorf("addresses %q: %q is not an address, prefix or set", text, token)
		default:
			list.Sets = append(list.Sets, token)
		}
	}
	return list, nil
}

func parsePrefix(token string) (netip.Prefix, bool) {
	if a, err := netip.ParseAddr(token); err == nil {
		return netip.PrefixFrom(a, a.BitLen()), a.Zone() == "" && !a.Is4In6()
	}
	p, err := netip.ParsePrefix(token)
	return p, err == nil && !p.Addr().Is4In6()
}

// NormalAddresses returns addresses, prefixes and ids of sets that are separated by commas in one order and one spelling. HNS may
// answer in another one: its own forms of IPv6, or single addresses with their length.
func NormalAddresses(text string) string {
	parts := strings.Split(text, ",")
	for i, token := range parts {
		if p, ok := parsePrefix(token); ok && p.IsSingleIP() {
			parts[i] = p.Addr().String()
		} else if ok {
			parts[i] = p.String()
		}
	}
	slices.Sort(parts)
	return strings.Join(parts, ",")
}

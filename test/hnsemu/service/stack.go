// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hostroute"
)

// codeInterfaceMissing is ERROR_NOT_FOUND.
const codeInterfaceMissing = 0x80070490

// stack makes the calls of iphlpapi-more.dll, whose arguments are words:
//
//	Add.stack, Remove.stack    DESTINATION BITS NEXTHOP INDEX METRIC
//	Set.stack                  INDEX FAMILY(4, 6) FORWARDING(0, 1)
//	Get.stack                  INDEX FAMILY: FORWARDING MTU
//	Routes.stack               FAMILY(4, 6, 0): lines DESTINATION BITS NEXTHOP INDEX METRIC PROTOCOL
func (s *Service) stack(verb, words string) (Answer, error) {
	stack := s.config.Stack
	if stack == nil {
		return Answer{}, hns.NewError(verb, hns.CodeNotImplemented, "there is no stack")
	}
	switch verb {
	case "Add", "Remove":
		r, err := parseRoute(words)
		if err != nil {
			return Answer{}, err
		}
		if verb == "Add" {
			return Answer{}, stack.Add(r)
		}
		return Answer{}, stack.Remove(r)
	case "Routes":
		text, err := routeLines(stack, words)
		return Answer{Output: &text}, err
	case "Set", "Get":
	default:
		return Answer{}, hns.NewError(verb, hns.CodeNotImplemented, "Not implemented")
	}
	var index uint32
	var family, on int
	if n, _ := fmt.Sscan(words, &index, &family, &on); n < 2 || family != 4 && family != 6 {
		return Answer{}, fmt.Errorf("%s.stack %q: want INDEX FAMILY", verb, words)
	}
	f := hostroute.IPv4
	if family == 6 {
		f = hostroute.IPv6
	}
	if verb == "Set" {
		return Answer{}, stack.SetForwarding(index, f, on == 1)
	}
	all, err := stack.Interfaces()
	if err != nil {
		return Answer{}, err
	}
	for _, i := range all {
		if i.Index != index {
			continue
		}
		text := fmt.Sprintf("0 %d", i.MTU)
		if i.Forwarding[f] {
			text = fmt.Sprintf("1 %d", i.MTU)
		}
		return Answer{Output: &text}, nil
	}
	return Answer{}, hns.NewError(verb, codeInterfaceMissing, "Element not found.")
}

func routeLines(stack hostroute.Stack, family string) (string, error) {
	all, err := stack.Routes()
	var b strings.Builder
	for _, r := range all {
		if to := r.Destination.Addr(); family == "0" || (family == "6") == to.Is6() {
			fmt.Fprintln(&b, to, r.Destination.Bits(), r.NextHop, r.Interface, r.Metric, r.Protocol)
		}
	}
	return b.String(), err
}

func parseRoute(words string) (r hostroute.Route, err error) {
	var to, hop string
	var bits int
	if _, err := fmt.Sscan(words, &to, &bits, &hop, &r.Interface, &r.Metric); err != nil {
		return r, fmt.Errorf("route %q: %w", words, err)
	}
	address, err := netip.ParseAddr(to)
	if err != nil {
		return r, err
	}
	if r.NextHop, err = netip.ParseAddr(hop); err != nil {
		return r, err
	}
	r.Destination, err = address.Prefix(bits)
	return r, err
}

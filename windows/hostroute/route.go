// SPDX-License-Identifier: Apache-2.0

package hostroute

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// Route is one route of the host.
type Route struct {
	Destination netip.Prefix `json:"destination"`
	// NextHop is unspecified (0.0.0.0, ::) for an on-link destination.
	NextHop netip.Addr `json:"nextHop"`
	// Interface is the index of the interface.
	Interface uint32 `json:"interface"`
	Metric    uint32 `json:"metric"`
	// Protocol is the MIB_IPFORWARD_PROTO of the route: which kind of program added it. Add ignores it.
	Protocol uint32 `json:"protocol,omitempty"`
}

// NetMgmt is the protocol of routes that a program added (MIB_IPPROTO_NETMGMT).
const NetMgmt = 3

func (r Route) onLink() bool { return r.NextHop.IsUnspecified() }

// kept returns the routes to exactly these destinations.
func kept(table []Route, destinations []netip.Prefix) []Route {
	return slices.DeleteFunc(slices.Clone(table), func(r Route) bool { return !slices.Contains(destinations, r.Destination) })
}

// lost returns the routes of before whose destination has no route in now, with the interfaces that they
// belong to now. The error names those without an interface.
func lost(before, now []Route) (list []Route, err error) {
	for _, r := range before {
		if slices.ContainsFunc(now, func(n Route) bool { return n.Destination == r.Destination }) {
			continue
		}
		i, ok := interfaceOf(r, now)
		if !ok {
			err = errors.Join(err, fmt.Errorf("no interface reaches %s, the next hop to %s", r.NextHop, r.Destination))
			continue
		}
		r.Interface = i
		list = append(list, r)
	}
	return list, err
}

// interfaceOf returns the interface whose link contains the next hop; for an on-link destination it is that
// of the default route.
func interfaceOf(r Route, table []Route) (uint32, bool) {
	candidates := slices.DeleteFunc(slices.Clone(table), func(n Route) bool {
		if n.Destination.Addr().Is4() != r.Destination.Addr().Is4() {
			return true
		}
		if r.onLink() {
			return n.Destination.Bits() != 0 || n.onLink()
		}
		return !n.onLink() || n.Destination.Bits() == 0 || !n.Destination.Contains(r.NextHop)
	})
	if len(candidates) == 0 {
		return 0, false
	}
	best := slices.MinFunc(candidates, func(a, b Route) int {
		return cmp.Or(cmp.Compare(b.Destination.Bits(), a.Destination.Bits()), cmp.Compare(a.Metric, b.Metric))
	})
	return best.Interface, true
}

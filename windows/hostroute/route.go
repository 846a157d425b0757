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
	// NextHop is unspecified (0.0.0.0, ::) if the destination is on the link.
	NextHop netip.Addr `json:"nextHop"`
	// Interface is the number of the interface.
	Interface uint32 `json:"interface"`
	Metric    uint32 `json:"metric"`
}

func (r Route) onLink() bool { return r.NextHop.IsUnspecified() }

// kept selects the routes to exactly these destinations.
func kept(table []Route, destinations []netip.Prefix) []Route {
	return slices.DeleteFunc(slices.Clone(table), func(r Route) bool { return !slices.Contains(destinations, r.Destination) })
}

// lost lists the routes of before whose destination has no route in now, on the
// interfaces that they belong on now. The error is about those that have none.
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

// interfaceOf finds the interface whose link the next hop is on; for what is on
// the link itself that is the one of the default route.
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

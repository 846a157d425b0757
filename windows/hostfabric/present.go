// SPDX-License-Identifier: Apache-2.0

package hostfabric

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/isthmus-net/isthmus/windows/hostroute"
)

// present holds the routes and flags that the host has.
type present struct {
	routes     []hostroute.Route
	interfaces []hostroute.Interface
}

func read(s hostroute.Stack) (*present, error) {
	routes, err := s.Routes()
	if err != nil {
		return nil, fmt.Errorf("read the host's routes: %w", err)
	}
	interfaces, err := s.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("read the host's interfaces: %w", err)
	}
	return &present{routes: routes, interfaces: interfaces}, nil
}

// interfacesOf returns the interfaces that have one of the addresses.
func (p *present) interfacesOf(addresses []netip.Addr) []hostroute.Interface {
	return slices.DeleteFunc(slices.Clone(p.interfaces), func(i hostroute.Interface) bool { return !slices.ContainsFunc(addresses, i.Has) })
}

// ours reports whether a route belongs to this package.
func ours(r hostroute.Route) bool {
	return r.Protocol == hostroute.NetMgmt && r.Metric == Metric && !r.NextHop.IsUnspecified()
}

// same compares two routes as the host identifies them.
func same(a, b hostroute.Route) bool {
	return a.Destination == b.Destination && a.NextHop == b.NextHop && a.Interface == b.Interface
}

// foreign returns the route of another process to the same destination, if there is one.
func (p *present) foreign(want hostroute.Route) (hostroute.Route, bool) {
	i := slices.IndexFunc(p.routes, func(r hostroute.Route) bool { return r.Destination == want.Destination && !ours(r) })
	if i < 0 {
		return hostroute.Route{}, false
	}
	return p.routes[i], true
}

// holds reports whether a route is in force: no other route has its destination.
func (p *present) holds(want hostroute.Route) bool {
	if f, ok := p.foreign(want); ok {
		return same(f, want)
	}
	return slices.ContainsFunc(p.routes, func(r hostroute.Route) bool { return ours(r) && same(r, want) })
}

// off returns the flags that are off.
func (p *present) off(flags []flag) []flag {
	return slices.DeleteFunc(slices.Clone(flags), func(k flag) bool {
		i, ok := p.find(k)
		return ok && i.Forwarding[k.Family]
	})
}

// find returns the interface of a flag.
func (p *present) find(k flag) (hostroute.Interface, bool) {
	i := slices.IndexFunc(p.interfaces, func(i hostroute.Interface) bool { return i.Name == k.Interface })
	if i < 0 {
		return hostroute.Interface{}, false
	}
	return p.interfaces[i], true
}

// difference is the changes that turn what the host has into the intent.
type difference struct {
	add, remove []hostroute.Route
	turnOn      []flag
}

// compare compares the host with the intent. A destination with a route of another process gets none.
func (p *present) compare(want *intent) difference {
	d := difference{turnOn: p.off(want.forwarding)}
	kept := make(map[hostroute.Route]bool)
	for _, w := range want.routes {
		if _, taken := p.foreign(w); taken {
			continue
		}
		if i := slices.IndexFunc(p.routes, func(r hostroute.Route) bool { return ours(r) && same(r, w) }); i >= 0 {
			kept[p.routes[i]] = true
			continue
		}
		d.add = append(d.add, w)
	}
	for _, r := range p.routes {
		if ours(r) && !kept[r] {
			d.remove = append(d.remove, r)
		}
	}
	return d
}

// conflicts returns the problems of routes of other processes that lead elsewhere.
func (p *present) conflicts(want *intent) (problems []string) {
	for _, w := range want.routes {
		if f, ok := p.foreign(w); ok && !same(f, w) {
			problems = append(problems, fmt.Sprintf("route to %s by %s on interface %d belongs to another process and stays: pods of node %s may be unreachable; remove it (route delete) or give the node another range",
				f.Destination, f.NextHop, f.Interface, want.owners[w.Destination]))
		}
	}
	return problems
}

func text(r hostroute.Route) string {
	return fmt.Sprintf("%s by %s on interface %d", r.Destination, r.NextHop, r.Interface)
}

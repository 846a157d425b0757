// SPDX-License-Identifier: Apache-2.0

package foreign

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// found is an endpoint with its network.
type found struct {
	hns.Endpoint
	network hns.Network
}

// attempts is the maximum number of listings if objects vanish during one.
const attempts = 4

// scan lists the endpoints of pods on all networks. It is one listing per network.
func (b *Backend) scan(ctx context.Context) (all []found, err error) {
	for range attempts {
		if all, err = b.scanOnce(ctx); !errors.Is(err, hns.ErrGone) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("list the endpoints of hns: %w", err)
	}
	return all, nil
}

func (b *Backend) scanOnce(ctx context.Context) (all []found, err error) {
	networks, err := b.hns.Networks(ctx)
	if err != nil {
		return nil, err
	}
	for _, n := range networks {
		list, err := b.hns.Endpoints(ctx, n.ID)
		if err != nil {
			return nil, err
		}
		for _, e := range list {
			if !e.Remote() && (len(addresses(&e)) > 0 || e.HostComputeNamespace != "") { // a DHCP server may give addresses
				e.ID = strings.ToLower(e.ID)
				all = append(all, found{e, n})
			}
		}
	}
	return all, nil
}

// addresses returns the addresses of an endpoint, sorted.
func addresses(e *hns.Endpoint) (all []netip.Addr) {
	for _, c := range e.IPConfigurations {
		if a, err := netip.ParseAddr(c.IPAddress); err == nil {
			all = append(all, a.Unmap())
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return all
}

// has reports whether an endpoint has all addresses.
func (f *found) has(ips []netip.Addr) bool {
	have := addresses(&f.Endpoint)
	return len(ips) > 0 && !slices.ContainsFunc(ips, func(a netip.Addr) bool { return !slices.Contains(have, a) })
}

// problem says why policy cannot be enforced on an endpoint; "" if it can.
func (f *found) problem() string {
	if why := f.unfiltered(); why != "" {
		return why
	}
	p, err := split(f.Policies)
	if err == nil {
		_, _, err = compose(acl.DenyAll(), p.others)
	}
	if err != nil {
		return fmt.Sprintf("hns endpoint %s: %v", f.Name, err)
	}
	return ""
}

// unfiltered says that packets may pass whatever ACLs block; "" if not. HNS keeps the ACLs of any endpoint, but only networks of these types
// have ports of VFP. Rules of the network may pass packets, too.
func (f *found) unfiltered() string {
	switch strings.ToLower(string(f.network.Type)) {
	case "l2bridge", "l2tunnel", "overlay":
	default:
		return fmt.Sprintf("hns endpoint %s is on network %s of type %s, where Windows does not enforce ACLs: use l2bridge, l2tunnel or overlay", f.Name, f.network.Name, f.network.Type)
	}
	if why := hns.UnknownOrder(f.network.Policies); why != "" {
		return fmt.Sprintf("hns network %s: %s", f.network.Name, why)
	}
	return ""
}

// further names the endpoints in a namespace, other than self, that are not under the policy of an attachment's pod: packets of
// the pod pass there.
func (b *Backend) further(all []found, id model.EndpointID, namespace, self string) (problems []string) {
	for i := range all {
		o := &all[i]
		if o.ID == self || namespace == "" || !hns.SameID(o.HostComputeNamespace, namespace) {
			continue
		}
		how := "not under policy"
		if owner := b.registry.owner(o.ID); owner != "" {
			if b.registry.Endpoints[owner].Pod == b.registry.Endpoints[id].Pod {
				continue
			}
			how = "under the policy of another pod"
		}
		problems = append(problems, fmt.Sprintf("hns endpoint %s of network %s is in its namespace too, and %s: restart the pod without it", o.Name, o.network.Name, how))
	}
	return problems
}

// strayed says where packets pass without the policy of an attachment whose endpoint is not found: at the same HNS endpoint with
// other addresses or in another namespace, and at others in the pod's namespace.
func (b *Backend) strayed(all []found, id model.EndpointID) (problems []string) {
	e := b.registry.Endpoints[id]
	if f := stray(all, e); f != nil {
		what := "is not in its namespace any more"
		if !f.has(e.IPs) {
			what = fmt.Sprintf("has the addresses %v, not %v", addresses(&f.Endpoint), e.IPs)
		}
		problems = append(problems, fmt.Sprintf("hns endpoint %s of network %s %s, so it denies everything: restart the pod", f.Name, f.network.Name, what))
	}
	return append(problems, b.further(all, id, e.NetNS, e.HNS)...)
}

// stray returns the HNS endpoint that an attachment had, if locate does not find it: it is attached somewhere else, or with other
// addresses.
func stray(all []found, e entry) *found {
	i := slices.IndexFunc(all, func(f found) bool { return f.ID == e.HNS && f.HostComputeNamespace != "" })
	if i < 0 {
		return nil
	}
	return &all[i]
}

// candidates returns the endpoints with the addresses of an attachment in its namespace.
func candidates(all []found, e entry) (list []*found) {
	for i := range all {
		if f := &all[i]; hns.SameID(f.HostComputeNamespace, e.NetNS) && f.has(e.IPs) {
			list = append(list, f)
		}
	}
	return list
}

// ambiguous says that several endpoints could be that of an attachment; "" if not.
func ambiguous(all []found, e entry) string {
	list := candidates(all, e)
	if len(list) < 2 {
		return ""
	}
	names := make([]string, len(list))
	for i, f := range list {
		names[i] = f.Name
	}
	return fmt.Sprintf("hns endpoints %s have its addresses in its namespace: remove one, or restart the pod", strings.Join(names, " and "))
}

// locate finds the endpoint of an attachment: that of its namespace with its addresses, also if another program
// has recreated it. An adopted endpoint is never another one.
func locate(all []found, e entry) *found {
	if guid, ok := strings.CutPrefix(e.NetNS, dataplane.HandlePrefix); ok {
		i := slices.IndexFunc(all, func(f found) bool { return f.ID == guid && f.has(e.IPs) })
		if i < 0 {
			return nil
		}
		return &all[i]
	}
	if list := candidates(all, e); len(list) == 1 {
		return list[0]
	}
	return nil
}

// Interfaces implements dataplane.Finder.
func (b *Backend) Interfaces(ctx context.Context) (list []dataplane.Interface, err error) {
	all, err := b.recent(ctx)
	if err != nil {
		return nil, err
	}
	for i := range all {
		f := &all[i]
		if f.HostComputeNamespace == "" || len(addresses(&f.Endpoint)) == 0 {
			continue
		}
		list = append(list, dataplane.Interface{Handle: dataplane.HandlePrefix + f.ID, Name: f.Name, IfName: "eth0", Addresses: addresses(&f.Endpoint),
			Owner: b.registry.owner(f.ID), Closed: b.closed(f), ClosedFor: b.registry.Held[f.ID], Problem: f.problem()})
	}
	return list, nil
}

// closed reports whether an endpoint without an attachment drops every packet.
func (b *Backend) closed(f *found) bool {
	p, err := split(f.Policies)
	if err != nil || len(p.own) == 0 || b.registry.owner(f.ID) != "" {
		return false
	}
	closed, _, err := compose(acl.DenyAll(), p.others)
	return err == nil && acl.Equal(p.own, closed)
}

// mac returns the MAC of an endpoint.
func (f *found) mac() net.HardwareAddr {
	mac, _ := net.ParseMAC(strings.ReplaceAll(f.MACAddress, "-", ":"))
	return mac
}

// FindInterface implements dataplane.Finder.
func (b *Backend) FindInterface(ctx context.Context, spec dataplane.EndpointSpec) (net.HardwareAddr, error) {
	f, err := b.find(ctx, spec)
	if err != nil {
		return nil, fmt.Errorf("find the interface of pod %s: %w", spec.Pod, err)
	}
	return f.mac(), nil
}

// CloseInterface implements dataplane.Finder.
func (b *Backend) CloseInterface(ctx context.Context, handle, claim string) error {
	guid := strings.ToLower(strings.TrimPrefix(handle, dataplane.HandlePrefix))
	all, err := b.scan(ctx)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(all, func(f found) bool { return f.ID == guid })
	if i < 0 {
		return nil
	}
	maps.DeleteFunc(b.registry.Held, func(guid, _ string) bool {
		return !slices.ContainsFunc(all, func(f found) bool { return f.ID == guid })
	})
	err = b.registry.hold(guid, claim)
	_, failed := b.write(ctx, &all[i], acl.DenyAll())
	return errors.Join(err, failed) // a full disk must not leave it open
}

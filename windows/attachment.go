// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/fabric"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// attachment describes an endpoint to the runtime. list holds the endpoints of the network, including the
// host's.
func (b *Backend) attachment(n *hns.Network, list []hns.Endpoint, e *hns.Endpoint, spec dataplane.EndpointSpec) dataplane.Attachment {
	a := dataplane.Attachment{MAC: parseMAC(e.MACAddress), MTU: b.mtu()}
	if b.config.Mode == Overlay {
		a.HostMAC = parseMAC(fabric.TunnelMAC(n))
	} else if host := findNamed(list, b.config.HostEndpoint()); host != nil {
		a.HostMAC = parseMAC(host.MACAddress)
	}
	for _, ip := range spec.IPs {
		p, _ := b.config.rangeOf(ip)
		a.Addresses = append(a.Addresses, netip.PrefixFrom(ip, p.Bits()))
		a.Gateways = append(a.Gateways, b.config.nextHop(p))
	}
	return a
}

// mtu returns the MTU of pods, for the result of ADD only: HNS chooses it. On L2Bridge it is that of the uplink, or the
// usual one while the agent does not know the interfaces of the host.
func (b *Backend) mtu() int {
	if b.config.Mode == Overlay {
		return underlayMTU - 50
	}
	if b.hostFabric != nil && b.hostFabric.MTU() > 0 {
		return b.hostFabric.MTU()
	}
	return underlayMTU
}

// DeleteEndpoint removes an attachment, complete or not.
func (b *Backend) DeleteEndpoint(ctx context.Context, id model.EndpointID) error {
	name, err := b.config.endpointName(id)
	if err != nil {
		return fmt.Errorf("delete endpoint: %w", err)
	}
	if err := b.components.RemoveEndpoint(id); err != nil {
		return fmt.Errorf("delete endpoint %s: %w", id, err)
	}
	n, err := b.findNetwork(ctx)
	if err != nil {
		return fmt.Errorf("delete endpoint %s: %w", id, err)
	}
	if n == nil {
		return b.prepared.Remove(b.prepared.Of(id)...)
	}
	for _, name := range append(b.prepared.Of(id), name) {
		b.disown(name)
		if err := b.removeNamed(ctx, n.ID, name); err != nil {
			return fmt.Errorf("delete endpoint %s: %w", id, err)
		}
	}
	delete(b.specs, id)
	if b.flows != nil {
		b.flows.RemoveEndpoint(id)
	}
	return nil
}

// removeNamed removes every endpoint of a name, and checks that they are gone: HNS has been seen to report
// success and keep them. It tries twice. An endpoint that is listed but not found by each deletion is a
// ghost in HNS's list, and DEL does not fail because of it.
func (b *Backend) removeNamed(ctx context.Context, network, name string) error {
	var failed error
	ghosts := false
	for range 2 {
		list, err := b.listEndpoints(ctx, network)
		if err != nil {
			return err
		}
		list = slices.DeleteFunc(list, func(e hns.Endpoint) bool { return e.Name != name })
		if len(list) == 0 {
			return b.prepared.Remove(name)
		}
		failed, ghosts = nil, true
		for i := range list {
			found, err := b.delete(ctx, &list[i])
			failed, ghosts = errors.Join(failed, err), ghosts && !found
		}
		if hns.Code(failed) == hns.CodeTimeout {
			return failed // each further call could take as long
		}
	}
	list, err := b.listEndpoints(ctx, network)
	if err != nil {
		return err
	}
	if findNamed(list, name) == nil {
		return b.prepared.Remove(name)
	}
	if ghosts {
		b.log.Warn("hns lists an endpoint that it does not find; the next audit retries", "endpoint", name)
		return nil
	}
	if failed == nil {
		failed = fmt.Errorf("hns reports endpoint %q as deleted but still lists it: restart the hns service if this persists", name)
	}
	return failed
}

// remove detaches and deletes an endpoint. A missing endpoint is not an error.
func (b *Backend) remove(ctx context.Context, e *hns.Endpoint) error {
	_, err := b.delete(ctx, e)
	return errors.Join(err, b.prepared.Remove(e.Name))
}

// delete is remove that also reports whether HNS has found the endpoint. An endpoint that cannot be
// detached may still be deleted. If HNS does not answer at all, that is left to the next attempt.
func (b *Backend) delete(ctx context.Context, e *hns.Endpoint) (found bool, err error) {
	if e.HostComputeNamespace != "" {
		b.config.Step("detach endpoint")
		err := b.hns.DetachEndpoint(ctx, e.HostComputeNamespace, e.ID)
		if hns.Code(err) == hns.CodeTimeout {
			return true, fmt.Errorf("detach hns endpoint %q: %w", e.Name, err) // a second call could take as long
		}
		if err != nil && !errors.Is(err, hns.ErrGone) {
			b.log.Warn("cannot detach an endpoint before its removal", "endpoint", e.Name, "error", err)
		}
	}
	b.config.Step("delete endpoint")
	err = b.hns.DeleteEndpoint(ctx, e.ID)
	if errors.Is(err, hns.ErrGone) {
		return false, nil
	}
	if err != nil {
		return true, fmt.Errorf("delete hns endpoint %q: %w", e.Name, err)
	}
	return true, nil
}

// Endpoints lists the endpoints on the network whose names are ours.
func (b *Backend) Endpoints(ctx context.Context) ([]dataplane.Installed, error) {
	n, err := b.findNetwork(ctx)
	if err != nil || n == nil {
		return nil, err
	}
	list, err := b.listEndpoints(ctx, n.ID)
	if err != nil {
		return nil, err
	}
	b.observePrepared(list)
	states, err := b.hns.EndpointStates(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the states of endpoints: %w", err)
	}
	broken := b.checkStates(list, states)
	b.checkHost(list, states)
	b.compareResolvers(list)
	var found []dataplane.Installed
	namespaces := make(map[string]place)
	for i := range list {
		e := &list[i]
		id, ours := b.owner(e.Name)
		if !ours || b.intactPrepared(e, states) {
			continue
		}
		installed := dataplane.Installed{ID: id, Problems: b.problems(e)}
		acls, err := e.ACLs()
		installed.Unenforced = err != nil || !acl.WellFormed(acls)
		if s, ok := broken[strings.ToLower(e.ID)]; ok {
			installed.Problems = append(installed.Problems, fmt.Sprintf("hns has stopped serving it: its state is %s", s))
			installed.Unenforced = true
		}
		if ns := e.HostComputeNamespace; ns == "" {
			installed.Problems, installed.Unenforced = append(installed.Problems, "not attached to a namespace"), true
		} else {
			if _, asked := namespaces[ns]; !asked {
				namespaces[ns] = b.place(ctx, ns, list, states)
			}
			switch err := namespaces[ns].err; {
			case errors.Is(err, hns.ErrGone):
				installed.Problems = append(installed.Problems, fmt.Sprintf("its namespace %s does not exist", ns))
			case err != nil && (ctx.Err() != nil || hns.Code(err) == hns.CodeTimeout):
				return nil, fmt.Errorf("look up namespace %q: %w", ns, err) // the others could take as long
			case err != nil: // it must not keep the problems of all other pods
				installed.Problems = append(installed.Problems, fmt.Sprintf("its namespace cannot be read, so what else is in it is not known: %v", err))
			}
		}
		if ways := slices.Concat(overruled(n, e), b.misplaced(e, id), namespaces[e.HostComputeNamespace].besides(e)); len(ways) > 0 {
			installed.Problems, installed.Unenforced = append(installed.Problems, ways...), true
		}
		if slices.ContainsFunc(found, func(o dataplane.Installed) bool { return o.ID == id }) {
			installed.Problems, installed.Unenforced = append(installed.Problems, "a second endpoint of the same name"), true
		}
		found = append(found, installed)
	}
	return found, nil
}

// place is a namespace with endpoints of ours. further are the endpoints in it where packets pass without its pod's policy, by GUID
// in lower case: those of other programs and of other pods.
type place struct {
	further map[string]string
	err     error
}

// besides names the further endpoints other than e.
func (p place) besides(e *hns.Endpoint) (ways []string) {
	for _, guid := range slices.Sorted(maps.Keys(p.further)) {
		if !hns.SameID(guid, e.ID) {
			ways = append(ways, fmt.Sprintf("hns endpoint %s is in its namespace too, and %s: restart the pod without it", guid, p.further[guid]))
		}
	}
	return ways
}

// place reads a namespace. list holds the endpoints of our network, and states has every endpoint of HNS: a namespace may still
// name one that is gone.
func (b *Backend) place(ctx context.Context, id string, list []hns.Endpoint, states map[string]hns.State) place {
	ns, err := b.hns.Namespace(ctx, id)
	p := place{make(map[string]string), err}
	for _, guid := range ns.EndpointIDs() {
		guid = strings.ToLower(guid)
		if _, exists := states[guid]; !exists {
			continue
		}
		i := slices.IndexFunc(list, func(e hns.Endpoint) bool { _, ours := b.owner(e.Name); return ours && hns.SameID(e.ID, guid) })
		if i < 0 {
			p.further[guid] = "not under policy"
		} else if owner, _ := b.owner(list[i].Name); b.elsewhere(&list[i], owner) {
			p.further[guid] = "under the policy of another pod"
		}
	}
	return p
}

// elsewhere reports whether an endpoint is in another namespace than that of its attachment. Before the attachment is adopted that is
// not known.
func (b *Backend) elsewhere(e *hns.Endpoint, id model.EndpointID) bool {
	spec, known := b.specs[id]
	return known && e.HostComputeNamespace != "" && !hns.SameID(e.HostComputeNamespace, spec.NetNS)
}

// misplaced says where an endpoint is or which addresses it has, if that is not what its attachment needs: the policy of the pod is
// then not that of its packets.
func (b *Backend) misplaced(e *hns.Endpoint, id model.EndpointID) (ways []string) {
	spec, known := b.specs[id]
	if !known {
		return nil
	}
	if b.elsewhere(e, id) {
		ways = append(ways, fmt.Sprintf("is in namespace %s, not in that of its pod", e.HostComputeNamespace))
	}
	if have, want := addressesOf(e), slices.SortedFunc(slices.Values(spec.IPs), netip.Addr.Compare); !slices.Equal(have, want) {
		ways = append(ways, fmt.Sprintf("has the addresses %v, not %v", have, want))
	}
	return ways
}

// overruled names rules of other programs that may pass what the ACLs of an endpoint block.
func overruled(n *hns.Network, e *hns.Endpoint) (ways []string) {
	if why := hns.UnknownOrder(e.Policies); why != "" {
		ways = append(ways, why)
	}
	if why := hns.UnknownOrder(n.Policies); why != "" {
		ways = append(ways, fmt.Sprintf("hns network %s: %s", n.Name, why))
	}
	return ways
}

// problems lists the problems of a single endpoint.
func (b *Backend) problems(e *hns.Endpoint) []string {
	var list []string
	var ips []netip.Addr
	for _, c := range e.IPConfigurations {
		a, err := netip.ParseAddr(c.IPAddress)
		if _, ok := b.config.rangeOf(a); err != nil || !ok {
			list = append(list, fmt.Sprintf("address %s is not in the node's pod ranges", c.IPAddress))
			continue
		}
		ips = append(ips, a)
		if a.Is4() && !strings.EqualFold(e.MACAddress, macOf(a)) {
			list = append(list, fmt.Sprintf("mac address %s, want %s", e.MACAddress, macOf(a)))
		}
	}
	if !slices.ContainsFunc(ips, netip.Addr.Is4) {
		list = append(list, "no IPv4 address")
	}
	if e.Remote() {
		list = append(list, "is a remote endpoint")
	}
	for _, p := range b.wantedPolicies(ips) {
		if (p.Is(hns.TypeOutBoundNAT) || p.Is(hns.TypeSDNRoute)) && !b.nat.due.IsZero() {
			continue // being updated
		}
		if !slices.ContainsFunc(e.Policies, func(o hns.Policy) bool { return b.satisfies(o, p) }) {
			list = append(list, fmt.Sprintf("policy %s %s is missing", p.Type, p.Settings))
		}
	}
	if acls, err := e.ACLs(); err != nil {
		list = append(list, err.Error())
	} else if !acl.WellFormed(acls) {
		list = append(list, "its ACLs do not decide everything")
	}
	return list
}

// includes reports whether a policy of HNS contains the requested settings; HNS may have added members.
func includes(have, want hns.Policy) bool {
	if !have.Is(want.Type) {
		return false
	}
	var h, w map[string]any
	if len(want.Settings) == 0 || json.Unmarshal(want.Settings, &w) != nil {
		return len(want.Settings) == 0
	}
	if json.Unmarshal(have.Settings, &h) != nil {
		return false
	}
	for member, value := range w {
		if !sameValue(h[member], value) {
			return false
		}
	}
	return sameFamily(have, want)
}

// sameValue compares two members of settings. HNS may spell an address in another way.
func sameValue(have, want any) bool {
	switch w := want.(type) {
	case string:
		h, ok := have.(string)
		return ok && (h == w || hns.NormalAddresses(h) == hns.NormalAddresses(w))
	case []any:
		h, ok := have.([]any)
		return ok && slices.EqualFunc(h, w, sameValue)
	}
	return reflect.DeepEqual(have, want)
}

// sameFamily compares the family of OutBoundNAT policies; other types have none.
func sameFamily(a, b hns.Policy) bool {
	if !a.Is(hns.TypeOutBoundNAT) {
		return true
	}
	var x, y hns.OutBoundNAT
	return a.Decode(&x) == nil && b.Decode(&y) == nil && x.Flags&hns.NATIPv6 == y.Flags&hns.NATIPv6
}

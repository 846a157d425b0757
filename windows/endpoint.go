// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/bandwidth"
	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hostport"
	"go4.org/netipx"
)

// AddEndpoint attaches a pod. The endpoint has default deny from its creation on, so that no packet passes
// before the first Apply.
//
// It returns dataplane.ErrNoNetNS if the HCN namespace does not exist. It never returns ErrInterfaceExists:
// HNS does not identify interfaces by name.
func (b *Backend) AddEndpoint(ctx context.Context, spec dataplane.EndpointSpec) (dataplane.Attachment, error) {
	a, err := b.addEndpoint(ctx, spec)
	if err != nil {
		return dataplane.Attachment{}, fmt.Errorf("add endpoint %s: %w", spec.ID, err)
	}
	return a, nil
}

func (b *Backend) addEndpoint(ctx context.Context, spec dataplane.EndpointSpec) (dataplane.Attachment, error) {
	want, err := b.wantedEndpoint(spec)
	if err != nil {
		return dataplane.Attachment{}, err
	}
	if err := b.checkNamespace(ctx, spec.NetNS); err != nil {
		return dataplane.Attachment{}, err
	}
	n, list, err := b.ensureNetwork(ctx)
	if err != nil {
		return dataplane.Attachment{}, err
	}
	want.HostComputeNetwork = n.ID
	found, err := b.adopt(ctx, want, list, spec)
	if err != nil {
		return dataplane.Attachment{}, err
	}
	if err := b.removeRemotes(ctx, want, list); err != nil {
		return dataplane.Attachment{}, err
	}
	// An endpoint of an unfinished call counts as new until it is attached.
	unfinished := found == nil || found.HostComputeNamespace == ""
	if found == nil {
		found, err = b.create(ctx, n, want)
	}
	if err == nil {
		err = b.attach(ctx, found, spec.NetNS)
	}
	if err != nil {
		if unfinished {
			name := want.Name
			if found != nil {
				name = found.Name
			}
			err = errors.Join(err, b.undo(ctx, n.ID, name))
		}
		return dataplane.Attachment{}, err
	}
	return b.added(n, list, found, want, spec), nil
}

// added records an attachment and describes it. list holds the other endpoints of the network.
func (b *Backend) added(n *hns.Network, list []hns.Endpoint, e *hns.Endpoint, want hns.Endpoint, spec dataplane.EndpointSpec) dataplane.Attachment {
	delete(b.orphans, want.Name)
	b.specs[spec.ID] = spec
	b.components.EndpointAdded(spec)
	if b.flows != nil {
		acls, err := e.ACLs()
		b.flows.EndpointAdded(spec, e.HostComputeNamespace != "" && err == nil && acl.WellFormed(acls))
	}
	return b.attachment(n, list, e, spec)
}

// wantedEndpoint validates a request and returns the desired HNS endpoint.
func (b *Backend) wantedEndpoint(spec dataplane.EndpointSpec) (hns.Endpoint, error) {
	name, err := b.config.endpointName(spec.ID)
	if err != nil {
		return hns.Endpoint{}, err
	}
	e := hns.Endpoint{Name: name, DNS: resolver(spec.DNS), SchemaVersion: hns.Schema2}
	for _, a := range spec.IPs {
		p, ok := b.config.rangeOf(a)
		if !ok {
			return hns.Endpoint{}, fmt.Errorf("address %s: not in the node's pod ranges %v", a, b.config.PodCIDRs)
		}
		reserved := a == p.Addr() || a == gateway(p) || a == b.config.nextHop(p) || a.Is4() && a == netipx.PrefixLastIP(p)
		if reserved {
			return hns.Endpoint{}, fmt.Errorf("address %s: reserved on Windows in %s; the allocator must skip the first addresses and the last", a, p)
		}
		if slices.ContainsFunc(e.IPConfigurations, func(c hns.IPConfig) bool { return strings.Contains(c.IPAddress, ":") == a.Is6() }) {
			return hns.Endpoint{}, fmt.Errorf("address %s: a second one of its family", a)
		}
		e.IPConfigurations = append(e.IPConfigurations, hns.IPConfig{IPAddress: a.String(), PrefixLength: uint8(p.Bits())})
		e.Routes = append(e.Routes, hns.Route{NextHop: b.config.nextHop(p).String(), DestinationPrefix: defaultRoute(p)})
		if a.Is4() {
			e.MACAddress = macOf(a)
		}
	}
	if e.MACAddress == "" {
		return hns.Endpoint{}, errors.New("addresses: HNS endpoints need an IPv4 address")
	}
	mappings, err := hostport.Policies(spec.HostPorts, spec.IPs, b.nodeAddresses())
	if err != nil {
		return hns.Endpoint{}, err
	}
	limits, err := bandwidth.Policies(spec.Bandwidth)
	if err != nil {
		return hns.Endpoint{}, err
	}
	e.Policies = slices.Concat(b.wantedPolicies(spec.IPs), mappings, limits)
	for _, a := range acl.DenyAll() {
		e.Policies = append(e.Policies, a.Policy())
	}
	return e, nil
}

// wantedPolicies returns the policies besides the ACLs.
func (b *Backend) wantedPolicies(ips []netip.Addr) []hns.Policy {
	list := b.natPolicies(ips)
	if b.config.Mode == Overlay {
		for _, a := range b.config.NodeAddresses {
			if a.Is4() {
				return append(list, hns.MakePolicy(hns.TypeProviderAddress, hns.ProviderAddress{ProviderAddress: a.String()}))
			}
		}
	}
	// Services and the node are reached through the host.
	list = append(list, b.serviceRoutes(ips)...)
	for _, node := range b.config.NodeAddresses {
		if slices.ContainsFunc(ips, func(a netip.Addr) bool { return a.Is6() == node.Is6() }) {
			list = append(list, hns.MakePolicy(hns.TypeSDNRoute, hns.SDNRoute{DestinationPrefix: netip.PrefixFrom(node, node.BitLen()).String(), NeedEncap: true}))
		}
	}
	return list
}

func (b *Backend) checkNamespace(ctx context.Context, id string) error {
	if id == "" {
		return errors.New("network namespace: want the GUID of an HCN namespace")
	}
	_, err := b.hns.Namespace(ctx, id)
	if errors.Is(err, hns.ErrGone) {
		return fmt.Errorf("namespace %q: %w", id, dataplane.ErrNoNetNS)
	}
	if err != nil {
		return fmt.Errorf("look up namespace %q: %w", id, err)
	}
	return nil
}

// adopt finds the attachment of an earlier call and repairs its policies. It removes the attachment if it
// has wrong addresses, is in another namespace (not every HNS supports a change), or if HNS has stopped
// serving it. It removes an endpoint with another resolver only if no namespace has it: a pod may be running
// in that. It also removes further endpoints of the attachment.
func (b *Backend) adopt(ctx context.Context, want hns.Endpoint, list []hns.Endpoint, spec dataplane.EndpointSpec) (*hns.Endpoint, error) {
	namespace := spec.NetNS
	if !slices.ContainsFunc(list, func(e hns.Endpoint) bool { return b.belongs(&e, spec.ID) }) {
		return nil, nil
	}
	states, err := b.hns.EndpointStates(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the states of endpoints: %w", err)
	}
	var found *hns.Endpoint
	for i := range list {
		e := &list[i]
		if !b.belongs(e, spec.ID) {
			continue
		}
		elsewhere := e.HostComputeNamespace != "" && !hns.SameID(e.HostComputeNamespace, namespace)
		limited := bandwidth.Limits(e.Policies) && !bandwidth.Limits(want.Policies) // writing the other policies may not remove a limit
		misresolved := e.HostComputeNamespace == "" && !sameResolver(e.DNS, want.DNS)
		if found == nil && !e.Remote() && sameAddresses(e, &want) && !elsewhere && !limited && !misresolved && !states[strings.ToLower(e.ID)].Broken() {
			found = e
			continue
		}
		b.log.Info("removing another endpoint of the attachment", "endpoint", e.Name, "addresses", addressTexts(e))
		b.config.Step("remove stale endpoint")
		if err := b.remove(ctx, e); err != nil {
			return nil, fmt.Errorf("remove a stale endpoint of the attachment: %w", err)
		}
	}
	if found == nil {
		return nil, nil
	}
	repaired, changed := b.repairPolicies(found.Policies, want.Policies)
	if !changed {
		return found, nil
	}
	b.config.Step("repair policies")
	answer, err := b.writePolicies(ctx, found.ID, hns.InOrder(repaired))
	if errors.Is(err, hns.ErrGone) {
		return nil, nil // the caller creates it again
	}
	if err != nil {
		return nil, fmt.Errorf("repair policies: %w", err)
	}
	if acls, err := answer.ACLs(); err != nil || !acl.WellFormed(acls) {
		return nil, errors.Join(fmt.Errorf("repair policies: hns still has no acls for endpoint %q that decide everything", found.Name), err)
	}
	return found, nil
}

// repairPolicies adds missing policies. ACLs stay if they decide everything; otherwise they are replaced by
// default deny.
func (b *Backend) repairPolicies(have, want []hns.Policy) (all []hns.Policy, changed bool) {
	e := hns.Endpoint{Policies: have}
	list, err := e.ACLs()
	keepACLs := err == nil && acl.WellFormed(list)
	for _, p := range have {
		if !p.Is(hns.TypeACL) {
			all = append(all, p)
		}
	}
	for _, p := range want {
		if p.Is(hns.TypeACL) || slices.ContainsFunc(have, func(o hns.Policy) bool { return b.satisfies(o, p) }) {
			continue
		}
		// HNS accepts one OutBoundNAT per family: ours replaces the current one.
		all = slices.DeleteFunc(all, func(o hns.Policy) bool {
			return o.Is(p.Type) && !p.Is(hns.TypeSDNRoute) && !p.Is(hns.TypePortMapping) && sameFamily(o, p)
		})
		all = append(all, p)
		changed = true
	}
	from := have
	if !keepACLs {
		from, changed = want, true
	}
	for _, p := range from {
		if p.Is(hns.TypeACL) {
			all = append(all, p)
		}
	}
	return all, changed
}

// create creates the endpoint. If its address is in use by an endpoint that is certainly stale, it removes
// that first. Stale are our own endpoints, since the allocator has assigned the address to this pod, and
// remote ones, since the address is in this node's range.
func (b *Backend) create(ctx context.Context, n *hns.Network, want hns.Endpoint) (*hns.Endpoint, error) {
	b.config.Step("create endpoint")
	made, err := createClosed(ctx, b.hns, want)
	return b.createAgain(ctx, n, want, made, err)
}

// createAgain continues create with the answer of its first call.
func (b *Backend) createAgain(ctx context.Context, n *hns.Network, want, made hns.Endpoint, err error) (*hns.Endpoint, error) {
	for attempt := 0; err != nil; attempt++ {
		if hns.Code(err) == hns.CodePortExists {
			err = b.portTaken(ctx, n, want, err)
			if err != nil || attempt > 0 {
				return nil, err
			}
		} else if !errors.Is(err, hns.ErrConflict) || attempt > 0 {
			return nil, fmt.Errorf("create hns endpoint: %w", remedied(err))
		} else if err := b.removeStale(ctx, n, want, err); err != nil {
			return nil, err
		}
		b.config.Step("create endpoint")
		made, err = createClosed(ctx, b.hns, want)
	}
	return &made, nil
}

// createClosed creates an endpoint that denies everything. The answer is what HNS stored, as hcsshim reads the
// new endpoint back. An endpoint without its ACLs would allow everything as soon as it is attached. One with other addresses would be
// made again by each audit. An answer without any is believed.
func createClosed(ctx context.Context, client *hns.Guarded, want hns.Endpoint) (hns.Endpoint, error) {
	made, err := client.CreateEndpoint(ctx, want)
	if err == nil {
		err = checkClosed(&made)
	}
	if have, ips := addressesOf(&made), addressesOf(&want); err == nil && len(have) > 0 && !slices.Equal(have, ips) {
		err = fmt.Errorf("hns gave endpoint %q the addresses %v, not %v: turn on the missing family on this host, as with Enable-NetAdapterBinding -ComponentID ms_tcpip6 and without DisabledComponents in the registry",
			want.Name, have, ips)
	}
	return made, err
}

// checkClosed returns an error if an endpoint has other ACLs than default deny.
func checkClosed(e *hns.Endpoint) error {
	acls, err := e.ACLs()
	if err != nil || !acl.Equal(acls, acl.DenyAll()) {
		return errors.Join(fmt.Errorf("hns did not store default deny for endpoint %q, but %d acls: restart the hns service, and install the updates of Windows if this persists", e.Name, len(acls)), err)
	}
	return nil
}

// attach attaches an endpoint without a namespace to the namespace.
func (b *Backend) attach(ctx context.Context, e *hns.Endpoint, namespace string) error {
	if hns.SameID(e.HostComputeNamespace, namespace) {
		return nil
	}
	b.config.Step("attach endpoint")
	return b.attached(ctx, e, namespace, b.hns.AttachEndpoint(ctx, namespace, e.ID))
}

// attached judges the answer of HNS to an attachment.
func (b *Backend) attached(ctx context.Context, e *hns.Endpoint, namespace string, err error) error {
	if errors.Is(err, hns.ErrConflict) {
		// Another component attached it first: that is success if it is in this namespace.
		ns, nsErr := b.hns.Namespace(ctx, namespace)
		if nsErr == nil && slices.ContainsFunc(ns.EndpointIDs(), func(id string) bool { return hns.SameID(id, e.ID) }) {
			return nil
		}
	}
	if errors.Is(err, hns.ErrGone) {
		if err := b.checkNamespace(ctx, namespace); err != nil {
			return err
		}
	}
	if err != nil {
		return fmt.Errorf("attach to namespace %q: %w", namespace, err)
	}
	return nil
}

func sameAddresses(a, b *hns.Endpoint) bool {
	return slices.Equal(addressTexts(a), addressTexts(b))
}

func sharesAddress(a, b *hns.Endpoint) bool {
	return slices.ContainsFunc(addressTexts(a), func(s string) bool { return slices.Contains(addressTexts(b), s) })
}

func addressTexts(e *hns.Endpoint) []string {
	var texts []string
	for _, c := range e.IPConfigurations {
		if a, err := netip.ParseAddr(c.IPAddress); err == nil {
			texts = append(texts, a.String())
		}
	}
	slices.Sort(texts)
	return texts
}

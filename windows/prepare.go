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
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/prepared"
)

// preparedInterface takes the place of the interface in the names of prepared endpoints. No attachment has
// it, as it is longer than CNI allows. An agent that knows no prepared endpoints removes them as attachments
// without a record.
const preparedInterface = "prepared-endpoint"

// preparedID is the id of a prepared endpoint that no attachment uses.
func preparedID(ips []netip.Addr) model.EndpointID {
	i := slices.IndexFunc(ips, netip.Addr.Is4)
	if i < 0 {
		return ""
	}
	return model.MakeEndpointID("spare-"+ips[i].String(), preparedInterface)
}

// isPrepared reports whether an id is one of preparedID.
func isPrepared(id model.EndpointID) bool {
	return strings.HasSuffix(string(id), ":"+preparedInterface)
}

// owner returns the attachment that has an endpoint; ours reports whether it belongs to Isthmus. An unused
// prepared endpoint has an id of its own.
func (b *Backend) owner(name string) (id model.EndpointID, ours bool) {
	if e, ok := b.prepared.Get(name); ok && e.Owner != "" {
		return e.Owner, true
	}
	return b.config.parseEndpointName(name)
}

// belongs reports whether an attachment has an endpoint.
func (b *Backend) belongs(e *hns.Endpoint, id model.EndpointID) bool {
	owner, ours := b.owner(e.Name)
	return ours && owner == id
}

// Prepared implements dataplane.Preparer.
func (b *Backend) Prepared() []dataplane.Prepared { return slices.Clone(b.ready) }

// observePrepared reads from a listing which prepared endpoints are ready. It forgets the unused ones that
// are gone or cannot be used: those that still exist are then removed as unknown.
func (b *Backend) observePrepared(list []hns.Endpoint) {
	b.ready = nil
	var gone []string
	for _, name := range b.prepared.Unused() {
		if b.preparing[name] {
			continue
		}
		entry, _ := b.prepared.Get(name)
		e := findNamed(list, name)
		if e == nil || !sameResolver(e.DNS, resolver(entry.DNS)) {
			gone = append(gone, name)
			continue
		}
		if e.HostComputeNamespace == "" {
			b.ready = append(b.ready, dataplane.Prepared{IPs: addressesOf(e), DNS: entry.DNS})
		}
	}
	if err := b.prepared.Remove(gone...); err != nil {
		b.log.Warn("forget prepared endpoints that are gone", "error", err)
	}
}

// addressesOf returns the addresses of an endpoint, sorted.
func addressesOf(e *hns.Endpoint) (ips []netip.Addr) {
	for _, c := range e.IPConfigurations {
		if a, err := netip.ParseAddr(c.IPAddress); err == nil {
			ips = append(ips, a)
		}
	}
	slices.SortFunc(ips, netip.Addr.Compare)
	return ips
}

// intactPrepared reports whether an endpoint is unused, prepared, and as it should be. The ACLs are compared
// by Audit, which repairs them.
func (b *Backend) intactPrepared(e *hns.Endpoint, states map[string]hns.State) bool {
	entry, ok := b.prepared.Get(e.Name)
	if !ok || entry.Owner != "" {
		return false
	}
	return b.preparing[e.Name] || e.HostComputeNamespace == "" && !states[strings.ToLower(e.ID)].Broken() && len(b.problems(e)) == 0
}

// Prepare implements dataplane.Preparer. The name of the endpoint is recorded before HNS is called.
func (b *Backend) Prepare(ctx context.Context, p dataplane.Prepared, done func()) (finish func(context.Context) error, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("prepare endpoint %s: %w", p.IPs, err)
		}
	}()
	want, err := b.wantedEndpoint(dataplane.EndpointSpec{ID: preparedID(p.IPs), IPs: p.IPs, DNS: p.DNS})
	if err != nil {
		return nil, err
	}
	n, list, err := b.ensureNetwork(ctx)
	if err != nil {
		return nil, err
	}
	want.HostComputeNetwork = n.ID
	if i := slices.IndexFunc(list, func(e hns.Endpoint) bool { return e.Name == want.Name || sharesAddress(&e, &want) }); i >= 0 {
		return nil, fmt.Errorf("endpoint %q has the address", list[i].Name)
	}
	b.config.Step("record prepared endpoint")
	if err := b.prepared.Put(want.Name, prepared.Entry{DNS: p.DNS}); err != nil {
		return nil, err
	}
	b.preparing[want.Name] = true
	nat := b.nat
	var made hns.Endpoint
	var createErr error
	b.config.Step("create prepared endpoint")
	go func() {
		defer done()
		made, createErr = createClosed(ctx, b.hns, want)
	}()
	return func(ctx context.Context) error {
		delete(b.preparing, want.Name)
		err := createErr
		if err == nil && !sameResolver(made.DNS, want.DNS) {
			err = fmt.Errorf("hns stored the DNS servers %v and search domains %v, not %v and %v", made.DNS.ServerList, made.DNS.Search, want.DNS.ServerList, want.DNS.Search)
		}
		if err != nil {
			return fmt.Errorf("prepare endpoint %s: %w", p.IPs, errors.Join(remedied(err), b.undo(ctx, n.ID, want.Name)))
		}
		delete(b.orphans, want.Name)
		b.ready = append(b.ready, p)
		b.natSince(nat)
		return nil
	}, nil
}

// Discard implements dataplane.Preparer.
func (b *Backend) Discard(ctx context.Context, p dataplane.Prepared) error {
	id := preparedID(p.IPs)
	name, err := b.config.endpointName(id)
	if err != nil {
		return fmt.Errorf("discard prepared endpoint %s: %w", p.IPs, err)
	}
	if entry, ok := b.prepared.Get(name); b.preparing[name] || ok && entry.Owner != "" {
		return fmt.Errorf("discard prepared endpoint %s: it is in use", p.IPs)
	}
	b.ready = slices.DeleteFunc(b.ready, func(o dataplane.Prepared) bool { return slices.Equal(o.IPs, p.IPs) })
	if err := b.DeleteEndpoint(ctx, id); err != nil {
		return err
	}
	return b.prepared.Remove(name)
}

// preparedFor returns the prepared endpoint that a new attachment can use, or nil. No other endpoint may have
// its addresses, and no write of it may be under way.
func (b *Backend) preparedFor(spec dataplane.EndpointSpec, want hns.Endpoint, list []hns.Endpoint) (found *hns.Endpoint) {
	if len(spec.HostPorts) > 0 || spec.Bandwidth != (model.Bandwidth{}) {
		return nil
	}
	for i := range list {
		e := &list[i]
		if b.belongs(e, spec.ID) {
			return nil
		}
		if !sharesAddress(e, &want) {
			continue
		}
		entry, ok := b.prepared.Get(e.Name)
		if found != nil || !ok || entry.Owner != "" || b.preparing[e.Name] || e.Remote() || e.HostComputeNamespace != "" ||
			!sameAddresses(e, &want) || !sameResolver(e.DNS, want.DNS) || !entry.DNS.Equal(spec.DNS) {
			return nil
		}
		found = e
	}
	if found == nil || b.hns.Unfinished()[hns.EndpointObject(found.ID)] {
		return nil
	}
	return found
}

// startPrepared is StartEndpoint with a prepared endpoint: it records the owner, and attaches the endpoint
// beside the other methods. If HNS no longer has the endpoint, finish is AddEndpoint.
func (b *Backend) startPrepared(ctx context.Context, n *hns.Network, list []hns.Endpoint, e *hns.Endpoint, want hns.Endpoint,
	spec dataplane.EndpointSpec, done func()) (func(context.Context) (dataplane.Attachment, error), error) {
	if err := b.closePrepared(ctx, e, want); err != nil {
		b.log.Warn("a prepared endpoint is not used", "endpoint", e.Name, "error", err)
		go done()
		return func(ctx context.Context) (dataplane.Attachment, error) { return b.AddEndpoint(ctx, spec) }, nil
	}
	b.config.Step("take prepared endpoint")
	if err := b.prepared.Put(e.Name, prepared.Entry{DNS: spec.DNS, Owner: spec.ID}); err != nil {
		return nil, err
	}
	b.ready = slices.DeleteFunc(b.ready, func(p dataplane.Prepared) bool { return slices.Equal(p.IPs, addressesOf(e)) })
	s, nat := &started{want: want, namespace: spec.NetNS, made: *e}, b.nat
	b.config.Step("attach endpoint")
	go func() {
		defer done()
		s.attachErr = b.hns.AttachEndpoint(ctx, s.namespace, s.made.ID)
	}()
	return func(ctx context.Context) (dataplane.Attachment, error) {
		found, err := b.finish(ctx, n, s)
		if errors.Is(s.attachErr, hns.ErrGone) && !errors.Is(err, dataplane.ErrNoNetNS) {
			return b.AddEndpoint(ctx, spec)
		}
		if err != nil {
			return dataplane.Attachment{}, fmt.Errorf("add endpoint %s: %w", spec.ID, errors.Join(err, b.undo(ctx, n.ID, e.Name)))
		}
		b.natSince(nat)
		return b.added(n, list, found, want, spec), nil
	}, nil
}

// closePrepared writes the policies of a prepared endpoint unless they are as wanted: default deny, and the
// present exceptions of NAT.
func (b *Backend) closePrepared(ctx context.Context, e *hns.Endpoint, want hns.Endpoint) error {
	policies, changed := b.repairPolicies(e.Policies, want.Policies)
	if checkClosed(e) != nil {
		policies, changed = slices.DeleteFunc(policies, func(p hns.Policy) bool { return p.Is(hns.TypeACL) }), true
		for _, a := range acl.DenyAll() {
			policies = append(policies, a.Policy())
		}
	}
	if !changed {
		return nil
	}
	b.config.Step("repair policies")
	answer, err := b.writePolicies(ctx, e.ID, hns.InOrder(policies))
	if err != nil {
		return fmt.Errorf("repair policies: %w", err)
	}
	return checkClosed(&answer)
}

// preparedFacts is the line of status about prepared endpoints, if there are any.
func (b *Backend) preparedFacts() []string {
	unused, used := len(b.prepared.Unused()), b.prepared.Used()
	if unused+used == 0 {
		return nil
	}
	return []string{fmt.Sprintf("endpoint pool: %d prepared endpoints, %d in use by pods", unused, used)}
}

// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/outbound"
)

// natBatch is the number of endpoints that one Idle writes.
const natBatch = 8

// natState is which traffic of pods gets the address of the node.
type natState struct {
	// known is true if the exceptions are known; without them there is no NAT.
	known      bool
	exceptions []netip.Prefix
	// services are the ranges of Services, which pods of an L2Bridge network reach by the host.
	services []netip.Prefix
	// due is when endpoints without the current exceptions are written; zero if there is nothing to write.
	due     time.Time
	problem string
	// tried is the name of the endpoint that was written last, or could not be: the next one is first.
	tried string
}

// deriveNAT computes the exceptions, and the ranges of Services, from a State. Endpoints that exist follow in syncNAT; new ones get the
// present exceptions at once.
func (b *Backend) deriveNAT(s *model.State, now time.Time) {
	if len(b.config.OutboundNATExceptions) > 0 || !outbound.Known(s.Fabric) {
		return
	}
	services := outbound.Services(s.Fabric, b.config.ServiceCIDRs)
	var exceptions []netip.Prefix
	if b.config.derivesNAT() {
		exceptions = outbound.Exceptions(s.Fabric, b.config.PodCIDRs, services, b.config.Mode == Overlay)
	}
	if b.nat.known && slices.Equal(exceptions, b.nat.exceptions) && slices.Equal(services, b.nat.services) {
		return
	}
	delay := b.config.NATDelay
	if !b.nat.known {
		delay = 0 // nothing more is to come that pods of this node wait for
	}
	b.nat.known, b.nat.exceptions, b.nat.services = true, exceptions, services
	if b.nat.due.IsZero() {
		b.nat.due = now.Add(delay)
	}
}

// syncNAT writes the policies of endpoints whose exceptions do not cover the current ones, once that is due.
// It reports whether more are left. After an error it tries again when NATDelay has passed.
func (b *Backend) syncNAT(ctx context.Context, now time.Time) (more bool) {
	if b.nat.due.IsZero() || now.Before(b.nat.due) {
		return false
	}
	b.mu.Lock()
	network := b.network
	b.mu.Unlock()
	unfinished := b.hns.Unfinished()
	list, err := b.listEndpoints(ctx, network)
	slices.SortFunc(list, func(a, b hns.Endpoint) int { return strings.Compare(a.Name, b.Name) })
	first := max(0, slices.IndexFunc(list, func(e hns.Endpoint) bool { return e.Name > b.nat.tried }))
	list = slices.Concat(list[first:], list[:first]) // those that cannot be written must not keep others waiting
	var errs []error
	written := 0
	for i := range list {
		e := &list[i]
		policies, changed := b.natChange(e)
		if !changed {
			continue
		}
		if unfinished[hns.EndpointObject(e.ID)] {
			errs = append(errs, fmt.Errorf("endpoint %s: an earlier write has not returned", e.Name))
			continue
		}
		if written == natBatch {
			more = true
			break
		}
		written++
		b.nat.tried = e.Name
		if err := b.writeNAT(ctx, e, policies); err != nil {
			errs = append(errs, fmt.Errorf("endpoint %s: %w", e.Name, err))
		}
	}
	if err = errors.Join(append(errs, err)...); err != nil {
		if b.nat.problem == "" {
			b.log.Warn("update outbound NAT of pods; retrying", "error", err)
		}
		b.nat.due, b.nat.problem = time.Now().Add(b.config.NATDelay), fmt.Sprintf("outbound NAT of some pods does not except all ranges of the cluster yet: %v", err)
		return false
	}
	if !more {
		b.nat.due, b.nat.problem = time.Time{}, ""
	}
	return more
}

// natChange returns the policies of an endpoint with the current exceptions and routes to Services, and
// whether they differ.
// Endpoints with damaged ACLs are left to Apply.
func (b *Backend) natChange(e *hns.Endpoint) (policies []hns.Policy, changed bool) {
	if _, ours := b.config.parseEndpointName(e.Name); !ours || e.Remote() {
		return nil, false
	}
	if acls, err := e.ACLs(); err != nil || !acl.WellFormed(acls) {
		return nil, false
	}
	var ips []netip.Addr
	for _, c := range e.IPConfigurations {
		if a, err := netip.ParseAddr(c.IPAddress); err == nil {
			ips = append(ips, a)
		}
	}
	return b.repairPolicies(e.Policies, append(b.natPolicies(ips), b.serviceRoutes(ips)...))
}

// writeNAT writes all policies of an endpoint, as replaceACLs does.
func (b *Backend) writeNAT(ctx context.Context, e *hns.Endpoint, policies []hns.Policy) error {
	b.config.Step("update outbound nat")
	answer, err := b.writePolicies(ctx, e.ID, hns.InOrder(policies))
	if errors.Is(err, hns.ErrGone) {
		return nil
	}
	if err != nil {
		return remedied(err)
	}
	if _, differs := b.natChange(&answer); differs {
		return errors.New("hns accepted the policy but did not store it")
	}
	return nil
}

// natPolicies returns the OutBoundNAT policies of an endpoint with these addresses.
func (b *Backend) natPolicies(ips []netip.Addr) []hns.Policy {
	if b.config.NoOutboundNAT || !b.nat.known {
		return nil
	}
	return outbound.Policies(b.nat.exceptions, ips)
}

// serviceRoutes returns the routes of an endpoint to Services by the host.
func (b *Backend) serviceRoutes(ips []netip.Addr) (list []hns.Policy) {
	if b.config.Mode == Overlay {
		return nil
	}
	for _, p := range b.nat.services {
		if slices.ContainsFunc(ips, func(a netip.Addr) bool { return a.Is6() == p.Addr().Is6() }) {
			list = append(list, hns.MakePolicy(hns.TypeSDNRoute, hns.SDNRoute{DestinationPrefix: p.String(), NeedEncap: true}))
		}
	}
	return list
}

// satisfies reports whether an installed policy meets the intended one.
func (b *Backend) satisfies(have, want hns.Policy) bool {
	if b.config.derivesNAT() && want.Is(hns.TypeOutBoundNAT) {
		return outbound.Covers(have, want)
	}
	return includes(have, want)
}

// natProblems returns why pods do not get the address of the node as configured, or reach no Services.
func (b *Backend) natProblems() (all []string) {
	if !b.config.NoOutboundNAT && !b.nat.known {
		all = append(all, "outbound NAT is off until the pod ranges of other nodes are known, because pods there would take the node for the sender: new pods reach nothing beyond the cluster meanwhile")
	}
	if b.config.Mode == L2Bridge && b.nat.known && len(b.nat.services) == 0 {
		all = append(all, "warning: pods reach no Services, and so no cluster DNS: "+b.noServices())
	}
	if b.nat.problem != "" {
		all = append(all, strings.ReplaceAll(b.nat.problem, "\n", "; "))
	}
	return all
}

// noServices returns why no range of Services is known, and the remedy.
func (b *Backend) noServices() string {
	const remedy = "give the range of Services: windows.serviceCIDRs in the chart, or --service-cidr"
	if len(b.config.OutboundNATExceptions) > 0 {
		return "with --cluster-cidr, ServiceCIDR objects give no range: " + remedy
	}
	return "the cluster has no ServiceCIDR objects, which Kubernetes has from 1.33 on: " + remedy
}

// natFact is the line of status.
func (b *Backend) natFact() string {
	source := "of --cluster-cidr and --service-cidr"
	if b.config.derivesNAT() {
		source = "of Nodes, ServiceCIDRs and --service-cidr"
	}
	switch {
	case b.config.NoOutboundNAT:
		return "outbound NAT: off (--masquerade=false)"
	case !b.nat.known:
		return "outbound NAT: off"
	case !b.nat.due.IsZero():
		return fmt.Sprintf("outbound NAT: on, except to %d ranges (%s); pods are being updated", len(b.nat.exceptions), source)
	}
	return fmt.Sprintf("outbound NAT: on, except to %d ranges (%s)", len(b.nat.exceptions), source)
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// endpointName is the name of the endpoint to which lists are written.
const endpointName = "isthmus-conformance"

// bench is the endpoint to which lists are written, and the sets on its network.
type bench struct {
	hns      hns.Client
	host     outside
	version  hns.Version
	network  hns.Network
	endpoint hns.Endpoint
	// dnsRefused is the error of HNS when the endpoint was created with a resolver.
	dnsRefused error
	// sets are the sets that the bench has made and not removed.
	sets map[string]hns.SetPolicy
}

// benchDNS is the resolver of the bench's endpoint, in which nothing resolves.
var benchDNS = hns.DNS{ServerList: []string{"192.0.2.53", "192.0.2.54"},
	Search: []string{"conformance.invalid", "isthmus.invalid"}, Options: []string{"ndots:5"}}

// newBench makes the endpoint, and removes one that an earlier run has left.
func newBench(ctx context.Context, client hns.Client, o options) (*bench, error) {
	b := &bench{hns: client, sets: make(map[string]hns.SetPolicy)}
	var err error
	if b.version, err = client.Version(ctx); err != nil {
		return nil, fmt.Errorf("ask hns for its version: %w", err)
	}
	if err := b.findNetwork(ctx, o.network); err != nil {
		return nil, err
	}
	list, err := client.Endpoints(ctx, b.network.ID)
	if err != nil {
		return nil, fmt.Errorf("list endpoints: %w", err)
	}
	for _, e := range list {
		if e.Name != endpointName {
			continue
		}
		if err := client.DeleteEndpoint(ctx, e.ID); err != nil && !errors.Is(err, hns.ErrGone) {
			return nil, fmt.Errorf("remove the endpoint of an earlier run: %w", err)
		}
	}
	want := hns.Endpoint{Name: endpointName, HostComputeNetwork: b.network.ID, SchemaVersion: hns.Schema2,
		IPConfigurations: []hns.IPConfig{{IPAddress: o.address.String()}}, Policies: wrap(acl.DenyAll())}
	want.DNS = benchDNS
	if b.endpoint, err = client.CreateEndpoint(ctx, want); errors.Is(err, hns.ErrRefused) {
		want.DNS, b.dnsRefused = hns.DNS{}, err
		b.endpoint, err = client.CreateEndpoint(ctx, want)
	}
	if err != nil {
		return nil, fmt.Errorf("make an endpoint with --address %s: %w: give a free address of network %s", o.address, err, o.network)
	}
	return b, nil
}

func (b *bench) findNetwork(ctx context.Context, name string) error {
	list, err := b.hns.Networks(ctx)
	if err != nil {
		return fmt.Errorf("list networks: %w", err)
	}
	var names []string
	for _, n := range list {
		if strings.EqualFold(n.Name, name) {
			b.network = n
			return nil
		}
		names = append(names, n.Name)
	}
	return fmt.Errorf("--network %q: hns has no such network, it has %q", name, names)
}

// close removes the objects of the bench, also after the context has ended.
func (b *bench) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	err := b.hns.DeleteEndpoint(ctx, b.endpoint.ID)
	if errors.Is(err, hns.ErrGone) {
		err = nil
	}
	return errors.Join(err, b.removeSets(ctx))
}

// wrap puts ACLs into the envelope of policies.
func wrap(list []hns.ACL) []hns.Policy {
	all := make([]hns.Policy, len(list))
	for i, a := range list {
		all[i] = a.Policy()
	}
	return all
}

// list replaces the ACLs of the bench's endpoint, and returns the list that HNS then reports.
func (b *bench) list(ctx context.Context, list ...hns.ACL) ([]hns.ACL, error) {
	e, err := b.hns.ModifyEndpoint(ctx, b.endpoint.ID, hns.Update, wrap(list)...)
	if err != nil {
		return nil, err
	}
	return e.ACLs()
}

// set makes or replaces a set, and reports whether the network then has it.
func (b *bench) set(ctx context.Context, set hns.SetPolicy) (bool, error) {
	request := hns.Add
	if _, ok := b.sets[set.ID]; ok {
		request = hns.Update
	}
	n, err := b.hns.ModifyNetwork(ctx, b.network.ID, request, set.Policy())
	if err != nil {
		return false, err
	}
	b.sets[set.ID] = set
	return n.HoldsSet(set)
}

// removeSets removes all sets that the bench has made. No list may refer to one.
func (b *bench) removeSets(ctx context.Context) error {
	var errs []error
	for id, set := range b.sets {
		_, err := b.hns.ModifyNetwork(ctx, b.network.ID, hns.Remove, set.Policy())
		if err != nil && !errors.Is(err, hns.ErrGone) {
			errs = append(errs, fmt.Errorf("remove set %s: %w", id, err))
			continue
		}
		delete(b.sets, id)
	}
	return errors.Join(errs...)
}

// clean makes the endpoint deny everything, and removes all sets.
func (b *bench) clean(ctx context.Context) error {
	if _, err := b.list(ctx, acl.DenyAll()...); err != nil {
		return fmt.Errorf("deny everything: %w", err)
	}
	return b.removeSets(ctx)
}

// made are the sets that the bench has made, by id.
func (b *bench) made() []hns.SetPolicy {
	all := make([]hns.SetPolicy, 0, len(b.sets))
	for _, s := range b.sets {
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b hns.SetPolicy) int { return strings.Compare(a.ID, b.ID) })
	return all
}

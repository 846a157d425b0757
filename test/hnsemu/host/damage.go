// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"

	"github.com/isthmus-net/isthmus/windows/hns"
)

// damageList replaces the ACLs of an endpoint by ACLs that block everything, or removes them.
func (h *Host) damageList(ctx context.Context, q url.Values) error {
	e, err := h.endpointAt(ctx, q.Get("address"))
	if err != nil {
		return err
	}
	var acls, rest []hns.Policy
	for _, p := range e.Policies {
		if p.Is(hns.TypeACL) {
			acls = append(acls, p)
		} else {
			rest = append(rest, p)
		}
	}
	if q.Get("empty") == "true" {
		return h.modify(ctx, e.ID, hns.Remove, acls)
	}
	var block []hns.Policy
	for _, d := range []hns.Direction{hns.In, hns.Out} {
		block = append(block, hns.ACL{Action: hns.Block, Direction: d, RuleType: hns.Switch, Priority: 100}.Policy())
	}
	return h.modify(ctx, e.ID, hns.Update, append(block, rest...))
}

// modify changes the policies of an endpoint.
func (h *Host) modify(ctx context.Context, endpoint string, r hns.RequestType, policies []hns.Policy) error {
	_, err := h.store.ModifyEndpoint(ctx, endpoint, r, policies...)
	return errors.Join(err, h.changed())
}

// endpointAt returns the endpoint with an address.
func (h *Host) endpointAt(ctx context.Context, address string) (hns.Endpoint, error) {
	networks, err := h.store.Networks(ctx)
	if err != nil {
		return hns.Endpoint{}, err
	}
	for _, n := range networks {
		list, err := h.store.Endpoints(ctx, n.ID)
		if err != nil {
			return hns.Endpoint{}, err
		}
		for _, e := range list {
			if slices.ContainsFunc(e.IPConfigurations, func(c hns.IPConfig) bool { return c.IPAddress == address }) {
				return e, nil
			}
		}
	}
	return hns.Endpoint{}, fmt.Errorf("no endpoint has the address %q", address)
}

// damageSet replaces the members of a set.
func (h *Host) damageSet(ctx context.Context, q url.Values) error {
	networks, err := h.store.Networks(ctx)
	if err != nil {
		return err
	}
	for _, n := range networks {
		sets, err := n.Sets()
		if err != nil {
			return err
		}
		for _, s := range sets {
			if s.ID == q.Get("id") {
				s.Values = q.Get("values")
				_, err := h.store.ModifyNetwork(ctx, n.ID, hns.Update, s.Policy())
				return errors.Join(err, h.changed())
			}
		}
	}
	return fmt.Errorf("no network has a set %q", q.Get("id"))
}

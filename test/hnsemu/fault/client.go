// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"context"
	"encoding/json"
	"time"

	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hns/hnstest"
)

// Client is a Fake whose calls can fail. Each method makes the DLL calls that hcsshim makes for it,
// as far as Faults can hit them. Like HNS, it ignores contexts.
type Client struct {
	*hnstest.Fake
	Faults *Faults
}

var (
	_ hns.Client     = (*Client)(nil)
	_ hns.Stater     = (*Client)(nil)
	_ hns.Summarizer = (*Client)(nil)
	_ hns.Meter      = (*Client)(nil)
)

// refused returns the error of a call that a fault hit, or nil if the call must proceed.
func (c *Client) refused(h *Hit, op string) error {
	if h.Wait() {
		return hns.NewError(op, hns.CodeServerUnavailable, "the caller has ended")
	}
	if h.Code != 0 && !h.After {
		return hns.NewError(op, h.Code, h.Says())
	}
	return nil
}

// asked makes the preparatory calls of a method, such as "Open.endpoint".
func (c *Client) asked(texts []string, ops ...string) error {
	for _, op := range ops {
		if err := c.refused(c.Faults.Take(op, texts...), op); err != nil {
			return err
		}
	}
	return nil
}

// through makes the call that does the work. If the fault is a lie, it returns the result of lie
// instead.
func through[T any](c *Client, op string, texts []string, call, lie func() (T, error)) (T, error) {
	var none T
	h := c.Faults.Take(op, texts...)
	if err := c.refused(h, op); err != nil {
		return none, err
	}
	if h.Lie {
		return lie()
	}
	value, err := call()
	time.Sleep(h.Linger)
	if err == nil && h.Code != 0 {
		return none, hns.NewError(op, h.Code, h.Says())
	}
	return value, err
}

// text returns the arguments of a call as text.
func text(list ...any) []string {
	var all []string
	for _, v := range list {
		b, _ := json.Marshal(v) // structs of strings and numbers
		all = append(all, string(b))
	}
	return all
}

type nothing struct{}

func done(f func() error) func() (nothing, error) {
	return func() (nothing, error) { return nothing{}, f() }
}

func silently() (nothing, error) { return nothing{}, nil }

// Networks lists the networks, then opens each one.
func (c *Client) Networks(ctx context.Context) ([]hns.Network, error) {
	if err := c.asked(nil, "Enumerate.network"); err != nil {
		return nil, err
	}
	list, err := c.Fake.Networks(ctx)
	for _, n := range list {
		if err := c.asked(text(n.ID), "Open.network", "Query.network"); err != nil {
			return nil, err
		}
	}
	return list, err
}

// CreateNetwork implements hns.Client.
func (c *Client) CreateNetwork(ctx context.Context, n hns.Network) (hns.Network, error) {
	return through(c, "Create.network", text(n), func() (hns.Network, error) { return c.Fake.CreateNetwork(ctx, n) },
		func() (hns.Network, error) { return n, nil })
}

// ModifyNetwork implements hns.Client.
func (c *Client) ModifyNetwork(ctx context.Context, id string, r hns.RequestType, p ...hns.Policy) (hns.Network, error) {
	if err := c.asked(text(id), "Open.network"); err != nil {
		return hns.Network{}, err
	}
	return through(c, "Modify.network", text(id, p), func() (hns.Network, error) { return c.Fake.ModifyNetwork(ctx, id, r, p...) },
		func() (hns.Network, error) { return c.Fake.Network(ctx, id) })
}

// DeleteNetwork implements hns.Client.
func (c *Client) DeleteNetwork(ctx context.Context, id string) error {
	_, err := through(c, "Delete.network", text(id), done(func() error { return c.Fake.DeleteNetwork(ctx, id) }), silently)
	return err
}

// Endpoints lists the endpoints, then opens each one.
func (c *Client) Endpoints(ctx context.Context, network string) ([]hns.Endpoint, error) {
	if err := c.asked(text(network), "Enumerate.endpoint"); err != nil {
		return nil, err
	}
	list, err := c.Fake.Endpoints(ctx, network)
	for _, e := range list {
		if err := c.asked(text(e.ID), "Open.endpoint", "Query.endpoint"); err != nil {
			return nil, err
		}
	}
	return list, err
}

// CreateEndpoint implements hns.Client. After a lie no endpoint exists that could be queried.
func (c *Client) CreateEndpoint(ctx context.Context, e hns.Endpoint) (hns.Endpoint, error) {
	return through(c, "Create.endpoint", text(e), func() (hns.Endpoint, error) { return c.Fake.CreateEndpoint(ctx, e) },
		func() (hns.Endpoint, error) {
			return hns.Endpoint{}, hns.NewError("Query.endpoint", hnstest.CodeInvalidHandle, "The handle is invalid.")
		})
}

// ModifyEndpoint implements hns.Client.
func (c *Client) ModifyEndpoint(ctx context.Context, id string, r hns.RequestType, p ...hns.Policy) (hns.Endpoint, error) {
	if err := c.asked(text(id), "Open.endpoint"); err != nil {
		return hns.Endpoint{}, err
	}
	return through(c, "Modify.endpoint", text(id, p), func() (hns.Endpoint, error) { return c.Fake.ModifyEndpoint(ctx, id, r, p...) },
		func() (hns.Endpoint, error) { return c.Endpoint(ctx, id) })
}

// DeleteEndpoint implements hns.Client.
func (c *Client) DeleteEndpoint(ctx context.Context, id string) error {
	_, err := through(c, "Delete.endpoint", text(id), done(func() error { return c.Fake.DeleteEndpoint(ctx, id) }), silently)
	return err
}

// Namespace implements hns.Client.
func (c *Client) Namespace(ctx context.Context, id string) (hns.Namespace, error) {
	if err := c.asked(text(id), "Enumerate.namespace", "Open.namespace"); err != nil {
		return hns.Namespace{}, err
	}
	return c.Fake.Namespace(ctx, id)
}

// AttachEndpoint implements hns.Client. The host's endpoint is attached by a call of schema 1.
func (c *Client) AttachEndpoint(ctx context.Context, namespace, id string) error {
	return c.moved(namespace, id, func() error { return c.Fake.AttachEndpoint(ctx, namespace, id) })
}

// DetachEndpoint implements hns.Client.
func (c *Client) DetachEndpoint(ctx context.Context, namespace, id string) error {
	return c.moved(namespace, id, func() error { return c.Fake.DetachEndpoint(ctx, namespace, id) })
}

func (c *Client) moved(namespace, id string, f func() error) error {
	op := "Modify.namespace"
	if namespace == hns.HostNamespace {
		op = "HNSCall"
	}
	_, err := through(c, op, text(namespace, id), done(f), silently)
	return err
}

// EndpointStates implements hns.Stater.
func (c *Client) EndpointStates(ctx context.Context) (map[string]hns.State, error) {
	if err := c.asked(text("/endpoints/"), "HNSCall"); err != nil {
		return nil, err
	}
	return c.Fake.EndpointStates(ctx)
}

// Summary implements hns.Summarizer.
func (c *Client) Summary(ctx context.Context) (string, error) {
	if err := c.asked(text("/endpoints/"), "HNSCall"); err != nil {
		return "", err
	}
	return c.Fake.Summary(ctx)
}

// Version implements hns.Client.
func (c *Client) Version(ctx context.Context) (hns.Version, error) {
	if err := c.asked(text("/globals/version"), "HNSCall"); err != nil {
		return hns.Version{}, err
	}
	return c.Fake.Version(ctx)
}

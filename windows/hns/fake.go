// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
)

// Fake is an HNS in memory. It refuses what HNS refuses, with the same codes,
// answers full objects, and can decide packets by the ACLs that it was given.
// Nothing outlives it. All methods may be called from several goroutines.
//
// Like HNS it does not look at contexts: a call that hangs, hangs.
type Fake struct {
	mu         sync.Mutex
	version    Version
	sequence   uint32
	networks   []*Network
	endpoints  []*Endpoint
	namespaces []*Namespace
	host       []string // endpoints attached to the host's compartment
	stats      map[string]*Stats
	calls      []FakeCall
	before     func(op, id string) error
	after      func(op, id string) error

	// Adapters are the names of physical adapters. Set before use.
	Adapters []string
	// UpdateReplacesAll makes the Update of an endpoint replace all policies
	// and not only the types that the request carries; which of the two HNS
	// does is not documented. Set before use.
	UpdateReplacesAll bool
	// Late is how many times Networks is called before a new overlay network
	// shows its DrMacAddress and ProviderAddress. Set before use.
	Late int
}

var (
	_ Client = (*Fake)(nil)
	_ Meter  = (*Fake)(nil)
)

// FakeCall is one line of the call log.
type FakeCall struct {
	Op string
	// ID is the object or the name that the call is about.
	ID string
	// Request is the request as JSON.
	Request string
	// Code is 0 for success.
	Code uint32
}

// NewFake returns a service with one adapter, "Ethernet", and no network.
func NewFake(v Version) *Fake {
	return &Fake{version: v, Adapters: []string{"Ethernet"}, stats: make(map[string]*Stats)}
}

// Before sets a function that is called at the start of every call, outside all
// locks: it may block, change the Fake, or return the error that the call then
// gives without doing anything. nil removes it.
func (f *Fake) Before(hook func(op, id string) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before = hook
}

// After is like Before for the moment when the call has taken effect.
func (f *Fake) After(hook func(op, id string) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.after = hook
}

// Calls returns the log so far.
func (f *Fake) Calls() []FakeCall {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls)
}

// ForgetCalls empties the log.
func (f *Fake) ForgetCalls() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = nil
}

// do makes one call: hooks, the change itself under the lock, the log.
func (f *Fake) do(op, id string, request any, change func() error) error {
	f.mu.Lock()
	before, after := f.before, f.after
	f.mu.Unlock()
	var err error
	if before != nil {
		err = before(op, id)
	}
	if err == nil {
		f.mu.Lock()
		err = change()
		f.mu.Unlock()
		if err == nil && after != nil {
			err = after(op, id)
		}
	}
	text, _ := json.Marshal(request)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, FakeCall{Op: op, ID: id, Request: string(text), Code: Code(err)})
	return err
}

// guid returns an identifier that no other object has.
func (f *Fake) guid() string {
	f.sequence++
	return fmt.Sprintf("%08x-15d0-4e0f-8c0d-0123456789ab", f.sequence)
}

// Version implements Client.
func (f *Fake) Version(context.Context) (v Version, err error) {
	err = f.do("Version", "", nil, func() error { v = f.version; return nil })
	return v, err
}

// Namespace implements Client.
func (f *Fake) Namespace(_ context.Context, id string) (n Namespace, err error) {
	err = f.do("Namespace", id, nil, func() error {
		found := f.namespace(id)
		if found == nil {
			return NewError("Namespace", CodeNotFound, "Element not found.")
		}
		n = found.clone()
		return nil
	})
	return n, err
}

// AddNamespace makes an empty namespace, as a container runtime does.
func (f *Fake) AddNamespace() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	id := f.guid()
	f.namespaces = append(f.namespaces, &Namespace{ID: id, Type: "HostDefault", SchemaVersion: Schema2})
	return id
}

// RemoveNamespace removes a namespace. Its endpoints stay, attached to nothing.
func (f *Fake) RemoveNamespace(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.namespaces = slices.DeleteFunc(f.namespaces, func(n *Namespace) bool { return SameID(n.ID, id) })
	for _, e := range f.endpoints {
		if SameID(e.HostComputeNamespace, id) {
			e.HostComputeNamespace = ""
		}
	}
}

// AttachEndpoint implements Client.
func (f *Fake) AttachEndpoint(_ context.Context, namespace, endpoint string) error {
	const op = "AttachEndpoint"
	return f.do(op, endpoint, namespace, func() error {
		e := f.endpoint(endpoint)
		if e == nil {
			return NewError(op, CodeEndpointNotFound, "The endpoint was not found.")
		}
		if e.Remote() {
			return NewError(op, CodeRemoteEndpoint, "The operation is not possible with a remote endpoint.")
		}
		if namespace == HostNamespace {
			if slices.Contains(f.host, e.ID) {
				return NewError(op, CodeAlreadyAttached, "The endpoint is already attached.")
			}
			f.host = append(f.host, e.ID)
			return nil
		}
		n := f.namespace(namespace)
		if n == nil {
			return NewError(op, CodeNotFound, "Element not found.")
		}
		if e.HostComputeNamespace != "" {
			return NewError(op, CodeNamespaceHas, "The endpoint is in a namespace already.")
		}
		e.HostComputeNamespace = n.ID
		data, _ := json.Marshal(map[string]string{"ID": e.ID})
		n.Resources = append(n.Resources, Resource{Type: "Endpoint", Data: data})
		return nil
	})
}

// DetachEndpoint implements Client.
func (f *Fake) DetachEndpoint(_ context.Context, namespace, endpoint string) error {
	const op = "DetachEndpoint"
	return f.do(op, endpoint, namespace, func() error {
		n := f.namespace(namespace)
		if n == nil {
			return NewError(op, CodeNotFound, "Element not found.")
		}
		e := f.endpoint(endpoint)
		if e == nil {
			return NewError(op, CodeEndpointNotFound, "The endpoint was not found.")
		}
		if !SameID(e.HostComputeNamespace, n.ID) {
			return NewError(op, CodeNotFound, "Element not found.")
		}
		f.leave(e)
		return nil
	})
}

// leave takes an endpoint out of its namespace and of the host.
func (f *Fake) leave(e *Endpoint) {
	if n := f.namespace(e.HostComputeNamespace); n != nil {
		n.Resources = slices.DeleteFunc(n.Resources, func(r Resource) bool {
			var data struct{ ID string }
			return json.Unmarshal(r.Data, &data) == nil && SameID(data.ID, e.ID)
		})
	}
	e.HostComputeNamespace = ""
	f.host = slices.DeleteFunc(f.host, func(id string) bool { return id == e.ID })
}

func (f *Fake) network(id string) *Network {
	return find(f.networks, func(n *Network) bool { return SameID(n.ID, id) })
}

func (f *Fake) endpoint(id string) *Endpoint {
	return find(f.endpoints, func(e *Endpoint) bool { return SameID(e.ID, id) })
}

func (f *Fake) namespace(id string) *Namespace {
	return find(f.namespaces, func(n *Namespace) bool { return SameID(n.ID, id) })
}

func find[T any](list []*T, is func(*T) bool) *T {
	for _, e := range list {
		if is(e) {
			return e
		}
	}
	return nil
}

// clone copies an object so that callers share nothing with the store. The
// settings inside policies are replaced by the Fake, never changed.
func (n *Network) clone() Network {
	c := *n
	c.Policies = slices.Clone(n.Policies)
	c.Ipams = slices.Clone(n.Ipams)
	for i := range c.Ipams {
		c.Ipams[i].Subnets = slices.Clone(c.Ipams[i].Subnets)
		for j := range c.Ipams[i].Subnets {
			s := &c.Ipams[i].Subnets[j]
			s.Policies, s.Routes = slices.Clone(s.Policies), slices.Clone(s.Routes)
		}
	}
	return c
}

func (e *Endpoint) clone() Endpoint {
	c := *e
	c.Policies = slices.Clone(e.Policies)
	c.IPConfigurations = slices.Clone(e.IPConfigurations)
	c.Routes = slices.Clone(e.Routes)
	return c
}

func (n *Namespace) clone() Namespace {
	c := *n
	c.Resources = slices.Clone(n.Resources)
	return c
}

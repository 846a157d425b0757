// SPDX-License-Identifier: Apache-2.0

package hnstest

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/windows/hns"
)

// Namespace implements Client.
func (f *Fake) Namespace(_ context.Context, id string) (n hns.Namespace, err error) {
	err = f.do("Namespace", id, nil, func() error {
		found := f.namespace(id)
		if found == nil {
			return hns.NewError("Namespace", hns.CodeNotFound, "Element not found.")
		}
		n = cloneNamespace(found)
		return nil
	})
	return n, err
}

// AddNamespace creates an empty namespace, as a container runtime does.
func (f *Fake) AddNamespace() string {
	n, err := f.CreateNamespace(context.Background(), hns.Namespace{Type: "HostDefault"})
	if err != nil {
		return "" // cannot conflict with another namespace
	}
	return n.ID
}

// RemoveNamespace removes a namespace with its resources, as a crash of a container runtime may. Its
// endpoints stay without a namespace.
func (f *Fake) RemoveNamespace(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.forgetNamespace(id)
}

// Resolver returns the resolver that containers of a namespace get: that of its first endpoint, else the
// host's.
func (f *Fake) Resolver(namespace string) (hns.DNS, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.namespace(namespace)
	if n == nil {
		return hns.DNS{}, hns.NewError("Resolver", hns.CodeNotFound, "Element not found.")
	}
	if ids := n.EndpointIDs(); len(ids) > 0 {
		if e := f.endpoint(ids[0]); e != nil && !e.DNS.IsZero() {
			return cloneEndpoint(e).DNS, nil
		}
	}
	return f.HostDNS, nil
}

func (f *Fake) forgetNamespace(id string) {
	f.namespaces = slices.DeleteFunc(f.namespaces, func(n *hns.Namespace) bool { return hns.SameID(n.ID, id) })
	for _, e := range f.endpoints {
		if hns.SameID(e.HostComputeNamespace, id) {
			e.HostComputeNamespace = ""
		}
	}
}

// Namespaces lists all namespaces.
func (f *Fake) Namespaces(context.Context) (list []hns.Namespace, err error) {
	err = f.do("Namespaces", "", nil, func() error {
		for _, n := range f.namespaces {
			list = append(list, cloneNamespace(n))
		}
		return nil
	})
	return list, err
}

// CreateNamespace creates an empty namespace. ErrRefused: its type is unknown.
func (f *Fake) CreateNamespace(_ context.Context, n hns.Namespace) (made hns.Namespace, err error) {
	const op = "CreateNamespace"
	err = f.do(op, n.ID, n, func() error {
		if n.Type != "" && !slices.Contains([]string{"Host", "HostDefault", "Guest", "GuestDefault"}, n.Type) {
			return hns.NewError(op, hns.CodeInvalidArgument, "namespace type "+n.Type)
		}
		id, err := f.newID(op, n.ID)
		if err != nil {
			return err
		}
		stored := hns.Namespace{ID: id, NamespaceID: n.NamespaceID, Type: n.Type, SchemaVersion: hns.Schema2}
		f.namespaces = append(f.namespaces, &stored)
		made = cloneNamespace(&stored)
		return nil
	})
	return made, err
}

// DeleteNamespace removes a namespace; its endpoints stay without one. ErrRefused: a container is in it.
// ErrGone: the namespace does not exist.
func (f *Fake) DeleteNamespace(_ context.Context, id string) error {
	const op = "DeleteNamespace"
	return f.do(op, id, nil, func() error {
		n := f.namespace(id)
		if n == nil {
			return hns.NewError(op, hns.CodeNotFound, "Element not found.")
		}
		if slices.ContainsFunc(n.Resources, func(r hns.Resource) bool { return r.Type == "Container" }) {
			return hns.NewError(op, hns.CodeRequestUnsupported, "The specified request is unsupported.")
		}
		f.forgetNamespace(id)
		return nil
	})
}

// PutContainer records that a container runs in a namespace; with gone it ends.
func (f *Fake) PutContainer(namespace, container string, gone bool) error {
	const op = "PutContainer"
	return f.do(op, namespace, container, func() error {
		n := f.namespace(namespace)
		if n == nil {
			return hns.NewError(op, hns.CodeNotFound, "Element not found.")
		}
		n.Resources = slices.DeleteFunc(n.Resources, func(r hns.Resource) bool { return isObject(r, "Container", container) })
		if !gone {
			data, _ := json.Marshal(map[string]string{"ID": container})
			n.Resources = append(n.Resources, hns.Resource{Type: "Container", Data: data})
		}
		return nil
	})
}

// isObject reports whether a resource is the object of a kind with an id.
func isObject(r hns.Resource, kind, id string) bool {
	var data struct{ ID string }
	return r.Type == kind && json.Unmarshal(r.Data, &data) == nil && hns.SameID(data.ID, id)
}

// AttachEndpoint implements Client.
func (f *Fake) AttachEndpoint(_ context.Context, namespace, endpoint string) error {
	const op = "AttachEndpoint"
	return f.do(op, endpoint, namespace, func() error {
		e := f.endpoint(endpoint)
		if e == nil {
			return hns.NewError(op, hns.CodeEndpointNotFound, "The endpoint was not found.")
		}
		if e.Remote() {
			return hns.NewError(op, CodeRemoteEndpoint, "The operation is not possible with a remote endpoint.")
		}
		if namespace == hns.HostNamespace {
			if slices.Contains(f.host, e.ID) {
				return hns.NewError(op, hns.CodeAlreadyAttached, "The endpoint is already attached.")
			}
			f.host = append(f.host, e.ID)
			return nil
		}
		n := f.namespace(namespace)
		if n == nil {
			return hns.NewError(op, hns.CodeNotFound, "Element not found.")
		}
		if hns.SameID(e.HostComputeNamespace, n.ID) {
			return nil // win-bridge and win-overlay do so at every further ADD
		}
		if e.HostComputeNamespace != "" {
			return hns.NewError(op, hns.CodeNamespaceHas, "The endpoint is in a namespace already.")
		}
		if f.quirks.AttachOnce && f.left[e.ID] {
			return hns.NewError(op, hns.CodeRequestUnsupported, "The specified request is unsupported.")
		}
		e.HostComputeNamespace = n.ID
		if f.bug != BugResourceMissing {
			n.Resources = append(n.Resources, endpointResource(e.ID))
		}
		return nil
	})
}

// DetachEndpoint implements Client.
func (f *Fake) DetachEndpoint(_ context.Context, namespace, endpoint string) error {
	const op = "DetachEndpoint"
	return f.do(op, endpoint, namespace, func() error {
		n := f.namespace(namespace)
		if n == nil && namespace != hns.HostNamespace {
			return hns.NewError(op, hns.CodeNotFound, "Element not found.")
		}
		e := f.endpoint(endpoint)
		if e == nil {
			return hns.NewError(op, hns.CodeEndpointNotFound, "The endpoint was not found.")
		}
		if namespace == hns.HostNamespace {
			if !slices.Contains(f.host, e.ID) {
				return hns.NewError(op, hns.CodeEndpointNotAttached, "The endpoint is not attached.")
			}
			f.leave(e)
			return nil
		}
		if !hns.SameID(e.HostComputeNamespace, n.ID) {
			return hns.NewError(op, hns.CodeNotFound, "Element not found.")
		}
		if f.bug != BugDetachKeeps {
			f.leave(e)
		}
		f.left[e.ID] = true
		return nil
	})
}

func endpointResource(id string) hns.Resource {
	data, _ := json.Marshal(map[string]string{"ID": id})
	return hns.Resource{Type: "Endpoint", Data: data}
}

// EndpointStates implements Stater. An endpoint in a namespace has state 1 until a container runs there.
func (f *Fake) EndpointStates(context.Context) (states map[string]hns.State, err error) {
	err = f.do("EndpointStates", "", nil, func() error {
		states = make(map[string]hns.State, len(f.endpoints))
		for _, e := range f.endpoints {
			states[e.ID] = f.state(e)
		}
		return nil
	})
	return states, err
}

// Summary implements hns.Summarizer.
func (f *Fake) Summary(context.Context) (text string, err error) {
	err = f.do("Summary", "", nil, func() error {
		var all strings.Builder
		for _, e := range f.endpoints {
			if !e.Remote() {
				shown := f.showEndpoint(e)
				fmt.Fprintf(&all, "%s %s %s %v %s\n", shown.ID, shown.HostComputeNetwork, shown.HostComputeNamespace, shown.IPConfigurations, shown.Policies)
			}
		}
		text = all.String()
		return nil
	})
	return text, err
}

// LoadBalancers implements hns.Balancers.
func (f *Fake) LoadBalancers(context.Context) (list []hns.LoadBalancer, err error) {
	err = f.do("LoadBalancers", "", nil, func() error {
		list = slices.Clone(f.Balancers)
		return nil
	})
	return list, err
}

func (f *Fake) state(e *hns.Endpoint) hns.State {
	if s, ok := f.states[e.ID]; ok {
		return s
	}
	if slices.Contains(f.host, e.ID) {
		return hns.StateAttached
	}
	n := f.namespace(e.HostComputeNamespace)
	if n != nil && slices.ContainsFunc(n.Resources, func(r hns.Resource) bool { return r.Type == "Container" }) {
		return hns.StateAttachedSharing
	}
	return hns.StateCreated
}

// State returns the state of one endpoint; StateNone if none is known.
func (f *Fake) State(id string) hns.State {
	f.mu.Lock()
	defer f.mu.Unlock()
	if e := f.endpoint(id); e != nil {
		return f.state(e)
	}
	return hns.StateNone
}

// leave detaches an endpoint from its namespace and the host.
func (f *Fake) leave(e *hns.Endpoint) {
	if n := f.namespace(e.HostComputeNamespace); n != nil {
		n.Resources = slices.DeleteFunc(n.Resources, func(r hns.Resource) bool { return isObject(r, "Endpoint", e.ID) })
	}
	e.HostComputeNamespace = ""
	f.host = slices.DeleteFunc(f.host, func(id string) bool { return id == e.ID })
}

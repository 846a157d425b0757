// SPDX-License-Identifier: Apache-2.0

package hnstest

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/isthmus-net/isthmus/windows/hns"
)

// Fake is an HNS in memory. It refuses what HNS refuses, with the same codes, returns full objects, and can
// decide packets by its ACLs. Only the result of Save outlives it. All methods are safe for concurrent use.
//
// Like HNS it ignores contexts: a hanging call hangs.
type Fake struct {
	mu         sync.Mutex
	version    hns.Version
	sequence   uint32
	macs       uint32 // number of assigned hardware addresses
	networks   []*hns.Network
	endpoints  []*hns.Endpoint
	namespaces []*hns.Namespace
	host       []string // endpoints attached to the host's compartment
	stats      map[string]*hns.Stats
	late       late
	calls      []Call
	states     map[string]hns.State // set by SetState
	left       map[string]bool      // endpoints that were detached from a namespace
	quirks     Quirks
	bug        Bug
	early      string // see Blackout
	before     func(op, id string) error
	after      func(op, id string) error

	// Adapters are the names of physical adapters. Set before use.
	Adapters []string
	// UpdateReplacesAll makes the Update of an endpoint replace all policies instead of only the types in
	// the request. The behaviour of HNS is not documented. Set before use.
	UpdateReplacesAll bool
	// Reorder answers with policies, addresses of ACLs and members of sets in the opposite order. Set before
	// use.
	Reorder bool
	// Respell answers with addresses in another spelling: single ones of policies as prefixes, and IPv6 in capitals and with all
	// digits. Host rules get the priority that HNS required of them before 7.2. HNS is not known to do so. Set before use.
	Respell bool
	// Gradual, if set, makes an Update of an endpoint change its ACLs one by one: it adds the new ones in their
	// order, and then removes the old ones from the last to the first. It is called after each step. HNS is not
	// known to do so, and another order would open endpoints whatever a client writes. Set before use.
	Gradual func(id string)
	// ManagementIP is the node's address on the adapter. ManagementMAC is the adapter's MAC, which overlay
	// networks show as that of their tunnel endpoint. Without them every network gets its own addresses.
	// Set before use.
	ManagementIP, ManagementMAC string
	// HostDNS is the resolver of the host. Endpoints made without one show it. Set before use.
	HostDNS hns.DNS
	// Balancers are the load balancers of kube-proxy. Set before use.
	Balancers []hns.LoadBalancer
	// Late is how many times Networks is called before a new overlay network shows its DrMacAddress and
	// ProviderAddress. Set before use.
	Late int
}

var (
	_ hns.Client     = (*Fake)(nil)
	_ hns.Meter      = (*Fake)(nil)
	_ hns.Stater     = (*Fake)(nil)
	_ hns.Summarizer = (*Fake)(nil)
	_ hns.Balancers  = (*Fake)(nil)
)

// Call is one line of the call log.
type Call struct {
	Op string
	// ID is the object or the name that the call is about.
	ID string
	// Request is the request as JSON.
	Request string
	// Code is 0 for success.
	Code uint32
}

// NewFake returns a service with one adapter, "Ethernet", and no network.
func NewFake(v hns.Version) *Fake {
	return &Fake{version: v, Adapters: []string{"Ethernet"}, stats: make(map[string]*hns.Stats), states: make(map[string]hns.State), left: make(map[string]bool)}
}

// Before sets a function that is called at the start of every call, outside all locks. It may block, change
// the Fake, or return an error, with which the call then fails without an effect. nil removes it.
func (f *Fake) Before(hook func(op, id string) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before = hook
}

// After sets a function like Before that is called when the call has taken effect.
func (f *Fake) After(hook func(op, id string) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.after = hook
}

// Calls returns the log so far.
func (f *Fake) Calls() []Call {
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

// do executes one call: hooks, the change under the lock, the log.
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
	f.calls = append(f.calls, Call{Op: op, ID: id, Request: string(text), Code: hns.Code(err)})
	return err
}

// guid returns an unused identifier.
func (f *Fake) guid() string {
	f.sequence++
	return fmt.Sprintf("%08x-15d0-4e0f-8c0d-0123456789ab", f.sequence)
}

// newID returns the requested identifier of a new object, or an unused one.
func (f *Fake) newID(op, wanted string) (string, error) {
	if wanted == "" || wanted == zeroGUID {
		return f.guid(), nil
	}
	if f.network(wanted) != nil || f.endpoint(wanted) != nil || f.namespace(wanted) != nil {
		return "", hns.NewError(op, hns.CodeAlreadyExists, "Cannot create a file when that file already exists.")
	}
	return strings.ToLower(wanted), nil
}

// zeroGUID means no identifier.
const zeroGUID = "00000000-0000-0000-0000-000000000000"

// Version implements Client.
func (f *Fake) Version(context.Context) (v hns.Version, err error) {
	err = f.do("Version", "", nil, func() error { v = f.version; return nil })
	return v, err
}

func (f *Fake) network(id string) *hns.Network {
	return find(f.networks, func(n *hns.Network) bool { return hns.SameID(n.ID, id) })
}

func (f *Fake) endpoint(id string) *hns.Endpoint {
	return find(f.endpoints, func(e *hns.Endpoint) bool { return hns.SameID(e.ID, id) })
}

func (f *Fake) namespace(id string) *hns.Namespace {
	return find(f.namespaces, func(n *hns.Namespace) bool { return hns.SameID(n.ID, id) })
}

func find[T any](list []*T, is func(*T) bool) *T {
	for _, e := range list {
		if is(e) {
			return e
		}
	}
	return nil
}

// clone copies an object so that callers share nothing with the store. The Fake replaces settings inside
// policies, and never changes them.
func cloneNetwork(n *hns.Network) hns.Network {
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

func cloneEndpoint(e *hns.Endpoint) hns.Endpoint {
	c := *e
	c.Policies = slices.Clone(e.Policies)
	c.IPConfigurations = slices.Clone(e.IPConfigurations)
	c.Routes = slices.Clone(e.Routes)
	c.DNS.Search, c.DNS.ServerList, c.DNS.Options = slices.Clone(e.DNS.Search), slices.Clone(e.DNS.ServerList), slices.Clone(e.DNS.Options)
	return c
}

func cloneNamespace(n *hns.Namespace) hns.Namespace {
	c := *n
	c.Resources = slices.Clone(n.Resources)
	return c
}

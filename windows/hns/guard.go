// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Call describes the end of one attempt of a Client method.
type Call struct {
	Op string
	// Code is the HRESULT, 0 for success and for calls that the context ended.
	Code uint32
	// Ended is true if the context ended the call.
	Ended    bool
	Duration time.Duration
	// Attempt counts from 1.
	Attempt int
}

// GuardConfig bounds calls to HNS.
type GuardConfig struct {
	// Deadline bounds one attempt. HNS has been seen to hang for ever, and to need a minute for one ACL
	// update.
	Deadline time.Duration
	// Attempts is the total number of attempts of a call with errors of class ErrRetry.
	Attempts int
	// Backoff is the wait before the second attempt; it doubles each time.
	Backoff time.Duration
	// MaxHung bounds the timed-out calls that still run. Each holds a system thread; beyond it calls fail
	// at once.
	MaxHung int
	// Observe, if set, is called after every attempt, from any goroutine.
	Observe func(Call)
}

// Defaults replaces zero fields by defaults.
func (c GuardConfig) Defaults() GuardConfig {
	if c.Deadline == 0 {
		c.Deadline = 2 * time.Minute
	}
	if c.Attempts == 0 {
		c.Attempts = 4
	}
	if c.Backoff == 0 {
		c.Backoff = 200 * time.Millisecond
	}
	if c.MaxHung == 0 {
		c.MaxHung = 16
	}
	return c
}

// Validate reports every invalid value.
func (c GuardConfig) Validate() error {
	var errs []error
	if c.Deadline < 0 {
		errs = append(errs, fmt.Errorf("call deadline %s: must be positive", c.Deadline))
	}
	if c.Attempts < 0 {
		errs = append(errs, fmt.Errorf("call attempts %d: must be positive", c.Attempts))
	}
	if c.Backoff < 0 {
		errs = append(errs, fmt.Errorf("call back-off %s: must be positive", c.Backoff))
	}
	if c.MaxHung < 0 {
		errs = append(errs, fmt.Errorf("hung calls %d: must be positive", c.MaxHung))
	}
	return errors.Join(errs...)
}

// Guard wraps a client so that every call returns within its deadline, whatever HNS does. It retries errors
// of class ErrRetry with back-off. It does not retry a call that timed out, because the call may still run
// and would race with the second one. The caller may repeat the whole operation.
//
// Nor does it start a second write of an object while a timed-out one still runs. It returns CodeBusy at
// once, so that a late write never undoes a newer one. Removals are exempt.
//
// It also returns CodeBusy while a timed-out call of the same method about the same object still runs, so that one
// object for which HNS never answers cannot use up MaxHung. Listings of networks and endpoints are exempt: without
// them nothing works.
func Guard(c Client, config GuardConfig) *Guarded {
	return &Guarded{client: c, config: config.Defaults(), writing: make(map[Object]bool), hung: make(map[string]int)}
}

// Guarded is a Client whose calls return in time. It makes one write of an object at a time: two goroutines
// that write one object may get CodeBusy too.
type Guarded struct {
	client Client
	config GuardConfig

	mu      sync.Mutex
	writing map[Object]bool // writes that have not returned
	// hung counts the timed-out calls that have not returned, by method and object; allHung is their sum.
	hung    map[string]int
	allHung int
}

var (
	_ Client     = (*Guarded)(nil)
	_ Meter      = (*Guarded)(nil)
	_ Stater     = (*Guarded)(nil)
	_ Summarizer = (*Guarded)(nil)
	_ Balancers  = (*Guarded)(nil)
)

// Object identifies what a call is about; writes of one Object must not overtake each other.
type Object string

// subject is the object of a call, and whether the call writes it. The empty one is for calls that are never refused
// because of others.
type subject struct {
	object Object
	write  bool
}

func writes(o Object) subject { return subject{o, true} }
func about(o Object) subject  { return subject{o, false} }

// EndpointObject identifies the modification of an endpoint, by its GUID.
func EndpointObject(id string) Object { return Object("endpoint " + strings.ToLower(id)) }

// NewEndpointObject identifies the creation of an endpoint, by its name.
func NewEndpointObject(name string) Object { return Object("new endpoint " + name) }

// SetObject identifies a set of addresses, by its id.
func SetObject(id string) Object { return Object("set " + id) }

// Set returns the id if the object is a set.
func (o Object) Set() (id string, ok bool) { return strings.CutPrefix(string(o), "set ") }

// networkObject identifies what a modification of a network writes: the one set that it carries, or the
// network's other policies.
func networkObject(id string, policies []Policy) Object {
	var set SetPolicy
	if len(policies) == 1 && policies[0].Is(TypeSet) && policies[0].Decode(&set) == nil {
		return SetObject(set.ID)
	}
	return Object("network " + strings.ToLower(id))
}

// Unfinished lists the objects with a timed-out write that has not returned: their content may change at
// any time. Once an object is no longer listed, a read shows the effect of the write, if it had any.
func (g *Guarded) Unfinished() map[Object]bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := make(map[Object]bool, len(g.writing))
	for o := range g.writing {
		all[o] = true
	}
	return all
}

// begin admits a call of a method, and records a write. end must follow.
func (g *Guarded) begin(op string, s subject) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case s.write && g.writing[s.object]:
		return NewError(op, CodeBusy, fmt.Sprintf("an earlier write of %s has not returned", s.object))
	case !s.write && s.object != "" && g.hung[s.of(op)] > 0:
		return NewError(op, CodeBusy, fmt.Sprintf("an earlier call for %s has not returned: restart the hns service if that lasts", s.object))
	case g.allHung >= g.config.MaxHung:
		return NewError(op, CodeTimeout, fmt.Sprintf("%d earlier calls have not returned; restart the hns service", g.allHung))
	case s.write:
		g.writing[s.object] = true
	}
	return nil
}

// of names a method and its object.
func (s subject) of(op string) string { return op + " " + string(s.object) }

func (g *Guarded) end(s subject) {
	if !s.write {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.writing, s.object)
}

// hang adds to the number of timed-out calls that have not returned.
func (g *Guarded) hang(key string, n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.allHung += n
	if g.hung[key] += n; g.hung[key] == 0 {
		delete(g.hung, key)
	}
}

type answer[T any] struct {
	value T
	err   error
}

// call makes one guarded call. f must not use data that the caller continues to use: it may still run after
// call has returned.
func call[T any](ctx context.Context, g *Guarded, op string, s subject, f func(context.Context) (T, error)) (T, error) {
	wait := g.config.Backoff
	for attempt := 1; ; attempt++ {
		value, again, err := try(ctx, g, op, s, attempt, f)
		if err == nil || !again || attempt >= g.config.Attempts {
			return value, err
		}
		select {
		case <-ctx.Done():
			return value, errors.Join(err, ctx.Err())
		case <-time.After(wait):
		}
		wait *= 2
	}
}

// try makes one attempt and reports whether a retry is allowed.
func try[T any](ctx context.Context, g *Guarded, op string, s subject, attempt int, f func(context.Context) (T, error)) (value T, again bool, err error) {
	if err := g.begin(op, s); err != nil {
		return value, false, err
	}
	start := time.Now()
	done := make(chan answer[T], 1)
	attemptCtx, cancel := context.WithTimeout(ctx, g.config.Deadline)
	defer cancel()
	var abandoned atomic.Bool // set by whichever of the two sides is first
	go func() {
		v, err := f(attemptCtx)
		g.end(s)
		done <- answer[T]{v, err}
		if !abandoned.CompareAndSwap(false, true) {
			g.hang(s.of(op), -1)
		}
	}()
	select {
	case a := <-done:
		value, err = a.value, a.err
		again = errors.Is(err, ErrRetry)
	case <-attemptCtx.Done():
		g.hang(s.of(op), 1)
		if !abandoned.CompareAndSwap(false, true) {
			g.hang(s.of(op), -1) // it has just returned, but too late
		}
		err = fmt.Errorf("hns %s: %w", op, ctx.Err())
		if ctx.Err() == nil {
			err = NewError(op, CodeTimeout, fmt.Sprintf("no answer within %s", g.config.Deadline))
		}
	}
	if g.config.Observe != nil {
		g.config.Observe(Call{Op: op, Code: Code(err), Ended: err != nil && ctx.Err() != nil, Duration: time.Since(start), Attempt: attempt})
	}
	return value, again, err
}

// nothing is the value of calls that return only an error.
type nothing struct{}

func (g *Guarded) Version(ctx context.Context) (Version, error) {
	return call(ctx, g, "Version", subject{}, g.client.Version)
}

func (g *Guarded) Networks(ctx context.Context) ([]Network, error) {
	return call(ctx, g, "Networks", subject{}, g.client.Networks)
}

func (g *Guarded) CreateNetwork(ctx context.Context, n Network) (Network, error) {
	return call(ctx, g, "CreateNetwork", writes(Object("new network "+n.Name)),
		func(ctx context.Context) (Network, error) { return g.client.CreateNetwork(ctx, n) })
}

func (g *Guarded) ModifyNetwork(ctx context.Context, id string, r RequestType, policies ...Policy) (Network, error) {
	return call(ctx, g, "ModifyNetwork", writes(networkObject(id, policies)), func(ctx context.Context) (Network, error) {
		return g.client.ModifyNetwork(ctx, id, r, policies...)
	})
}

func (g *Guarded) DeleteNetwork(ctx context.Context, id string) error {
	_, err := call(ctx, g, "DeleteNetwork", about(Object("network "+strings.ToLower(id))), func(ctx context.Context) (nothing, error) {
		return nothing{}, g.client.DeleteNetwork(ctx, id)
	})
	return err
}

func (g *Guarded) Endpoints(ctx context.Context, network string) ([]Endpoint, error) {
	return call(ctx, g, "Endpoints", subject{}, func(ctx context.Context) ([]Endpoint, error) { return g.client.Endpoints(ctx, network) })
}

func (g *Guarded) CreateEndpoint(ctx context.Context, e Endpoint) (Endpoint, error) {
	return call(ctx, g, "CreateEndpoint", writes(NewEndpointObject(e.Name)),
		func(ctx context.Context) (Endpoint, error) { return g.client.CreateEndpoint(ctx, e) })
}

func (g *Guarded) ModifyEndpoint(ctx context.Context, id string, r RequestType, policies ...Policy) (Endpoint, error) {
	return call(ctx, g, "ModifyEndpoint", writes(EndpointObject(id)), func(ctx context.Context) (Endpoint, error) {
		return g.client.ModifyEndpoint(ctx, id, r, policies...)
	})
}

func (g *Guarded) DeleteEndpoint(ctx context.Context, id string) error {
	_, err := call(ctx, g, "DeleteEndpoint", about(EndpointObject(id)), func(ctx context.Context) (nothing, error) {
		return nothing{}, g.client.DeleteEndpoint(ctx, id)
	})
	return err
}

func (g *Guarded) Namespace(ctx context.Context, id string) (Namespace, error) {
	return call(ctx, g, "Namespace", about(Object("namespace "+strings.ToLower(id))),
		func(ctx context.Context) (Namespace, error) { return g.client.Namespace(ctx, id) })
}

func (g *Guarded) AttachEndpoint(ctx context.Context, namespace, endpoint string) error {
	_, err := call(ctx, g, "AttachEndpoint", about(EndpointObject(endpoint)), func(ctx context.Context) (nothing, error) {
		return nothing{}, g.client.AttachEndpoint(ctx, namespace, endpoint)
	})
	return err
}

func (g *Guarded) DetachEndpoint(ctx context.Context, namespace, endpoint string) error {
	_, err := call(ctx, g, "DetachEndpoint", about(EndpointObject(endpoint)), func(ctx context.Context) (nothing, error) {
		return nothing{}, g.client.DetachEndpoint(ctx, namespace, endpoint)
	})
	return err
}

// EndpointStats reads the counts if the client is a Meter. ErrRefused: it is not.
func (g *Guarded) EndpointStats(ctx context.Context, id string) (Stats, error) {
	meter, ok := g.client.(Meter)
	if !ok {
		return Stats{}, NewError("EndpointStats", CodeNotImplemented, "this client does not count packets")
	}
	return call(ctx, g, "EndpointStats", about(EndpointObject(id)), func(ctx context.Context) (Stats, error) { return meter.EndpointStats(ctx, id) })
}

// EndpointStates reads the states if the client is a Stater; otherwise it returns none.
func (g *Guarded) EndpointStates(ctx context.Context) (map[string]State, error) {
	stater, ok := g.client.(Stater)
	if !ok {
		return nil, nil
	}
	return call(ctx, g, "EndpointStates", about("all endpoints"), stater.EndpointStates)
}

// Summary describes the endpoints if the client is a Summarizer; otherwise it returns "".
func (g *Guarded) Summary(ctx context.Context) (string, error) {
	s, ok := g.client.(Summarizer)
	if !ok {
		return "", nil
	}
	return call(ctx, g, "Summary", about("all endpoints"), s.Summary)
}

// LoadBalancers lists the load balancers if the client can; otherwise it returns none.
func (g *Guarded) LoadBalancers(ctx context.Context) ([]LoadBalancer, error) {
	balancers, ok := g.client.(Balancers)
	if !ok {
		return nil, nil
	}
	return call(ctx, g, "LoadBalancers", about("all load balancers"), balancers.LoadBalancers)
}

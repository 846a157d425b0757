// SPDX-License-Identifier: Apache-2.0

package windows_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/isthmus-net/isthmus/windows/hns"
)

// faulty is an HNS that does, at random, what HNS has been seen to do: it
// refuses, refuses after the deed, says yes and does nothing, is slow, does not
// answer. Like HNS it does not look at contexts.
type faulty struct {
	*hns.Fake
	deadline time.Duration // of the callers

	mu     sync.Mutex
	random *rand.Rand
	life   int            // of the callers' process
	rate   int            // faults in 1000 calls
	counts map[string]int // by kind
}

var _ hns.Client = (*faulty)(nil)

// codes are those that every call may give.
var codes = []uint32{hns.CodeNotFound, hns.CodeEndpointNotFound, hns.CodeUnspecified, hns.CodeAccessDenied, hns.CodeManagerStopped,
	hns.CodeServerUnavailable, hns.CodeRequestUnsupported, hns.CodePortExists, hns.CodeAlreadyExists, hns.CodeObjectExists, 0x803B002E, 0x803B0017}

func (f *faulty) pick() (kind string, code uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.random.IntN(1000) >= f.rate {
		return "", 0
	}
	kind = []string{"error", "error after", "lie", "slow", "no answer", "no answer after", "late"}[f.random.IntN(7)]
	f.counts[kind]++
	return kind, codes[f.random.IntN(len(codes))]
}

// newLife begins a process: what its predecessor asked for and HNS has not
// begun is not done any more.
func (f *faulty) newLife() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.life++
}

func (f *faulty) lives(life int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.life == life
}

// calm ends all faults and returns what there was.
func (f *faulty) calm() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rate = 0
	return f.counts
}

// through makes a call as the faults want it; lie is what a call answers that
// does nothing, nil if the call changes nothing.
func through[T any](f *faulty, op string, call, lie func() (T, error)) (T, error) {
	var none T
	f.mu.Lock()
	life := f.life
	f.mu.Unlock()
	kind, code := f.pick()
	err := hns.NewError(op, code, "injected")
	switch kind {
	case "error":
		return none, err
	case "error after":
		call()
		return none, err
	case "lie":
		if lie != nil {
			return lie()
		}
	case "slow":
		time.Sleep(f.deadline / 4)
	case "no answer":
		time.Sleep(2 * f.deadline)
		return none, err
	case "late": // done long after it was given up
		time.Sleep(2 * f.deadline)
		if !f.lives(life) {
			return none, err
		}
	case "no answer after":
		value, err := call()
		time.Sleep(2 * f.deadline)
		return value, err
	}
	return call()
}

// done turns a method without an answer into one for through.
func done(f func() error) func() (struct{}, error) {
	return func() (struct{}, error) { return struct{}{}, f() }
}

func nothing() error { return nil }

func (f *faulty) Networks(ctx context.Context) ([]hns.Network, error) {
	return through(f, "Networks", func() ([]hns.Network, error) { return f.Fake.Networks(ctx) }, nil)
}

func (f *faulty) CreateNetwork(ctx context.Context, n hns.Network) (hns.Network, error) {
	return through(f, "CreateNetwork", func() (hns.Network, error) { return f.Fake.CreateNetwork(ctx, n) }, func() (hns.Network, error) { return n, nil })
}

func (f *faulty) ModifyNetwork(ctx context.Context, id string, r hns.RequestType, p ...hns.Policy) (hns.Network, error) {
	return through(f, "ModifyNetwork", func() (hns.Network, error) { return f.Fake.ModifyNetwork(ctx, id, r, p...) },
		func() (hns.Network, error) { return f.Fake.Network(ctx, id) })
}

func (f *faulty) Endpoints(ctx context.Context, network string) ([]hns.Endpoint, error) {
	return through(f, "Endpoints", func() ([]hns.Endpoint, error) { return f.Fake.Endpoints(ctx, network) }, nil)
}

func (f *faulty) CreateEndpoint(ctx context.Context, e hns.Endpoint) (hns.Endpoint, error) {
	return through(f, "CreateEndpoint", func() (hns.Endpoint, error) { return f.Fake.CreateEndpoint(ctx, e) }, nil)
}

func (f *faulty) ModifyEndpoint(ctx context.Context, id string, r hns.RequestType, p ...hns.Policy) (hns.Endpoint, error) {
	return through(f, "ModifyEndpoint", func() (hns.Endpoint, error) { return f.Fake.ModifyEndpoint(ctx, id, r, p...) },
		func() (hns.Endpoint, error) { return f.Endpoint(ctx, id) })
}

func (f *faulty) DeleteEndpoint(ctx context.Context, id string) error {
	_, err := through(f, "DeleteEndpoint", done(func() error { return f.Fake.DeleteEndpoint(ctx, id) }), done(nothing))
	return err
}

func (f *faulty) Namespace(ctx context.Context, id string) (hns.Namespace, error) {
	return through(f, "Namespace", func() (hns.Namespace, error) { return f.Fake.Namespace(ctx, id) }, nil)
}

func (f *faulty) AttachEndpoint(ctx context.Context, namespace, id string) error {
	_, err := through(f, "AttachEndpoint", done(func() error { return f.Fake.AttachEndpoint(ctx, namespace, id) }), done(nothing))
	return err
}

func (f *faulty) DetachEndpoint(ctx context.Context, namespace, id string) error {
	_, err := through(f, "DetachEndpoint", done(func() error { return f.Fake.DetachEndpoint(ctx, namespace, id) }), done(nothing))
	return err
}

// SPDX-License-Identifier: Apache-2.0

package hns_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hns/hnstest"
)

// guarded returns a guarded Fake, and a function that returns the calls that the observer saw.
func guarded(t *testing.T, c hns.GuardConfig) (*hnstest.Fake, hns.Client, func() []hns.Call) {
	t.Helper()
	f := hnstest.NewFake(hns.Server2022)
	var mu sync.Mutex
	var calls []hns.Call
	c.Observe = func(call hns.Call) {
		mu.Lock()
		defer mu.Unlock()
		calls = append(calls, call)
	}
	return f, hns.Guard(f, c), func() []hns.Call {
		mu.Lock()
		defer mu.Unlock()
		return calls
	}
}

// TestGuardEndsHungCalls checks that a call that hangs fails at its deadline, and is not repeated
// meanwhile. Too many such calls block further calls.
func TestGuardEndsHungCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, g, calls := guarded(t, hns.GuardConfig{Deadline: 20 * time.Millisecond, MaxHung: 2, Backoff: time.Millisecond})
		gate := make(chan struct{})
		release := sync.OnceFunc(func() { close(gate) })
		defer release()
		f.Before(func(string, string) error { <-gate; return nil })
		for range 2 {
			start := time.Now()
			_, err := g.Networks(context.Background())
			if !errors.Is(err, hns.ErrRetry) || hns.Code(err) != hns.CodeTimeout || time.Since(start) > 5*time.Second {
				t.Fatalf("after %s: %v", time.Since(start), err)
			}
		}
		if n := len(calls()); n != 2 {
			t.Errorf("%d attempts, want 2: a hung call is not repeated", n)
		}
		if _, err := g.Version(context.Background()); !errors.Is(err, hns.ErrRetry) || len(calls()) != 2 {
			t.Errorf("with two calls hung: %v", err)
		}
		release()
		for start := time.Now(); ; time.Sleep(time.Millisecond) {
			if _, err := g.Version(context.Background()); err == nil {
				break
			} else if time.Since(start) > 5*time.Second {
				t.Fatal("calls stay blocked: ", err)
			}
		}
	})
}

// TestGuardNamesTheUnfinished checks writes beside too many hung ones. A second write of the same object is busy, and a
// write that was refused is not unfinished.
func TestGuardNamesTheUnfinished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := hnstest.NewFake(hns.Server2022)
		g := hns.Guard(f, hns.GuardConfig{Deadline: 20 * time.Millisecond, MaxHung: 1})
		release := make(chan struct{})
		defer close(release)
		f.Before(func(string, string) error { <-release; return nil })
		ctx := context.Background()
		for _, c := range []struct {
			endpoint string
			code     uint32
		}{{"a", hns.CodeTimeout}, {"a", hns.CodeBusy}, {"b", hns.CodeTimeout}} {
			if _, err := g.ModifyEndpoint(ctx, c.endpoint, hns.Update); hns.Code(err) != c.code {
				t.Errorf("write of %s: %v, want code %#x", c.endpoint, err, c.code)
			}
		}
		if all := g.Unfinished(); !all[hns.EndpointObject("a")] || all[hns.EndpointObject("b")] {
			t.Errorf("unfinished: %v", all)
		}
	})
}

// perObject are the calls that are refused while an earlier one of the same object hangs.
var perObject = map[string]func(g *hns.Guarded, id string) error{
	"DeleteNetwork":  func(g *hns.Guarded, id string) error { return g.DeleteNetwork(context.Background(), id) },
	"DeleteEndpoint": func(g *hns.Guarded, id string) error { return g.DeleteEndpoint(context.Background(), id) },
	"AttachEndpoint": func(g *hns.Guarded, id string) error { return g.AttachEndpoint(context.Background(), "n", id) },
	"DetachEndpoint": func(g *hns.Guarded, id string) error { return g.DetachEndpoint(context.Background(), "n", id) },
	"Namespace":      func(g *hns.Guarded, id string) error { _, err := g.Namespace(context.Background(), id); return err },
	"EndpointStats":  func(g *hns.Guarded, id string) error { _, err := g.EndpointStats(context.Background(), id); return err },
	"EndpointStates": func(g *hns.Guarded, _ string) error { _, err := g.EndpointStates(context.Background()); return err },
	"LoadBalancers":  func(g *hns.Guarded, _ string) error { _, err := g.LoadBalancers(context.Background()); return err },
}

// TestGuardRefusesRepeats checks calls of one method about one object that HNS never answers. The first waits for its
// deadline, the others are refused at once, and calls about other objects or of other methods continue. When the first
// has returned, the next is made.
func TestGuardRefusesRepeats(t *testing.T) {
	for op, repeated := range perObject {
		t.Run(op, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := hnstest.NewFake(hns.Server2022)
				g := hns.Guard(f, hns.GuardConfig{Deadline: 100 * time.Millisecond, MaxHung: 2})
				gate := make(chan struct{})
				release := sync.OnceFunc(func() { close(gate) })
				defer release()
				var made atomic.Int64
				whole := op == "EndpointStates" || op == "LoadBalancers"
				f.Before(func(called, id string) error {
					if called == op && (id != "other" || whole) {
						made.Add(1)
						<-gate
					}
					return nil
				})
				if err := repeated(g, "one"); hns.Code(err) != hns.CodeTimeout {
					t.Fatalf("first: %v", err)
				}
				for range 20 {
					if err := repeated(g, "ONE"); hns.Code(err) != hns.CodeBusy || !errors.Is(err, hns.ErrRetry) {
						t.Fatalf("repeated: %v", err)
					}
				}
				if err := repeated(g, "other"); !whole && errors.Is(err, hns.ErrRetry) {
					t.Errorf("about another object: %v", err)
				}
				if _, err := g.Version(context.Background()); err != nil || made.Load() != 1 || len(g.Unfinished()) > 0 {
					t.Errorf("%d calls, another method: %v, unfinished %v", made.Load(), err, g.Unfinished())
				}
				release()
				for start := time.Now(); errors.Is(repeated(g, "one"), hns.ErrRetry); time.Sleep(time.Millisecond) {
					if time.Since(start) > 5*time.Second {
						t.Fatal("it stays refused")
					}
				}
			})
		})
	}
}

// TestGuardAllowsParallelReads checks two calls about the same object of which none has timed out.
func TestGuardAllowsParallelReads(t *testing.T) {
	f := hnstest.NewFake(hns.Server2022)
	g := hns.Guard(f, hns.GuardConfig{Deadline: time.Minute})
	entered, release := make(chan struct{}), make(chan struct{})
	f.Before(func(string, string) error {
		entered <- struct{}{}
		<-release
		return nil
	})
	errs := make(chan error)
	for range 2 {
		go func() { errs <- perObject["EndpointStates"](g, "") }()
	}
	for range 2 {
		select {
		case <-entered:
		case <-time.After(10 * time.Second):
			t.Fatal("they do not run at the same time")
		}
	}
	close(release)
	for range 2 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

// TestGuardRepeats checks that Guard retries only calls that can succeed later.
func TestGuardRepeats(t *testing.T) {
	for _, c := range []struct {
		name     string
		err      error
		failures int
		attempts int
		ok       bool
	}{
		{"not ready, then ready", hns.NewError("Networks", hns.CodeUnspecified, ""), 2, 3, true},
		{"service stopped for good", hns.NewError("Networks", hns.CodeManagerStopped, ""), 100, 4, false},
		{"refused", hns.NewError("Networks", hns.CodeInvalidPolicy, ""), 100, 1, false},
		{"gone", hns.NewError("Networks", 0x490, ""), 100, 1, false},
		{"exists", hns.NewError("Networks", 0x1392, ""), 100, 1, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, g, calls := guarded(t, hns.GuardConfig{Attempts: 4, Backoff: time.Millisecond})
			left := c.failures
			f.Before(func(string, string) error {
				if left--; left >= 0 {
					return c.err
				}
				return nil
			})
			_, err := g.Networks(context.Background())
			if (err == nil) != c.ok || !c.ok && !errors.Is(err, c.err) {
				t.Errorf("error %v", err)
			}
			seen := calls()
			if len(seen) != c.attempts {
				t.Errorf("%d attempts, want %d", len(seen), c.attempts)
			}
			for i, call := range seen {
				if call.Op != "Networks" || call.Attempt != i+1 || (call.Code == 0) != (c.ok && i == len(seen)-1) {
					t.Errorf("attempt %d was observed as %+v", i+1, call)
				}
			}
		})
	}
}

// TestGuardObeysItsCaller checks that a caller whose context ends gets the error immediately.
func TestGuardObeysItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, g, _ := guarded(t, hns.GuardConfig{Deadline: time.Minute})
		release := make(chan struct{})
		defer close(release)
		f.Before(func(string, string) error { <-release; return nil })
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
		defer cancel()
		if _, err := g.Networks(ctx); !errors.Is(err, context.DeadlineExceeded) || hns.Code(err) != 0 {
			t.Errorf("error %v", err)
		}
	})
}

// TestGuardConfig checks the values.
func TestGuardConfig(t *testing.T) {
	if err := (hns.GuardConfig{}).Defaults().Validate(); err != nil {
		t.Error(err)
	}
	if err := (hns.GuardConfig{Deadline: -1, Attempts: -1, Backoff: -1, MaxHung: -1}).Validate(); err == nil {
		t.Error("negative values were taken")
	}
}

// TestVersions checks the feature gates against the known versions.
func TestVersions(t *testing.T) {
	for _, c := range []struct {
		v    hns.Version
		have []hns.Feature
		lack []hns.Feature
	}{
		{hns.Version{Major: 9, Minor: 1}, nil, []hns.Feature{hns.Schema2API, hns.DirectServerReturn, hns.DualStack, hns.Sets, hns.CanonicalCIDRs}},
		{hns.Server2019, []hns.Feature{hns.Schema2API, hns.DirectServerReturn}, []hns.Feature{hns.DualStack, hns.Sets, hns.CanonicalCIDRs}},
		{hns.Version{Major: 10, Minor: 1}, []hns.Feature{hns.Schema2API}, []hns.Feature{hns.DirectServerReturn}},
		{hns.Version{Major: 11, Minor: 10}, []hns.Feature{hns.DualStack, hns.DirectServerReturn}, []hns.Feature{hns.Sets}},
		{hns.Server2022, []hns.Feature{hns.Sets, hns.CanonicalCIDRs, hns.DualStack}, nil},
		{hns.Server2025, []hns.Feature{hns.Sets, hns.CanonicalCIDRs, hns.DualStack}, nil},
	} {
		for _, f := range c.have {
			if !c.v.Supports(f) {
				t.Errorf("%s lacks feature %d", c.v, f)
			}
		}
		for _, f := range c.lack {
			if c.v.Supports(f) {
				t.Errorf("%s has feature %d", c.v, f)
			}
		}
	}
}

// TestGuardRetriesWhileTheServiceRestarts checks each code of a service that has ended, has not started, or that waits for another one:
// the call is repeated.
func TestGuardRetriesWhileTheServiceRestarts(t *testing.T) {
	for _, code := range []uint32{hns.CodeServerUnavailable, hns.CodeServerTooBusy, hns.CodeCallFailed, hns.CodeCallNotExecuted,
		hns.CodeNotRegistered, hns.CodeServiceNotActive, hns.CodeManagerStopped, hns.CodeUnloaded} {
		f, g, calls := guarded(t, hns.GuardConfig{Backoff: time.Millisecond})
		reduced := code
		if code>>16 == 0x8007 { // as hcsshim does
			reduced &= 0xFFFF
		}
		f.Before(func(op, _ string) error {
			if len(calls()) > 1 {
				return nil
			}
			return hns.NewError(op, reduced, "")
		})
		if _, err := g.Networks(context.Background()); err != nil || len(calls()) != 3 || calls()[0].Code != code {
			t.Errorf("%#x: %v after %d attempts: %+v", code, err, len(calls()), calls())
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package connectivity_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/connectivity"
	"github.com/isthmus-net/isthmus/common/connectivity/probe"
	"github.com/isthmus-net/isthmus/common/model"
)

var nodes = []connectivity.Node{
	{Name: "n1", OS: model.Linux, Addresses: []netip.Addr{netip.MustParseAddr("172.30.0.1")}, KubeletPort: 10250},
	{Name: "n2", OS: model.Linux, Addresses: []netip.Addr{netip.MustParseAddr("172.30.0.2")}, KubeletPort: 10250},
	{Name: "n3", OS: model.Windows, Addresses: []netip.Addr{netip.MustParseAddr("172.30.0.3")}, KubeletPort: 10250},
}

// lines collects progress.
type lines struct {
	mu  sync.Mutex
	all []string
}

func (l *lines) add(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, line)
}

func (l *lines) has(part string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.all, func(s string) bool { return strings.Contains(s, part) })
}

func config(said *lines) connectivity.Config {
	return connectivity.Config{Namespace: "test-1", Nodes: nodes, Start: 50 * time.Millisecond, Settle: 40 * time.Millisecond, Attempt: time.Second,
		Beat: 3 * time.Millisecond, Poll: time.Millisecond, Progress: said.add}
}

// In a healthy cluster all flows end as expected, changes of policy may need a few rounds, and nothing is left.
func TestRun(t *testing.T) {
	f, said := newFake(t), &lines{}
	f.lag = 5
	cfg := config(said)
	cfg.Settle = 2 * time.Second
	cfg.Explain = func(_ context.Context, _ string, failed []*connectivity.Result) {
		t.Errorf("explains %d flows", len(failed))
	}
	r, err := connectivity.Run(t.Context(), f, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if !r.Positive() || r.Running() != 6 || r.Failed != 0 || r.Passed != len(r.Flows) || len(r.Nodes) != 3 {
		t.Errorf("%d flows, %d passed, %d failed", len(r.Flows), r.Passed, r.Failed)
	}
	counts := make(map[string]int)
	late := 0
	for _, x := range r.Flows {
		counts[x.Phase+" "+x.Kind+" "+x.Expected]++
		if x.Attempts > 1 {
			late++
		}
	}
	// Of 9 pairs 5 have two families and 4 one, because a Windows pod has one here: 18 + 8 + 8 = 26 by TCP and UDP.
	want := map[string]int{"open pod answered": 26, "open service answered": 30, "open node answered": 3, "open name answered": 3,
		"ingress denied pod blocked": 18, "ingress denied service blocked": 20, "ingress allowed pod answered": 18, "ingress allowed service answered": 20, "ingress allowed pod blocked": 9}
	for what, n := range want {
		if counts[what] != n {
			t.Errorf("%s: %d flows, want %d", what, counts[what], n)
		}
	}
	if late == 0 {
		t.Error("no flow needed more than one attempt")
	}
	if len(f.namespaces) != 0 || f.calls["Touch"] == 0 || !said.has("6 of 6 pods run") || !said.has("removed namespace test-1") {
		t.Errorf("left %v after %v: %q", f.namespaces, f.calls, said.all)
	}
}

// Each fault of a cluster fails the flows that it concerns, which are explained while the pods exist.
func TestRunFinds(t *testing.T) {
	timeout := probe.Answer{State: probe.Timeout}
	for _, c := range []struct {
		name  string
		fault func(*fake)
		wrong string
		only  func(*connectivity.Result) bool
	}{
		{"policy is not enforced", func(f *fake) { f.unenforced = true }, "answered, but policy must block the flow", func(r *connectivity.Result) bool { return r.Expected == "blocked" }},
		{"lost", func(f *fake) {
			f.end = func(from string, t probe.Target) (probe.Answer, bool) {
				return timeout, from == "client-1" && t.Host == "10.244.2.3" && t.Kind == probe.UDP
			}
		}, "no answer", func(r *connectivity.Result) bool {
			return r.From == "client-1" && r.To == "server-2" && r.Expected == "answered"
		}},
		{"refused where policy must drop", func(f *fake) {
			f.end = func(string, probe.Target) (probe.Answer, bool) {
				return probe.Answer{State: probe.Refused, Error: "connection refused"}, len(f.policies) == 1
			}
		}, "not blocked in silence: connection refused", func(r *connectivity.Result) bool { return r.Expected == "blocked" }},
		{"masqueraded", func(f *fake) {
			f.end = func(_ string, t probe.Target) (probe.Answer, bool) {
				return probe.Answer{State: probe.Answered, Server: "server-2", Client: nodes[0].Addresses[0]}, t.Host == "10.244.2.3" && len(f.policies) == 0
			}
		}, "something on the path masquerades", func(r *connectivity.Result) bool { return r.Phase == "open" && r.Kind == "pod" }},
		{"another server", func(f *fake) {
			f.end = func(_ string, t probe.Target) (probe.Answer, bool) {
				return probe.Answer{State: probe.Answered, Server: "server-1"}, t.Host == "10.96.0.2" && len(f.policies) == 0
			}
		}, "server-1 answered instead of server-2", func(r *connectivity.Result) bool { return r.Kind == "service" }},
		{"no DNS", func(f *fake) {
			f.end = func(_ string, t probe.Target) (probe.Answer, bool) {
				return probe.Answer{State: probe.Lookup, Error: "lookup server-1: no such host"}, strings.HasPrefix(t.Host, "server")
			}
		}, "no such host", func(r *connectivity.Result) bool { return r.Kind == "name" }},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, said := newFake(t), &lines{}
			c.fault(f)
			cfg := config(said)
			explained := 0
			cfg.Explain = func(_ context.Context, namespace string, failed []*connectivity.Result) {
				f.mu.Lock()
				defer f.mu.Unlock()
				if _, exists := f.namespaces[namespace]; !exists {
					t.Error("explains after the pods are gone")
				}
				explained += len(failed)
			}
			r, err := connectivity.Run(t.Context(), f, cfg)
			if err != nil {
				t.Fatal(err)
			}
			failed := 0
			for _, x := range r.Flows {
				if x.Passed {
					continue
				}
				failed++
				if !strings.Contains(x.Wrong, c.wrong) || !c.only(x) {
					t.Errorf("%s: %s: %s", x.Phase, &x.Flow, x.Wrong)
				}
			}
			if failed == 0 || failed != r.Failed || explained != failed || r.Positive() || r.Passed+r.Failed != len(r.Flows) || len(f.namespaces) != 0 {
				t.Errorf("%d flows failed, %d counted, %d explained, left %v", failed, r.Failed, explained, f.namespaces)
			}
		})
	}
}

// A pod that does not run makes the answer negative, and the others are tested.
func TestRunWithoutAPod(t *testing.T) {
	f, said := newFake(t), &lines{}
	f.missing = "server-3"
	r, err := connectivity.Run(t.Context(), f, config(said))
	if err != nil {
		t.Fatal(err)
	}
	if r.Positive() || r.Failed != 0 || r.Passed == 0 || r.Running() != 5 || !said.has("pod server-3 on node n3: not running after 50ms: ImagePullBackOff") {
		t.Errorf("%+v: %q", r.Pods, said.all)
	}
	f = newFake(t)
	f.missing = "client-1"
	cfg := config(said)
	cfg.Nodes = nodes[:1]
	if _, err := connectivity.Run(t.Context(), f, cfg); err == nil || !strings.Contains(err.Error(), "no pod of role client runs") || len(f.namespaces) != 0 {
		t.Errorf("%v, left %v", err, f.namespaces)
	}
}

// An interruption or an error at any call leaves no namespace.
func TestRunLeavesNothing(t *testing.T) {
	failure := errors.New("the API server says no")
	for _, method := range []string{"Create", "Touch", "Start", "States", "Enforce", "Probe"} {
		for _, interrupt := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s %t", method, interrupt), func(t *testing.T) {
				f, said := newFake(t), &lines{}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				removals := 0
				f.fails = func(_ context.Context, called string) error {
					if called == "Remove" {
						if removals++; removals < 3 {
							return failure // it is repeated
						}
					}
					if called != method {
						return nil
					}
					if interrupt {
						cancel()
						return nil
					}
					return failure
				}
				r, err := connectivity.Run(ctx, f, config(said))
				if method == "Touch" && (!interrupt || err == nil) { // the next beat repeats it; or it is the last one
					if err != nil || !r.Positive() {
						t.Errorf("%v, %v", r, err)
					}
				} else if want := map[bool]error{false: failure, true: context.Canceled}[interrupt]; !errors.Is(err, want) {
					t.Errorf("%v, want %v", err, want)
				}
				if len(f.namespaces) != 0 {
					t.Errorf("left %v", f.namespaces)
				}
			})
		}
	}
}

// A missing right ends the run at the first attempt.
func TestRunRefused(t *testing.T) {
	f, said := newFake(t), &lines{}
	f.fails = func(_ context.Context, method string) error {
		if method == "Probe" {
			return fmt.Errorf("exec: %w", connectivity.ErrRefused)
		}
		return nil
	}
	cfg := config(said)
	cfg.Settle = time.Hour
	if _, err := connectivity.Run(t.Context(), f, cfg); !errors.Is(err, connectivity.ErrRefused) || len(f.namespaces) != 0 {
		t.Errorf("%v, left %v", err, f.namespaces)
	}
}

// A run removes what a killed run left, and neither a living run nor what users keep.
func TestLeftOvers(t *testing.T) {
	f, said := newFake(t), &lines{}
	for _, left := range []connectivity.Tenancy{{"killed", "7", false}, {"living", "", false}, {"kept", "9", true}} {
		f.namespaces[left.Namespace] = left
	}
	f.alive["living"] = true
	cfg := config(said)
	cfg.Keep = true
	if _, err := connectivity.Run(t.Context(), f, cfg); err != nil {
		t.Fatal(err)
	}
	left := func() (names []string) {
		for name := range f.namespaces {
			names = append(names, name)
		}
		slices.Sort(names)
		return names
	}
	if got := left(); !slices.Equal(got, []string{"kept", "living", "test-1"}) {
		t.Errorf("left %q", got)
	}
	removed, err := connectivity.Clean(t.Context(), f, cfg, true)
	if got := left(); err != nil || !slices.Equal(got, []string{"living"}) || len(removed) != 2 {
		t.Errorf("left %q, removed %q, %v", got, removed, err)
	}
}

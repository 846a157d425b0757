// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-net/isthmus/common/endpoint"
)

// outcome is the runtime's view after a scenario.
type outcome struct {
	// added are the pods whose ADD succeeded, with their addresses.
	added map[int][]netip.Addr
	// unsure are the pods with a request that did not succeed.
	unsure []int
}

// scenario attaches three pods, detaches one and attaches another. It continues after errors, as a
// runtime does with its other pods.
func (r *rig) scenario() outcome {
	o := outcome{added: make(map[int][]netip.Addr)}
	add := func(n int) {
		if ips, err := r.add(n); err == nil {
			o.added[n] = ips
		} else {
			o.unsure = append(o.unsure, n)
		}
	}
	del := func(n int) {
		if r.del(n) != nil {
			o.unsure = append(o.unsure, n)
		}
		delete(o.added, n)
	}
	add(0)
	add(1)
	add(2)
	del(1)
	add(3)
	return o
}

func (o outcome) pods() []int {
	var all []int
	for n := range o.added {
		all = append(all, n)
	}
	slices.Sort(all)
	return all
}

// checkPods checks that the state of answered pods equals the answers.
func (r *rig) checkPods(o outcome) {
	r.t.Helper()
	for n, ips := range o.added {
		again, err := r.add(n)
		if err != nil || !slices.Equal(again, ips) {
			r.t.Errorf("pod %d has %v, %v, was answered %v", n, again, err, ips)
		}
		if err := r.check(n); err != nil {
			r.t.Errorf("CHECK %d: %v", n, err)
		}
		if got, want := r.reachable(n), n%2 == 0; got != want {
			r.t.Errorf("pod %d reachable: %t, want %t", n, got, want)
		}
	}
}

// cleanUp handles unanswered requests as a runtime does.
var cleanUp = map[string]func(*rig, outcome){
	"DEL": func(r *rig, o outcome) {
		for _, n := range o.unsure {
			r.mustDel(n)
		}
	},
	"GC": func(r *rig, o outcome) {
		if _, err := r.gc(o.pods()...); err != nil {
			r.t.Errorf("GC: %v", err)
		}
	},
}

// TestCrashAtEveryStep kills the agent at every step of the agent and of the data path. It then starts
// another agent and expects no trace of unanswered requests.
func TestCrashAtEveryStep(t *testing.T) {
	crashes := 0
	for name, clean := range cleanUp {
		for step, survived := 1, false; !survived; step += stride() {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				r.crashAt(step)
				r.start()
				r.agent.Publish(cluster{pods: 4}.snapshot())
				o := r.scenario()
				if r.crashed() {
					crashes++
				} else {
					survived = true // there are no more steps
				}
				r.afterCrash(o, clean)
			})
			if t.Failed() {
				t.Fatalf("crash at step %d, then %s", step, name)
			}
		}
	}
	if crashes < 60/stride() {
		t.Errorf("only %d crashes", crashes)
	}
	t.Logf("crashes=%d", crashes)
}

// crashed waits until the agent is idle, and ends it. It reports whether it crashed before.
func (r *rig) crashed() bool {
	r.t.Helper()
	r.settle()
	r.calm()
	select {
	case <-r.ended:
		r.stop()
		return true
	default:
		r.end()
		return false
	}
}

// afterCrash starts a new agent and checks how it handles the remaining state.
func (r *rig) afterCrash(o outcome, clean func(*rig, outcome)) {
	r.t.Helper()
	reach := make(map[int]bool)
	for n := range o.added {
		reach[n] = r.reachable(n)
	}
	r.start()
	r.settle()
	for n := range o.added {
		if r.reachable(n) != reach[n] {
			r.t.Errorf("pod %d changed its fate before the first snapshot", n)
		}
	}
	records := r.records()
	if len(records[endpoint.Adding]) > 0 || !slices.Equal(r.attached(), records[endpoint.Ready]) {
		r.t.Errorf("what was not finished was not undone: attached %v, records %v", r.attached(), records)
	}
	r.agent.Publish(cluster{pods: 4}.snapshot())
	r.settle()
	clean(r, o)
	r.settle()
	r.wantOnly(o.pods()...)
	r.checkPods(o)
	for n := range 4 { // everything still works, also for the unlucky
		if _, err := r.add(n); err != nil {
			r.t.Errorf("ADD %d after the crash: %v", n, err)
		}
	}
	r.wantOnly(0, 1, 2, 3)
	seen := make(map[string]bool)
	for n := range 4 {
		for _, ip := range r.mustAdd(n) {
			if seen[ip.String()] {
				r.t.Errorf("address %s twice", ip)
			}
			seen[ip.String()] = true
		}
	}
	r.end()
}

// TestCrashTwice kills the second agent too, at every step of its start.
func TestCrashTwice(t *testing.T) {
	for _, first := range []int{9, 17, 24, 33} {
		for second, survived := 1, false; !survived; second += stride() {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				r.crashAt(first)
				r.start()
				r.agent.Publish(cluster{pods: 4}.snapshot())
				o := r.scenario()
				r.drop()
				r.crashAt(second)
				r.start()
				r.agent.Publish(cluster{pods: 4}.snapshot())
				r.settle()
				r.calm()
				select {
				case <-r.ended:
				default:
					survived = true
					r.end()
				}
				r.stop()
				r.afterCrash(o, cleanUp["GC"])
			})
			if t.Failed() {
				t.Fatalf("crashes at steps %d and %d", first, second)
			}
		}
	}
}

// TestFailAtEveryStep makes every step of the data path fail, once or for a while, or hang.
func TestFailAtEveryStep(t *testing.T) {
	broken := errors.New("broken on purpose")
	for name, fault := range map[string]func(ctx context.Context, step, at int) error{
		"once": func(_ context.Context, step, at int) error {
			if step == at {
				return broken
			}
			return nil
		},
		"for ten steps": func(_ context.Context, step, at int) error {
			if step >= at && step < at+10 {
				return broken
			}
			return nil
		},
		"hang": func(ctx context.Context, step, at int) error {
			if step == at {
				<-ctx.Done()
			}
			return ctx.Err()
		},
	} {
		t.Run(name, func(t *testing.T) {
			failures := 0
			for at, reached := 1, true; reached; at += stride() {
				synctest.Test(t, func(t *testing.T) {
					r := newRig(t)
					r.start()
					r.agent.Publish(cluster{pods: 4}.snapshot())
					r.settle()
					step := 0
					reached = false
					r.fake.SetFault(func(ctx context.Context, _ string) error {
						step++
						reached = reached || step >= at
						return fault(ctx, step, at)
					})
					o := r.scenario()
					failures += len(o.unsure)
					r.fake.SetFault(nil)
					time.Sleep(time.Minute) // leaves time for retries
					cleanUp["DEL"](r, o)
					r.settle()
					r.wantOnly(o.pods()...)
					r.checkPods(o)
					if got := r.problems(); got != "0" {
						_, body := r.get("/metrics")
						t.Errorf("%s problems are left\n%s", got, body)
					}
					r.end()
					r.afterCrash(o, cleanUp["GC"])
				})
				if t.Failed() {
					t.Fatalf("failure at step %d", at)
				}
			}
			if failures < 20/stride() {
				t.Errorf("only %d requests failed", failures)
			}
			t.Logf("failed requests=%d", failures)
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-net/isthmus/common/agent"
	"github.com/isthmus-net/isthmus/common/api/cniframe"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/dataplane/dataplanetest"
	"github.com/isthmus-net/isthmus/common/model"
)

// starter attaches endpoints concurrently with the other methods, four at a time.
type starter struct {
	*dataplanetest.Fake
	// takes is the time of one attachment, 500 ms without it.
	takes func(id model.EndpointID) time.Duration
	fail  error

	mu              sync.Mutex
	running, atMost int
}

func (s *starter) Starts() int { return 4 }

func (s *starter) StartEndpoint(ctx context.Context, spec dataplane.EndpointSpec, done func()) (func(context.Context) (dataplane.Attachment, error), error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running++
	s.atMost = max(s.atMost, s.running)
	takes := 500 * time.Millisecond
	if s.takes != nil {
		takes = s.takes(spec.ID)
	}
	go func() {
		time.Sleep(takes)
		done()
	}()
	return func(ctx context.Context) (dataplane.Attachment, error) {
		s.mu.Lock()
		s.running--
		s.mu.Unlock()
		if s.fail != nil {
			return dataplane.Attachment{}, s.fail
		}
		return s.Fake.AddEndpoint(ctx, spec)
	}, nil
}

// sideBySide starts an agent whose data path is a starter.
func (r *rig) sideBySide(pods int) *starter {
	s := &starter{Fake: r.fake}
	r.change = func(c *agent.Config) {
		c.Open = func(context.Context, model.Node) (dataplane.Backend, error) {
			r.fake.Reopen()
			return s, nil
		}
	}
	r.start()
	r.agent.Publish(cluster{pods: pods}.snapshot())
	r.settle()
	return s
}

// addAll sends ADDs at once. The map holds an error or nil for each that has been answered.
func (r *rig) addAll(ctx context.Context, pods ...int) (wait func() map[int]error) {
	var mu sync.Mutex
	var running sync.WaitGroup
	answers := make(map[int]error)
	for _, n := range pods {
		running.Go(func() {
			_, err := r.addContext(ctx, addRequest(n))
			mu.Lock()
			defer mu.Unlock()
			answers[n] = err
		})
	}
	return func() map[int]error { running.Wait(); return answers }
}

func upTo(n int) (all []int) {
	for i := range n {
		all = append(all, i)
	}
	return all
}

// TestADDsSideBySide checks that ADDs wait for the data path concurrently. If an Apply takes long
// too, later ADDs join in the next one.
func TestADDsSideBySide(t *testing.T) {
	for _, c := range []struct {
		apply, took time.Duration
		applied     int
	}{{0, 4500 * time.Millisecond, 30}, {300 * time.Millisecond, 8 * time.Second, 20}} {
		run(t, func(t *testing.T, r *rig) {
			s := r.sideBySide(30)
			r.fake.SetFault(func(_ context.Context, step string) error {
				if step == "apply.0" {
					time.Sleep(c.apply)
				}
				return nil
			})
			before, began := r.applied(), time.Now()
			for n, err := range r.addAll(context.Background(), upTo(30)...)() {
				if err != nil {
					t.Errorf("ADD %d: %v", n, err)
				}
			}
			if took := time.Since(began); took > c.took || s.atMost != 4 {
				t.Errorf("Apply takes %s: ADDs took %s, %d at a time", c.apply, took, s.atMost)
			}
			if applied := r.applied() - before; applied > c.applied {
				t.Errorf("Apply takes %s: %d times Apply for 30 pods", c.apply, applied)
			}
			r.wantOnly(upTo(30)...)
			for n := range 30 {
				if r.reachable(n) != (n%2 == 0) {
					t.Errorf("pod %d has another policy", n)
				}
			}
			r.end()
		})
	}
}

// applied counts the calls of Apply.
func (r *rig) applied() (count int) {
	for _, line := range r.fake.Log() {
		if strings.HasPrefix(line, "apply") {
			count++
		}
	}
	return count
}

// TestHungADD checks that an attachment that hangs delays no other pod, and no policy. Its DEL
// waits for it, and leaves nothing.
func TestHungADD(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		s := r.sideBySide(12)
		s.takes = func(e model.EndpointID) time.Duration {
			if e == id(0) {
				return 2 * time.Minute
			}
			return 500 * time.Millisecond
		}
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		hung, began := r.addAll(ctx, 0), time.Now()
		synctest.Wait()
		for n, err := range r.addAll(context.Background(), upTo(12)[1:]...)() {
			if err != nil {
				t.Errorf("ADD %d: %v", n, err)
			}
		}
		r.mustDel(11)
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("others took %s", took)
		}
		list, err := r.agent.Endpoints(context.Background())
		i := slices.IndexFunc(list, func(e agent.EndpointStatus) bool { return e.ID == id(0) })
		if err != nil || i < 0 || list[i].Unenforced || !slices.Equal(list[i].Problems, []string{"is being attached"}) {
			t.Errorf("the hung attachment is described as %+v, %v", list, err)
		}
		if r.agent.Status(context.Background(), &cniframe.StatusRequest{}) != nil {
			t.Error("a hung attachment makes the node unable to attach others")
		}
		if err := hung()[0]; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the hung ADD ended with %v", err)
		}
		if removed, err := r.gc(upTo(11)[1:]...); err != nil || len(removed) > 0 {
			t.Errorf("GC removed %v, %v", removed, err)
		}
		r.mustDel(0)
		if took := time.Since(began); took < 2*time.Minute {
			t.Errorf("DEL was answered after %s, before the attachment could be removed", took)
		}
		r.wantOnly(upTo(11)[1:]...)
		r.end()
	})
}

// TestDELOfUnfinishedADD checks that an ADD that a DEL overtakes is answered immediately, leaves
// nothing, and can be repeated.
func TestDELOfUnfinishedADD(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.sideBySide(2)
		first := r.addAll(context.Background(), 0, 0)
		time.Sleep(100 * time.Millisecond)
		deleted := make(chan error, 1)
		go func() { deleted <- r.del(0) }()
		synctest.Wait()
		wantCode(t, first()[0], 11, "DEL of c0:eth0 came before")
		again := r.addAll(context.Background(), 0)
		if err := <-deleted; err != nil {
			t.Error(err)
		}
		if err := again()[0]; err != nil {
			t.Error(err)
		}
		r.wantOnly(0)
		r.mustDel(0)
		r.wantOnly()
		r.end()
	})
}

// TestUnfinishedADDFails checks that nothing remains of an attachment that fails, or that the end
// of the agent interrupts.
func TestUnfinishedADDFails(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		s := r.sideBySide(8)
		s.fail = errors.New("no")
		for n, err := range r.addAll(context.Background(), upTo(8)...)() {
			wantCode(t, err, 103, "no")
			_ = n
		}
		r.wantOnly()
		s.fail = nil
		stopped := r.addAll(context.Background(), upTo(8)...)
		time.Sleep(100 * time.Millisecond)
		r.end()
		for _, err := range stopped() {
			wantCode(t, err, 11, "stopping")
		}
		time.Sleep(time.Second) // unfinished attachments end
		s.running = 0
		r.start()
		r.agent.Publish(cluster{pods: 8}.snapshot())
		r.settle()
		r.wantOnly()
		for n, err := range r.addAll(context.Background(), upTo(8)...)() {
			if err != nil {
				t.Errorf("ADD %d: %v", n, err)
			}
		}
		r.wantOnly(upTo(8)...)
		for n := range 8 {
			r.mustDel(n)
		}
		drained := r.addAll(context.Background(), upTo(8)...)
		time.Sleep(100 * time.Millisecond)
		if err := r.agent.Drain(context.Background()); err != nil {
			t.Error(err)
		}
		for _, err := range drained() {
			wantCode(t, err, 11, "stopping")
		}
		time.Sleep(time.Second)
		r.wantOnly()
		r.end()
	})
}

// TestCrashOfUnfinishedADDs kills the agent at every step while attachments run concurrently.
func TestCrashOfUnfinishedADDs(t *testing.T) {
	crashes := 0
	for step, survived := 1, false; !survived; step += stride() {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			r.crashAt(step)
			r.sideBySide(4)
			o := outcome{added: make(map[int][]netip.Addr)}
			var mu sync.Mutex
			var running sync.WaitGroup
			for n := range 4 {
				running.Go(func() {
					ips, err := r.add(n)
					if n == 1 && err == nil {
						err = errors.Join(r.del(n), errors.New("detached"))
					}
					mu.Lock()
					defer mu.Unlock()
					if err != nil {
						o.unsure = append(o.unsure, n)
					} else {
						o.added[n] = ips
					}
				})
			}
			running.Wait()
			if r.crashed() {
				crashes++
			} else {
				survived = true // there are no more steps
			}
			r.afterCrash(o, cleanUp["DEL"])
		})
		if t.Failed() {
			t.Fatalf("crash at step %d", step)
		}
	}
	if crashes < 40/stride() {
		t.Errorf("only %d crashes", crashes)
	}
}

// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-net/isthmus/common/agent"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
)

// preparer is a starter whose attachments take a fifth of the time if an endpoint was prepared for
// them. It survives agents.
type preparer struct {
	*starter
	mu    sync.Mutex
	ready []dataplane.Prepared
	used  int
}

func (p *preparer) Prepared() []dataplane.Prepared {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.ready)
}

func (p *preparer) Prepare(_ context.Context, e dataplane.Prepared, done func()) (func(context.Context) error, error) {
	go func() {
		time.Sleep(400 * time.Millisecond)
		done()
	}()
	return func(context.Context) error {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.ready = append(p.ready, e)
		return nil
	}, nil
}

func (p *preparer) remove(ips []netip.Addr) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := len(p.ready)
	p.ready = slices.DeleteFunc(p.ready, func(e dataplane.Prepared) bool { return slices.Equal(e.IPs, ips) })
	return len(p.ready) < before
}

func (p *preparer) Discard(_ context.Context, e dataplane.Prepared) error {
	p.remove(e.IPs)
	return nil
}

func (p *preparer) StartEndpoint(ctx context.Context, spec dataplane.EndpointSpec, done func()) (func(context.Context) (dataplane.Attachment, error), error) {
	p.takes = nil
	if p.remove(spec.IPs) {
		p.used++
		p.takes = func(model.EndpointID) time.Duration { return 100 * time.Millisecond }
	}
	return p.starter.StartEndpoint(ctx, spec, done)
}

// withPool starts an agent with a pool of five.
func (r *rig) withPool(p *preparer, c cluster) *preparer {
	if p == nil {
		p = &preparer{starter: &starter{Fake: r.fake}}
	}
	r.change = func(c *agent.Config) {
		c.EndpointPool = 5
		c.Open = func(context.Context, model.Node) (dataplane.Backend, error) {
			r.fake.Reopen()
			return p, nil
		}
	}
	r.start()
	r.agent.Publish(c.snapshot())
	r.settle()
	return p
}

// TestEndpointPool checks that ADDs get prepared endpoints, also after a restart of the agent, and
// that no two pods get one address.
func TestEndpointPool(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		p := r.withPool(nil, cluster{pods: 12})
		r.mustAdd(0)
		time.Sleep(30 * time.Second)
		if got := r.metric(`isthmus_endpoint_pool{state="ready"}`); got != "5" || len(p.Prepared()) != 5 {
			t.Fatalf("%s are ready, %v", got, p.Prepared())
		}
		began := time.Now()
		for n, err := range r.addAll(context.Background(), 1, 2, 3, 4)() {
			if err != nil {
				t.Errorf("ADD %d: %v", n, err)
			}
		}
		if took := time.Since(began); took > 300*time.Millisecond || p.used != 4 {
			t.Errorf("4 ADDs took %s, %d prepared endpoints were used", took, p.used)
		}
		if hits, misses := r.metric(`isthmus_endpoint_pool_adds_total{result="hit"}`), r.metric(`isthmus_endpoint_pool_adds_total{result="miss"}`); hits != "4" || misses != "1" {
			t.Errorf("%s hits, %s misses", hits, misses)
		}
		time.Sleep(30 * time.Second)
		r.end()
		before := p.Prepared()
		p.running = 0
		r.withPool(p, cluster{pods: 12})
		if got := p.Prepared(); len(got) != 5 || !slices.EqualFunc(got, before, func(a, b dataplane.Prepared) bool { return slices.Equal(a.IPs, b.IPs) }) {
			t.Errorf("after a restart %v, before %v", got, before)
		}
		for n, err := range r.addAll(context.Background(), 5, 6, 7, 8, 9, 10, 11)() {
			if err != nil {
				t.Errorf("ADD %d: %v", n, err)
			}
		}
		if p.used != 9 {
			t.Errorf("%d prepared endpoints were used", p.used)
		}
		r.wantOnly(upTo(12)...)
		r.end()
	})
}

// TestEndpointPoolGivesWay checks that a pod that requests the address of a prepared endpoint gets
// it, and that prepared endpoints do not prevent pods from starting when addresses are few.
func TestEndpointPoolGivesWay(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		c := asking([]string{"10.0.1.0/28"}, nil) // 13 addresses
		c.pods = 13
		p := r.withPool(nil, c)
		r.mustAdd(0)
		time.Sleep(30 * time.Second)
		if len(p.Prepared()) != 5 {
			t.Fatalf("prepared: %v", p.Prepared())
		}
		wanted := p.Prepared()[1].IPs[0]
		c.edit = func(n int, pod *model.Pod) {
			if n == 1 {
				pod.FixedIPs = wanted.String()
			}
		}
		r.agent.Publish(c.snapshot())
		r.wantIPs(1, wanted.String())
		for n := 2; n < 13; n++ {
			r.mustAdd(n)
		}
		if got := r.metric(`isthmus_ipam_addresses{pool="10.0.1.0/28",state="used"}`); got != "13" || len(p.Prepared()) != 0 {
			t.Errorf("%s addresses are used; prepared: %v", got, p.Prepared())
		}
		r.end()
	})
}

// TestCrashWithEndpointPool kills the agent at every step while pods get prepared endpoints.
func TestCrashWithEndpointPool(t *testing.T) {
	crashes := 0
	for step, survived := 1, false; !survived; step += stride() {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			r.crashAt(step)
			p := r.withPool(nil, cluster{pods: 4})
			o := outcome{added: make(map[int][]netip.Addr)}
			for n := range 4 {
				ips, err := r.add(n)
				if n == 1 && err == nil {
					err = errors.Join(r.del(n), errors.New("detached"))
				}
				if err != nil {
					o.unsure = append(o.unsure, n)
				} else {
					o.added[n] = ips
				}
				time.Sleep(5 * time.Second)
			}
			if r.crashed() {
				crashes++
			} else {
				survived = true // there are no more steps
				if p.used < 2 {
					t.Errorf("%d prepared endpoints were used", p.used)
				}
			}
			p.running = 0
			off := r.change
			r.change = func(c *agent.Config) { // the next agent removes them all
				off(c)
				c.EndpointPool = 0
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

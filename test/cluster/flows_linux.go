// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
	"github.com/isthmus-net/isthmus/test/netns"
)

// Source is where flows come from: a pod, or something that is none.
type Source struct {
	Name  string
	Pod   *Pod
	ns    *netns.NS
	addrs []netip.Addr
}

// Sources are all pods, the outside and the nodes.
func (c *Cluster) Sources() []Source {
	var all []Source
	for _, p := range c.pods {
		all = append(all, Source{Name: p.PodID.String(), Pod: p, ns: p.namespace(), addrs: p.IPs})
	}
	ns, addrs := c.Outside()
	all = append(all, Source{Name: "(outside)", ns: ns, addrs: addrs})
	for _, n := range c.Nodes {
		all = append(all, Source{Name: "(node " + n.Name + ")", ns: n.NS, addrs: n.Addresses()})
	}
	return all
}

// Flow is one flow that is tried, and what came of it.
type Flow struct {
	From Source
	To   *Pod
	model.Flow
	// Want is the reference's verdict, Got the cluster's.
	Want, Got model.Verdict
	// Egress and Ingress are the reference's decisions.
	Egress, Ingress model.Decision
}

// Flows lists every flow from every source to every port of every pod, in each
// family that both have, with the verdict that is right for it.
func (c *Cluster) Flows(ctx context.Context) ([]*Flow, error) {
	objects, err := c.Manifests.Objects(ctx)
	if err != nil {
		return nil, err
	}
	reference := policy.NewEvaluator(objects.Snapshot())
	var all []*Flow
	for _, from := range c.Sources() {
		for _, to := range c.pods {
			if from.Pod == to {
				continue
			}
			for _, at := range to.Ports() {
				for _, src := range from.addrs {
					for _, dst := range to.IPs {
						if src.Is6() != dst.Is6() {
							continue
						}
						f := &Flow{From: from, To: to, Flow: model.Flow{Src: src, Dst: dst, Protocol: at.Protocol, Port: at.Number}}
						f.Egress, f.Ingress = reference.Flow(f.Flow)
						f.Want = min(f.Egress.Verdict, f.Ingress.Verdict)
						all = append(all, f)
					}
				}
			}
		}
	}
	return all, nil
}

// Try sends every flow and fills in the verdicts. progress is called now and
// then with how many are done.
func (c *Cluster) Try(ctx context.Context, flows []*Flow, progress func(done int)) error {
	var done atomic.Int64
	var mu sync.Mutex
	var errs []error
	work := make(chan *Flow)
	var wg sync.WaitGroup
	for range 48 {
		wg.Go(func() {
			for f := range work {
				if err := c.try(ctx, f); err != nil {
					mu.Lock()
					errs = append(errs, fmt.Errorf("flow %s from %s to %s: %w", f.Flow, f.From.Name, f.To.PodID, err))
					mu.Unlock()
				}
				if n := done.Add(1); n%100 == 0 {
					progress(int(n))
				}
			}
		})
	}
	for _, f := range flows {
		if ctx.Err() != nil {
			break
		}
		work <- f
	}
	close(work)
	wg.Wait()
	return errors.Join(append(errs, ctx.Err())...)
}

// try decides a flow: the ends on Linux by a real connection, the ends on
// Windows by the ACLs that are programmed. Silence that was not expected is
// listened to for longer, because the machine may be busy.
func (c *Cluster) try(ctx context.Context, f *Flow) error {
	windows, err := f.windows(ctx)
	if err != nil {
		return err
	}
	if f.bothOnWindows() {
		f.Got = windows
		return nil
	}
	f.Got, err = connect(ctx, f.From.ns, f.Src, f.Dst, f.Protocol, f.Port, 250*time.Millisecond)
	for attempt := 0; err == nil && f.Got == model.Deny && min(f.realWant(), windows) == model.Allow && attempt < 2; attempt++ {
		f.Got, err = connect(ctx, f.From.ns, f.Src, f.Dst, f.Protocol, f.Port, 2*time.Second)
	}
	f.Got = min(f.Got, windows)
	return err
}

func onWindows(p *Pod) bool { return p != nil && p.Node.OS == model.Windows }

func (f *Flow) bothOnWindows() bool { return onWindows(f.From.Pod) && onWindows(f.To) }

// realWant is what the reference says of the ends on Linux.
func (f *Flow) realWant() model.Verdict {
	v := model.Allow
	if !onWindows(f.From.Pod) {
		v = min(v, f.Egress.Verdict)
	}
	if !onWindows(f.To) {
		v = min(v, f.Ingress.Verdict)
	}
	return v
}

// windows asks the ACLs of the ends on Windows.
func (f *Flow) windows(ctx context.Context) (model.Verdict, error) {
	v := model.Allow
	if p := f.From.Pod; onWindows(p) {
		got, err := p.Node.decide(ctx, p, model.Egress, f.Dst, f.Protocol, f.Port)
		if err != nil {
			return v, err
		}
		v = min(v, got)
	}
	if p := f.To; onWindows(p) {
		got, err := p.Node.decide(ctx, p, model.Ingress, f.Src, f.Protocol, f.Port)
		if err != nil {
			return v, err
		}
		v = min(v, got)
	}
	return v, nil
}

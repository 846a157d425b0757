// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
	"github.com/isthmus-net/isthmus/test/netns"
)

// Source is the origin of flows: a pod, a node or the outside.
type Source struct {
	Name string
	// Pod is set for a pod. Node is set for a node and for a pod.
	Pod   *Pod
	Node  *Node
	ns    *netns.NS
	addrs []netip.Addr
}

// Sources are all pods, the outside and the nodes.
func (c *Cluster) Sources() []Source {
	var all []Source
	for _, p := range c.pods {
		all = append(all, Source{Name: p.PodID.String(), Pod: p, Node: p.Node, ns: p.NS, addrs: p.IPs})
	}
	ns, addrs := c.Outside()
	all = append(all, Source{Name: "(outside)", ns: ns, addrs: addrs})
	for _, n := range c.Nodes {
		all = append(all, Source{Name: "(node " + n.Name + ")", Node: n, ns: n.NS, addrs: n.Addresses()})
	}
	return all
}

// Flow is one tested flow and its result.
type Flow struct {
	From Source
	To   *Pod
	model.Flow
	// Want is the verdict of the reference, Got that of the cluster.
	Want, Got model.Verdict
	// Egress and Ingress are the reference's decisions.
	Egress, Ingress model.Decision
}

// Flows lists every flow from every source to every port of every pod, in each family that both have, with the
// verdict of the reference.
func (c *Cluster) Flows(ctx context.Context) ([]*Flow, error) {
	objects, err := c.Manifests.Objects(ctx)
	if err != nil {
		return nil, err
	}
	reference := policy.NewEvaluator(objects.Snapshot())
	var all []*Flow
	for _, from := range c.Sources() {
		for _, to := range c.pods {
			if from.Pod == to || !c.connected(from, to) {
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

// connected reports whether a route exists at all: overlay networks of Windows connect neither the hosts of
// Windows nodes nor the outside. Those of other CNIs do not connect the address of a Linux node, either.
func (c *Cluster) connected(from Source, to *Pod) bool {
	if !c.cfg.Overlay || from.Pod != nil {
		return true
	}
	host := from.Node != nil
	if host && c.cfg.OtherCNI != "" && to.Node.OS == model.Windows {
		return false
	}
	return host && from.Node.OS == model.Linux || !host && to.Node.OS == model.Linux
}

// Try opens every flow once, and fills in the verdicts. It calls progress from time to time with the number of
// finished flows. If each flow has the verdict of the reference, the servers and the counters of the nodes must agree:
// Try returns an error if anything that must not pass has arrived, or was allowed. Policy must be in force, and no
// other traffic may run.
func (c *Cluster) Try(ctx context.Context, flows []*Flow, progress func(done int)) error {
	before, err := c.ledger(ctx, flows)
	if err != nil {
		return err
	}
	if err := c.Open(ctx, flows, progress); err != nil {
		return err
	}
	if slices.ContainsFunc(flows, func(f *Flow) bool { return f.Got != f.Want }) {
		return nil // the caller sees it
	}
	return c.balance(ctx, flows, before)
}

// Open is Try without counting.
func (c *Cluster) Open(ctx context.Context, flows []*Flow, progress func(done int)) error {
	var done atomic.Int64
	var mu sync.Mutex
	var errs []error
	work := make(chan *Flow)
	var wg sync.WaitGroup
	for range cmp.Or(c.cfg.Tries, 48) {
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

// silence is how long an answer to a flow that policy denies is awaited. Try finds out by counting what passes later.
const silence = 250 * time.Millisecond

// try opens a real flow, once: only TCP sends lost packets again.
func (c *Cluster) try(ctx context.Context, f *Flow) (err error) {
	wait := patience
	if f.Want == model.Deny {
		wait = silence
	}
	opened := f.traffic()
	for {
		opened.FromPort = c.sourcePort(f.Src)
		if f.Got, err = connect(ctx, opened, wait); !errors.Is(err, syscall.EADDRINUSE) { // a server has the port
			return err
		}
	}
}

// sourcePort returns a port for the next flow from an address. It comes again only after all others: nodes count a flow
// that they still know as none, and Windows nodes may not decide it again.
func (c *Cluster) sourcePort(from netip.Addr) uint16 {
	const first, ports = 10000, 50000
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tried == nil {
		c.tried = make(map[netip.Addr]int)
	}
	c.tried[from]++
	return uint16(first + c.tried[from]%ports)
}

func onWindows(p *Pod) bool { return p != nil && p.Node.OS == model.Windows }

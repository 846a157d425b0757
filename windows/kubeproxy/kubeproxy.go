// SPDX-License-Identifier: Apache-2.0

// Package kubeproxy reads the load balancers that kube-proxy has made in HNS, and reports whether they keep the
// addresses of clients. Without direct server return (DSR) a load balancer puts the address of the node in place of
// the client's. The node reaches its pods whatever policies say, so ingress policy then decides nothing about
// callers of a Service.
//
// It changes no load balancer, and does not read the flags of kube-proxy.
package kubeproxy

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// Interval is the time between two readings. One reading lists all load balancers of the host.
const Interval = time.Minute

// Watcher is the component.
type Watcher struct {
	balancers hns.Balancers
	canDSR    bool
	log       *slog.Logger

	next  time.Time
	found *counts // of the last reading; nil if there was none
}

var (
	_ dataplane.Component = (*Watcher)(nil)
	_ dataplane.Describer = (*Watcher)(nil)
)

// New returns the component. canDSR reports whether this HNS has direct server return.
func New(b hns.Balancers, canDSR bool, log *slog.Logger) *Watcher {
	return &Watcher{balancers: b, canDSR: canDSR, log: log}
}

// Apply implements dataplane.Component. No section of a State concerns it.
func (*Watcher) Apply(context.Context, *model.State) ([]model.Unsupported, error) { return nil, nil }

// Sync implements dataplane.Component. It reads the load balancers once a minute. A failed reading keeps the last
// one: other components report an HNS that does not answer.
func (w *Watcher) Sync(ctx context.Context, now time.Time) error {
	if now.Before(w.next) {
		return nil
	}
	began := time.Now()
	list, err := w.balancers.LoadBalancers(ctx)
	w.next = now.Add(time.Since(began) + Interval) // the call may take longer than the interval
	if err != nil {
		w.log.Debug("load balancers were not read", "error", err)
		return nil
	}
	found := count(list)
	w.found = &found
	return nil
}

// counts are load balancers with an address of a Service.
type counts struct{ all, dsr int }

// count counts load balancers. Those of NodePorts have no address, and DSR only for Services with
// externalTrafficPolicy Local.
func count(list []hns.LoadBalancer) (c counts) {
	for i := range list {
		if !list[i].HasAddress() {
			continue
		}
		c.all++
		if list[i].DSR() {
			c.dsr++
		}
	}
	return c
}

// without reports whether kube-proxy runs without DSR. With DSR it gives the flag to the load balancer of every
// cluster IP, of which each cluster has one at least. Those of other addresses may lack it.
func (c counts) without() bool { return c.all > 0 && c.dsr == 0 }

// Problems implements dataplane.Component.
func (w *Watcher) Problems() []string {
	if w.found == nil || !w.found.without() {
		return nil
	}
	remedy := "set winkernel.enableDSR: true for kube-proxy (--enable-dsr)"
	if !w.canDSR {
		remedy = "update Windows, as this HNS has no DSR"
	}
	return []string{fmt.Sprintf("kube-proxy balances Services without direct server return (%d load balancers): pods see this node as the client, "+
		"so ingress policy does not hold for callers of a Service: %s", w.found.all, remedy)}
}

// Facts implements dataplane.Describer.
func (w *Watcher) Facts() []string {
	switch {
	case w.found == nil:
		return []string{"load balancers: not read yet"}
	case w.found.all == 0:
		return []string{"load balancers: none, kube-proxy serves no Services on this node"}
	}
	return []string{fmt.Sprintf("load balancers: %d of %d of kube-proxy with direct server return", w.found.dsr, w.found.all)}
}

// PathModes implements dataplane.Component: there are none.
func (*Watcher) PathModes() []dataplane.PathMode { return nil }

// Close implements dataplane.Component.
func (*Watcher) Close() error { return nil }

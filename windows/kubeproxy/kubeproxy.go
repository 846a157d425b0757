// SPDX-License-Identifier: Apache-2.0

// Package kubeproxy reads the load balancers that kube-proxy has made in HNS. It reports those that have the port of a pod's host
// port, and whether they keep the addresses of clients. Without direct server return (DSR) a load balancer puts the address of the node in place of
// the client's. The node reaches its pods whatever policies say, so ingress policy then decides nothing about
// callers of a Service.
//
// It changes no load balancer, and does not read the flags of kube-proxy.
package kubeproxy

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
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
	node      func() []netip.Addr
	log       *slog.Logger

	// hosted are the attachments with host ports.
	hosted map[model.EndpointID]dataplane.EndpointSpec

	next  time.Time
	found *counts // of the last reading; nil if there was none
	ports []model.HostPort
}

var (
	_ dataplane.Component        = (*Watcher)(nil)
	_ dataplane.Describer        = (*Watcher)(nil)
	_ dataplane.EndpointObserver = (*Watcher)(nil)
)

// New returns the component. canDSR reports whether this HNS has direct server return, and node the addresses of the node.
func New(b hns.Balancers, canDSR bool, node func() []netip.Addr, log *slog.Logger) *Watcher {
	return &Watcher{balancers: b, canDSR: canDSR, node: node, log: log, hosted: make(map[model.EndpointID]dataplane.EndpointSpec)}
}

// EndpointAdded implements dataplane.EndpointObserver.
func (w *Watcher) EndpointAdded(spec dataplane.EndpointSpec) {
	if len(spec.HostPorts) > 0 {
		w.hosted[spec.ID] = spec
	}
}

// RemoveEndpoint implements dataplane.EndpointObserver.
func (w *Watcher) RemoveEndpoint(id model.EndpointID) error {
	delete(w.hosted, id)
	return nil
}

// NodePorts returns the ports of load balancers at addresses of the node: those of NodePorts, which have no address, and those of
// external addresses of Services.
func NodePorts(list []hns.LoadBalancer, node []netip.Addr) (all []model.HostPort) {
	for i := range list {
		b := &list[i]
		var at []netip.Addr
		for _, vip := range b.FrontendVIPs {
			if a, err := netip.ParseAddr(vip); err == nil && slices.Contains(node, a) {
				at = append(at, a)
			}
		}
		if !b.HasAddress() {
			at = []netip.Addr{netip.IPv4Unspecified()}
			if b.Flags&hns.BalancerIPv6 != 0 {
				at = []netip.Addr{netip.IPv6Unspecified()}
			}
		}
		for _, p := range b.Ports {
			for _, a := range at {
				all = append(all, model.HostPort{Address: a, Protocol: model.Protocol(p.Protocol), Number: p.External})
			}
		}
	}
	return all
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
	w.found, w.ports = &found, NodePorts(list, w.node())
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
	all := w.conflicts()
	if w.found == nil || !w.found.without() {
		return all
	}
	remedy := "set winkernel.enableDSR: true for kube-proxy (--enable-dsr)"
	if !w.canDSR {
		remedy = "update Windows, as this HNS has no DSR"
	}
	return append(all, fmt.Sprintf("kube-proxy balances Services without direct server return (%d load balancers): pods see this node as the client, "+
		"so ingress policy does not hold for callers of a Service: %s", w.found.all, remedy))
}

// conflicts lists the host ports of pods that a Service has got since.
func (w *Watcher) conflicts() (all []string) {
	for _, id := range slices.Sorted(maps.Keys(w.hosted)) {
		spec := w.hosted[id]
		for _, h := range spec.HostPorts {
			if i := slices.IndexFunc(w.ports, h.Overlaps); i >= 0 {
				all = append(all, fmt.Sprintf("host port %s of pod %s is also %s of a Service, and which of them gets connections is up to HNS: give the pod another hostPort", h, spec.Pod, w.ports[i]))
			}
		}
	}
	return all
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

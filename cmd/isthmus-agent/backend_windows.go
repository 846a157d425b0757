// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/isthmus-net/isthmus/common/analysis/trace"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/etw"
	"github.com/isthmus-net/isthmus/windows/flowevents"
	"github.com/isthmus-net/isthmus/windows/foreign"
	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hostfabric"
	"github.com/isthmus-net/isthmus/windows/hostport"
	"github.com/isthmus-net/isthmus/windows/hostroute"
	"github.com/isthmus-net/isthmus/windows/rulecounters"
)

// newBackend returns the opener of the HNS data path, whose network needs the node's ranges. HNS may need a
// minute for a call on a busy host. The timeout of an operation leaves time to roll back a call without an
// answer.
func newBackend(o *options, step func(string), log *slog.Logger) opener {
	remove := func(ctx context.Context) error {
		client, err := hns.Open()
		if err != nil {
			return err
		}
		return errors.Join(etw.Stop(flowevents.SessionName), hostfabric.Remove(hostroute.System{}, forwardingFile(o)),
			windows.Remove(ctx, client, o.hnsNetwork, o.hnsTimeout),
			windows.ForgetPrepared(preparedFile(o)), foreign.Remove(ctx, client, foreignFile(o), o.hnsTimeout))
	}
	calls := windows.NewCallMetrics()
	open := func(ctx context.Context, node model.Node) (dataplane.Backend, error) {
		client, err := hns.Open()
		if err != nil {
			return nil, err
		}
		if o.besides() {
			return openForeign(ctx, o, node, client, calls.Observe, step, log)
		}
		c := windows.Config{Network: o.hnsNetwork, Mode: windows.Mode(o.hnsMode), PodCIDRs: windows.Mode(o.hnsMode).Ranges(node.PodCIDRs),
			NodeAddresses: node.Addresses, VNI: o.fabric.VNI, CallDeadline: o.hnsTimeout,
			Parallel: o.hnsParallel, Sets: windows.SetUse(o.hnsSets), Step: step, Observe: calls.Observe}
		c.HostAddresses.Read, c.Listening = hostAddresses, hostport.Listening
		c.ServiceCIDRs, c.NoOutboundNAT = o.services, !o.fabric.Masquerade
		if len(o.cluster) > 0 { // else they follow from the Nodes
			c.OutboundNATExceptions = slices.Concat(o.cluster, o.services)
		}
		c.Fabric, c.Stack, c.ForwardingFile = o.fabric.Mode, hostroute.System{}, forwardingFile(o)
		c.PreparedFile = preparedFile(o)
		if c.Events, err = flowSource(o); err != nil {
			return nil, err
		}
		c.EventLimits = eventLimits(&o.flows)
		if o.ruleCounters > 0 {
			if c.RuleCounters, err = rulecounters.System(); err != nil {
				return nil, err
			}
			c.RuleCounterInterval = o.ruleCounters
		}
		c.HostRoutes = hostroute.Keep(hostroute.System{}, filepath.Join(o.stateDir, "host-routes.json"), o.hostRoutes)
		return windows.New(ctx, c, client, log)
	}
	return opener{remove: remove, reserve: reserveHNS, metrics: []prometheus.Collector{calls}, needsNode: true, timeout: 2 * o.hnsTimeout, open: open}
}

// openForeign opens the data path on the endpoints of another CNI plugin.
func openForeign(ctx context.Context, o *options, node model.Node, client hns.Client, observe func(hns.Call),
	step func(string), log *slog.Logger) (dataplane.Backend, error) {
	c := foreign.Config{NodeAddresses: node.Addresses, File: foreignFile(o), CallDeadline: o.hnsTimeout, Observe: observe, Step: step}
	c.HostAddresses.Read = hostAddresses
	var err error
	if c.Events, err = flowSource(o); err != nil {
		return nil, err
	}
	c.EventLimits = eventLimits(&o.flows)
	return foreign.New(ctx, c, client, log)
}

// flowSource returns the events that explain drops; nil if they are not wanted.
func flowSource(o *options) (etw.Source, error) {
	if o.flows.events == flowsOff {
		return nil, nil
	}
	return etw.New(flowevents.Session())
}

// foreignFile returns where the agent notes the endpoints of another CNI plugin.
func foreignFile(o *options) string { return filepath.Join(o.stateDir, "foreign-endpoints.json") }

// forwardingFile returns where the agent notes the forwarding flags that it turned on.
func forwardingFile(o *options) string { return filepath.Join(o.stateDir, "host-forwarding.json") }

// preparedFile returns where the agent notes the endpoints that it prepared.
func preparedFile(o *options) string { return filepath.Join(o.stateDir, "prepared-endpoints.json") }

// hostAddresses lists the addresses of the host that its programs may use to reach pods.
func hostAddresses() ([]netip.Addr, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list addresses of the host: %w", err)
	}
	return routable(all), nil
}

// checkMapEntries accepts everything: checkNode rejects the flag on this OS.
func checkMapEntries(map[string]int) error { return nil }

// eventLimits returns the limits of flow events.
func eventLimits(o *flowOptions) flowevents.Limits {
	return flowevents.Limits{Rate: o.rate, Burst: o.burst}
}

// checkFlowEvents reports limits that the data path does not accept.
func checkFlowEvents(o *flowOptions) error { return eventLimits(o).Validate() }

// readLists returns how ACLs that were read back decide.
func readLists() trace.Lists { return acl.Installed }

// migrating returns nil: only Linux nodes are migrated.
func migrating(string) error { return nil }

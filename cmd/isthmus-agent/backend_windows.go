// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows"
	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hostroute"
)

// newBackend chooses the HNS data path, whose network needs the node's ranges.
// HNS may take a minute for a call on a busy host; an operation has time to undo
// what a call without an answer has begun.
func newBackend(o *options, step func(string), log *slog.Logger) opener {
	remove := func(ctx context.Context) error {
		client, err := hns.Open()
		if err != nil {
			return err
		}
		return windows.Remove(ctx, client, o.hnsNetwork)
	}
	return opener{remove: remove, needsNode: true, timeout: 2 * o.hnsTimeout, open: func(ctx context.Context, node model.Node) (dataplane.Backend, error) {
		client, err := hns.Open()
		if err != nil {
			return nil, err
		}
		c := windows.Config{Network: o.hnsNetwork, Mode: windows.Mode(o.hnsMode), PodCIDRs: node.PodCIDRs, NodeAddresses: node.Addresses, VNI: o.fabric.VNI, CallDeadline: o.hnsTimeout, Step: step}
		if c.Mode == windows.Overlay { // has no IPv6
			c.PodCIDRs = slices.DeleteFunc(slices.Clone(c.PodCIDRs), func(p netip.Prefix) bool { return p.Addr().Is6() })
		}
		c.ServiceCIDRs, c.OutboundNATExceptions = o.services, slices.Concat(o.cluster, o.services)
		c.HostRoutes = hostroute.Keep(hostroute.System{}, filepath.Join(o.stateDir, "host-routes.json"), o.hostRoutes)
		// Without exceptions pods would hide behind their node from each other.
		c.NoOutboundNAT = len(o.cluster) == 0
		return windows.New(ctx, c, client, log)
	}}
}

// checkMapEntries has nothing to check: the flag is refused here.
func checkMapEntries(map[string]int) error { return nil }

// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"net/netip"
	"path/filepath"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/denylist"
	"github.com/isthmus-net/isthmus/linux/fastpath"
	"github.com/isthmus-net/isthmus/linux/foreign"
	"github.com/isthmus-net/isthmus/linux/hostport"
	"github.com/isthmus-net/isthmus/linux/loader"
	"github.com/isthmus-net/isthmus/linux/sources"
	"github.com/isthmus-net/isthmus/linux/xdp"
)

// makeComponents returns the components of a node, each after those that it reads from: the fast path and
// the source checks follow the fabric.
func (b *Backend) makeComponents() (dataplane.Components, error) {
	pins := filepath.Join(b.cfg.BPFFS, loader.LayoutVersion)
	deny, err := denylist.New(denylist.Config{Devices: b.cfg.XDP, NeverDeny: b.cfg.NeverDeny, Pins: pins,
		Open: func() (*xdp.Filter, error) { return xdp.Open(pins, b.path.Shared(), b.path.Constants()) }}, b.host())
	if err != nil {
		return nil, err
	}
	if b.cfg.PolicyOnly {
		return dataplane.Components{b.egress, foreign.NewSources(b.path, b.foreignPods, b.host()), deny}, nil
	}
	ports, err := hostport.New(b.cfg.HostPortsFromNode, b.host())
	if err != nil {
		return nil, err
	}
	fast := fastpath.New(fastpath.Config{Forwarding: b.cfg.Forwarding, ByLinks: b.tcx, Track: b.trackConnections,
		FromNode: func() int { return b.path.FromNode().FD() }}, b.path, b.fabric, b.path.QueriesConntrack(), b.host())
	return dataplane.Components{b.egress, b.fabric, fast, sources.New(b.path, b.podAddresses, b.fabric.Senders, b.host()), deny, ports}, nil
}

// host returns what components need of the Backend.
func (b *Backend) host() dataplane.Host {
	return dataplane.Host{Log: b.log, Step: b.step, Repaired: b.noteRepair}
}

// podAddresses returns the addresses of the attached pods.
func (b *Backend) podAddresses() (all []netip.Addr) {
	for _, s := range b.specs {
		all = append(all, s.IPs...)
	}
	return all
}

// Listening implements dataplane.SocketLister.
func (b *Backend) Listening() ([]model.HostPort, error) { return hostport.Listening() }

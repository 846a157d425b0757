// SPDX-License-Identifier: Apache-2.0

package sources

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/fabric"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/link"
	"github.com/isthmus-net/isthmus/linux/loader"
)

// Maps are the maps of valid sources. A loader.DataPath implements them.
type Maps interface {
	SetOwners(map[netip.Prefix]loader.Owner) error
	SetTunnelNodes([]loader.TunnelNode) error
	SetTunnelKinds(map[loader.TunnelKind]int) error
}

// Checks gives the programs the valid sources: the owners of addresses on this node, the nodes
// that send by tunnel, and the tunnels of this node into which pods may not send.
type Checks struct {
	maps Maps
	host dataplane.Host
	// pods returns the addresses of the attached pods, tunnels the nodes that send by tunnel.
	pods    func() []netip.Addr
	tunnels func() []fabric.Sender
	ranges  []netip.Prefix // pod ranges of this node
	known   bool           // whether ranges are known
	owners  map[netip.Prefix]loader.Owner
	senders []loader.TunnelNode
	kinds   map[loader.TunnelKind]int
	// problems describe settings that are not in force, and the remedy.
	problems []string
	due      time.Time
}

var _ dataplane.Component = (*Checks)(nil)

// period is the interval between checks of the addresses of interfaces.
const period = time.Second

// New returns the component. pods returns the addresses of the attached pods, tunnels the nodes that send
// by tunnel.
func New(m Maps, pods func() []netip.Addr, tunnels func() []fabric.Sender, host dataplane.Host) *Checks {
	return &Checks{maps: m, pods: pods, tunnels: tunnels, host: host}
}

// Apply implements dataplane.Component. It never returns an error.
func (c *Checks) Apply(_ context.Context, s *model.State) ([]model.Unsupported, error) {
	c.ranges, c.known = s.Fabric.PodCIDRs, true
	c.sync()
	return nil, nil
}

// Sync implements dataplane.Component. It checks periodically whether addresses of interfaces have
// changed. A failure is a problem, so it returns no error.
func (c *Checks) Sync(_ context.Context, now time.Time) error {
	if c.known && !now.Before(c.due) {
		c.sync()
	}
	return nil
}

// Problems implements dataplane.Component.
func (c *Checks) Problems() []string { return c.problems }

// PathModes returns nil: the check of sources has one mode.
func (c *Checks) PathModes() []dataplane.PathMode { return nil }

// Close does nothing.
func (c *Checks) Close() error { return nil }

// sync writes the changes. A failed write is a problem and is retried; the previous entries
// stay.
func (c *Checks) sync() {
	c.due = time.Now().Add(period)
	c.problems = nil
	owners, err := c.wantedOwners()
	if err == nil && !(c.owners != nil && maps.Equal(owners, c.owners)) {
		c.owners = nil
		c.host.Step("write owners")
		if err = c.maps.SetOwners(owners); err == nil {
			c.owners = owners
		}
	}
	c.report(err)
	c.report(c.syncKinds())
	senders := c.wantedSenders()
	if c.senders != nil && slices.EqualFunc(senders, c.senders, sameSender) {
		return
	}
	c.senders = nil
	c.host.Step("write tunnel nodes")
	if err := c.maps.SetTunnelNodes(senders); err != nil {
		c.report(err)
		return
	}
	c.senders = senders
}

// syncKinds writes the kinds of tunneled packets that this node receives, also by devices of other software.
func (c *Checks) syncKinds() error {
	found, err := link.Tunnels()
	if err != nil {
		return err
	}
	kinds := make(map[loader.TunnelKind]int, len(found))
	for t, index := range found {
		kinds[loader.TunnelKind(t)] = index
	}
	if c.kinds != nil && maps.Equal(kinds, c.kinds) {
		return nil
	}
	c.kinds = nil
	c.host.Step("write kinds of tunnels")
	if err := c.maps.SetTunnelKinds(kinds); err != nil {
		return err
	}
	c.kinds = kinds
	return nil
}

func (c *Checks) report(err error) {
	if err == nil {
		return
	}
	text := strings.ReplaceAll(err.Error(), "\n", "; ")
	c.host.Log.Error("packets with forged sources may pass", "error", text)
	c.problems = append(c.problems, "sources of packets: "+text)
}

// wantedOwners returns the addresses of interfaces, the node's pod ranges, addresses of pods outside these ranges, and the
// broadcast and anycast addresses by which the node receives, unless a pod or an interface has them.
func (c *Checks) wantedOwners() (map[netip.Prefix]loader.Owner, error) {
	own, broadcast, err := link.Addresses()
	if err != nil {
		return nil, err
	}
	owners := make(map[netip.Prefix]loader.Owner)
	for _, a := range own {
		if !a.IsLoopback() && !a.IsLinkLocalUnicast() {
			owners[netip.PrefixFrom(a, a.BitLen())] = loader.NodeOwns
		}
	}
	for _, p := range c.ranges {
		owners[p] = loader.PodsOwn
	}
	pods := c.pods()
	for _, ip := range pods {
		if !slices.ContainsFunc(c.ranges, func(p netip.Prefix) bool { return p.Contains(ip) }) {
			owners[netip.PrefixFrom(ip, ip.BitLen())] = loader.PodsOwn
		}
	}
	for _, a := range broadcast {
		p := netip.PrefixFrom(a, a.BitLen())
		if owners[p] == 0 && slices.ContainsFunc(c.ranges, func(r netip.Prefix) bool { return r.Contains(a) }) {
			owners[p] = loader.PodsOwn
		}
		if owners[p] != loader.NodeOwns && !slices.Contains(pods, a) {
			owners[p] |= loader.Broadcast
		}
	}
	return owners, nil
}

// wantedSenders returns the nodes that send by tunnel.
func (c *Checks) wantedSenders() []loader.TunnelNode {
	senders := []loader.TunnelNode{} // not nil: an empty list is known to be empty
	for _, s := range c.tunnels() {
		senders = append(senders, loader.TunnelNode{Name: s.Node, Underlay: s.Underlay, Sources: s.Sources})
	}
	return senders
}

func sameSender(a, b loader.TunnelNode) bool {
	return a.Name == b.Name && slices.Equal(a.Underlay, b.Underlay) && slices.Equal(a.Sources, b.Sources)
}

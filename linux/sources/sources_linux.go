// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/linux/link"
	"github.com/isthmus-net/isthmus/linux/loader"
)

// origins tells the programs which sources are valid: the owners of addresses on this node, and
// the nodes that send by tunnel. No packet may claim a source from which it cannot come.
type origins struct {
	backend *Backend
	ranges  []netip.Prefix // pod ranges of this node
	known   bool           // whether ranges are known
	owners  map[netip.Prefix]loader.Owner
	senders []loader.TunnelNode
	// problems describe settings that are not in force, and the remedy.
	problems []string
	due      time.Time
}

// lookAtOrigins is the interval between checks of the addresses of interfaces.
const lookAtOrigins = time.Second

// apply applies the node's pod ranges.
func (o *origins) apply(ranges []netip.Prefix) {
	o.ranges, o.known = ranges, true
	o.sync()
}

// tend checks periodically whether addresses of interfaces have changed.
func (o *origins) tend(now time.Time) {
	if o.known && !now.Before(o.due) {
		o.sync()
	}
}

// sync writes the changes. A failed write is a problem and is retried; the previous entries
// stay.
func (o *origins) sync() {
	o.due = time.Now().Add(lookAtOrigins)
	o.problems = nil
	owners, err := o.wantedOwners()
	if err == nil && !(o.owners != nil && maps.Equal(owners, o.owners)) {
		o.owners = nil
		o.backend.step("write owners")
		if err = o.backend.path.SetOwners(owners); err == nil {
			o.owners = owners
		}
	}
	o.report(err)
	senders := o.wantedSenders()
	if o.senders != nil && slices.EqualFunc(senders, o.senders, sameSender) {
		return
	}
	o.senders = nil
	o.backend.step("write tunnel nodes")
	if err := o.backend.path.SetTunnelNodes(senders); err != nil {
		o.report(err)
		return
	}
	o.senders = senders
}

func (o *origins) report(err error) {
	if err == nil {
		return
	}
	text := strings.ReplaceAll(err.Error(), "\n", "; ")
	o.backend.log.Error("packets with forged sources may pass", "error", text)
	o.problems = append(o.problems, "sources of packets: "+text)
}

// wantedOwners returns the addresses of interfaces, the node's pod ranges, and addresses of
// pods outside these ranges.
func (o *origins) wantedOwners() (map[netip.Prefix]loader.Owner, error) {
	own, err := link.OwnAddresses()
	if err != nil {
		return nil, err
	}
	owners := make(map[netip.Prefix]loader.Owner)
	for _, a := range own {
		if !a.IsLoopback() && !a.IsLinkLocalUnicast() {
			owners[netip.PrefixFrom(a, a.BitLen())] = loader.NodeOwns
		}
	}
	for _, p := range o.ranges {
		owners[p] = loader.PodsOwn
	}
	for _, s := range o.backend.specs {
		for _, ip := range s.IPs {
			if !slices.ContainsFunc(o.ranges, func(p netip.Prefix) bool { return p.Contains(ip) }) {
				owners[netip.PrefixFrom(ip, ip.BitLen())] = loader.PodsOwn
			}
		}
	}
	return owners, nil
}

// wantedSenders returns the nodes that send by tunnel.
func (o *origins) wantedSenders() []loader.TunnelNode {
	senders := []loader.TunnelNode{} // not nil: an empty list is known to be empty
	if plan := o.backend.fabric.Plan(); plan != nil {
		for _, s := range plan.Senders {
			senders = append(senders, loader.TunnelNode{Name: s.Node, Underlay: s.Underlay, Sources: s.Sources})
		}
	}
	return senders
}

func sameSender(a, b loader.TunnelNode) bool {
	return a.Name == b.Name && slices.Equal(a.Underlay, b.Underlay) && slices.Equal(a.Sources, b.Sources)
}

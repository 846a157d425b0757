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

// origins keeps the programs informed of who may send from which address: whose the
// addresses on this node are, and what comes by tunnel. Nothing may claim to come from
// elsewhere than it does.
type origins struct {
	backend *Backend
	ranges  []netip.Prefix // pod ranges of this node
	known   bool           // ranges are
	owners  map[netip.Prefix]loader.Owner
	senders []loader.TunnelNode
	// problems say what is not in force, and the remedy.
	problems []string
	due      time.Time
}

// lookAtOrigins is how often the addresses of interfaces are looked at.
const lookAtOrigins = time.Second

// apply puts the node's pod ranges in force.
func (o *origins) apply(ranges []netip.Prefix) {
	o.ranges, o.known = ranges, true
	o.sync()
}

// tend looks from time to time whether interfaces have other addresses.
func (o *origins) tend(now time.Time) {
	if o.known && !now.Before(o.due) {
		o.sync()
	}
}

// sync writes what has changed. What cannot be written is a problem, and is tried
// again; what was written before stays.
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
	o.backend.log.Error("forged sources may not be noticed", "error", text)
	o.problems = append(o.problems, "sources of packets: "+text)
}

// wantedOwners are the addresses of interfaces, the node's pod ranges, and addresses of
// pods that are in none of them.
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

// wantedSenders are the nodes that send by tunnel.
func (o *origins) wantedSenders() []loader.TunnelNode {
	senders := []loader.TunnelNode{} // known, if there are none
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

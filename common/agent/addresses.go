// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/endpoint"
	"github.com/isthmus-net/isthmus/common/ipam"
	"github.com/isthmus-net/isthmus/common/model"
)

// windowsHost is the offset of the host endpoint's address in each pod range on Windows.
const windowsHost = 2

// addresses holds the node's pod ranges and the addresses allocated from them.
type addresses struct {
	allocator *ipam.Allocator // nil until a range is known
	ranges    []netip.Prefix  // the ranges of the allocator
	// problems prevent Add from allocating addresses.
	problems []string
	// warnings do not prevent it.
	warnings []string
}

// updateRanges rereads the node's pod ranges after a change of the nodes. It rebuilds the allocator from
// the records if they changed.
func (l *loop) updateRanges() {
	if l.backend == nil || l.cfg.PolicyOnly {
		return
	}
	a := &l.addresses
	a.problems, a.warnings = nil, nil
	node := l.node()
	want := node.PodCIDRs
	if len(want) == 0 {
		// A Node object that is briefly missing does not remove a range.
		want = a.ranges
	}
	if len(want) == 0 {
		if l.snapshot != nil {
			a.problems = append(a.problems, fmt.Sprintf("node %s has no pod range: set podCIDRs in its Node object or start the agent with --pod-cidr", l.cfg.NodeName))
		}
		return
	}
	var usable []netip.Prefix
	for _, p := range want {
		if p.Addr().Is6() && !l.features.IPv6 {
			a.warnings = append(a.warnings, fmt.Sprintf("pod range %s is not used: pods cannot have IPv6 addresses on %s (%s)", p, l.features.OS, l.features.Platform))
			continue
		}
		usable = append(usable, p)
	}
	a.problems = append(a.problems, overlaps(l.snapshot, l.cfg.NodeName, usable)...)
	if l.cfg.OpenNeedsNode && !slices.Equal(want, l.openedAs.PodCIDRs) {
		a.problems = append(a.problems, fmt.Sprintf("the pod ranges of node %s are now %s, but its network was created for %s: drain the node and restart the agent",
			l.cfg.NodeName, join(want), join(l.openedAs.PodCIDRs)))
	}
	if l.cfg.OpenNeedsNode && len(node.Addresses) > 0 && !slices.Equal(node.Addresses, l.openedAs.Addresses) {
		a.warnings = append(a.warnings, fmt.Sprintf("the addresses of node %s are now %s, but its network was created for %s: restart the agent",
			l.cfg.NodeName, join(node.Addresses), join(l.openedAs.Addresses)))
	}
	if a.allocator != nil && slices.Equal(usable, a.ranges) {
		return
	}
	l.rebuild(usable)
}

// rebuild creates an allocator for the ranges and replays the records.
func (l *loop) rebuild(ranges []netip.Prefix) {
	a := &l.addresses
	config := ipam.Config{Prefixes: ranges, Quarantine: l.cfg.Quarantine}
	if l.features.OS == model.Windows {
		config.Reserved, config.KeepLast = []uint64{windowsHost}, true
	}
	allocator, err := ipam.New(config)
	if err != nil {
		for line := range strings.SplitSeq(err.Error(), "\n") {
			a.problems = append(a.problems, fmt.Sprintf("node %s: %s", l.cfg.NodeName, line))
		}
		return
	}
	for _, e := range l.sorted() {
		for _, ip := range e.IPs {
			if e.State == endpoint.Released {
				allocator.Release(ip, e.ReleasedAt)
			} else if err := allocator.Restore(ip, string(e.ID())); err != nil {
				a.warnings = append(a.warnings, err.Error())
			}
		}
	}
	a.allocator, a.ranges = allocator, ranges
	l.pool.Use(allocator)
	l.log.Info("pod ranges", "ranges", join(ranges))
}

// overlaps lists the overlaps of this node's ranges with those of other nodes.
func overlaps(s *model.Snapshot, self string, ranges []netip.Prefix) []string {
	if s == nil {
		return nil
	}
	var all []string
	for _, n := range s.Nodes.All() {
		if n.Name == self || n.Foreign { // an annotation of another node must not stop this one; the fabric reports it
			continue
		}
		for _, theirs := range n.PodCIDRs {
			for _, ours := range ranges {
				if ours.Overlaps(theirs) {
					all = append(all, fmt.Sprintf("pod range %s of node %s overlaps %s of node %s: give the nodes disjoint ranges", ours, self, theirs, n.Name))
				}
			}
		}
	}
	slices.Sort(all)
	return all
}

// allocate allocates the addresses of an ADD's endpoint.
func (l *loop) allocate(add *addition) ([]netip.Addr, error) {
	a := &l.addresses
	switch {
	case add.foreign != nil:
		return add.foreign, l.takeAddresses(add)
	case len(a.problems) > 0:
		return nil, refuse(CodeAddresses, strings.Join(a.problems, "; "), "node %s cannot allocate pod addresses", l.cfg.NodeName)
	case a.allocator == nil:
		return nil, refuse(CodeTryAgain, "wait until its Node object has podCIDRs", "the pod ranges of node %s are not known yet", l.cfg.NodeName)
	}
	fixed, err := l.fixedIPs(add)
	if err != nil {
		return nil, err
	}
	dns := l.dnsOf(add)
	l.pool.Note(dns, time.Now())
	if len(fixed)+len(add.hostPorts) == 0 && add.bandwidth == (model.Bandwidth{}) {
		if ips := l.pool.Take(add.id, dns); ips != nil {
			return ips, nil
		}
	}
	l.pool.Yield(fixed)
	l.recall(add, fixed)
	ips, err := a.allocator.AllocateFixed(string(add.id), fixed, time.Now())
	var full *ipam.ExhaustedError
	for errors.As(err, &full) && l.pool.GiveWay() {
		ips, err = a.allocator.AllocateFixed(string(add.id), fixed, time.Now())
	}
	if err != nil {
		l.quarantineAgain(fixed)
		return nil, l.whyNoAddress(add, err)
	}
	return ips, nil
}

// takeAddresses removes the endpoints of other pods that have an address of an ADD, if the interface of its pod has the
// address, too: prevResult alone does not end the policy of another pod.
func (l *loop) takeAddresses(add *addition) error {
	finder, ok := l.backend.(dataplane.Finder)
	if ok && len(l.holders(add.id, add.foreign)) > 0 {
		ctx, cancel := l.opContext()
		defer cancel()
		e := &entry{Record: endpoint.Record{IfName: add.req.Attachment.IfName, Namespace: add.req.PodNamespace, Name: add.req.PodName}}
		mac, err := finder.FindInterface(ctx, dataplane.EndpointSpec{ID: add.id, Pod: add.pod(), NetNS: add.req.Netns, IfName: e.IfName, IPs: add.foreign})
		if err != nil {
			return dataPathError(err, "attach pod %s", add.pod())
		}
		e.attachment.MAC = mac
		if err := sameMAC(e, add.req.Foreign, CodeConfig); err != nil {
			return err
		}
	}
	return l.evict(add.id, add.pod(), add.foreign)
}

// holders returns the endpoints of others that have an address of an endpoint.
func (l *loop) holders(id model.EndpointID, ips []netip.Addr) (all []*entry) {
	for _, e := range l.sorted() {
		if e.State != endpoint.Released && e.ID() != id && slices.ContainsFunc(e.IPs, func(ip netip.Addr) bool { return slices.Contains(ips, ip) }) {
			all = append(all, e)
		}
	}
	return all
}

// evict removes the endpoints that still have an address of a new one. The other CNI plugin has given it to
// another pod, so the DEL of the earlier one did not arrive, or the pod was adopted.
func (l *loop) evict(id model.EndpointID, pod model.PodID, ips []netip.Addr) error {
	for _, e := range l.holders(id, ips) {
		l.log.Warn("the address of a pod belongs to another pod now; its endpoint is removed", "pod", e.Pod(), "endpoint", e.ID(), "addresses", join(e.IPs), "now", pod)
		if err := l.drop(e); err != nil {
			return err
		}
	}
	return nil
}

// readFurther prepares calls of trusted for a State.
func (l *loop) readFurther() {
	records := make([]endpoint.Record, 0, len(l.entries))
	for _, e := range l.entries {
		records = append(records, e.Record)
	}
	l.further.Read(l.snapshot, records)
	l.unusable = nil
}

// trusted returns the further addresses that an endpoint may use. The others are reported, and their packets dropped.
func (l *loop) trusted(e *entry) (all []netip.Addr) {
	for _, a := range e.Further {
		why, remedy := l.further.Refusal(e.Pod(), a)
		if why == "" {
			all = append(all, a)
			continue
		}
		effect := "is dropped"
		switch {
		case l.features.OS == model.Windows: // HNS enforces policy on all addresses of an endpoint
			effect = "has the policy of this pod, but is not this pod's in rules"
		case l.observes(e.Namespace):
			effect = "passes until policy is enforced"
		}
		l.unusable = append(l.unusable, inPod{e, fmt.Sprintf("its further address %s %s: every packet from and to it %s: %s", a, why, effect, remedy)})
	}
	return all
}

// refusedOf describes the further addresses of an endpoint that it may not use.
func (l *loop) refusedOf(e *entry) (all []string) {
	for _, r := range l.unusable {
		if r.entry == e {
			all = append(all, r.detail)
		}
	}
	return all
}

// giveBack returns the addresses of a removed endpoint. Addresses that other pods may have seen go to
// quarantine, others are free at once.
func (l *loop) giveBack(e *entry, at time.Time) {
	if l.addresses.allocator == nil {
		return
	}
	for _, ip := range e.IPs {
		if owner, ok := l.addresses.allocator.Owner(ip); ok && owner != string(e.ID()) {
			continue
		}
		if e.exposed {
			l.addresses.allocator.Release(ip, at)
		} else {
			l.addresses.allocator.Cancel(ip)
		}
	}
	if !e.exposed {
		l.quarantineAgain(e.IPs)
	}
}

func join[T fmt.Stringer](all []T) string {
	var words []string
	for _, x := range all {
		words = append(words, x.String())
	}
	return strings.Join(words, ", ")
}

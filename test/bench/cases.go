// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"

	"github.com/isthmus-net/isthmus/common/model"
)

// testCase is a kind of change. goal is the highest accepted median of its compilation time, in
// microseconds.
type testCase struct {
	name   string
	times  int
	goal   float64
	change func(b *bench, i int)
}

func cases() []testCase {
	return []testCase{
		{"add a pod", 400, 50, func(b *bench, i int) { b.setPod(newPod(i)) }},
		{"remove a pod", 400, 50, func(b *bench, i int) { b.snapshot.Pods = b.snapshot.Pods.Without(newPod(i).PodID) }},
		{"relabel a pod to known labels", 200, 500, func(b *bench, i int) { b.relabel(1+i, model.MakeLabels(labelsOf((i*13)%labelSets))) }},
		{"relabel a pod to new labels", 200, 500, func(b *bench, i int) {
			l := labelsOf(i)
			l["release"], l["tier"] = fmt.Sprintf("new-%d", i), "front"
			b.relabel(1001+i, model.MakeLabels(l))
		}},
		{"relabel a local pod", 100, 500, func(b *bench, i int) { b.relabel(i%local*nodes, model.MakeLabels(labelsOf((i*7)%labelSets))) }},
		{"edit peers of a policy", 40, 20_000, func(b *bench, i int) {
			b.edit(10*(1+i)+8, func(r *model.Rule) { r.Peers[0].Pods.Pods = selector("release", fmt.Sprintf("r%d", 37*i)) })
		}},
		{"edit a block of a policy", 40, 20_000, func(b *bench, i int) {
			b.edit(10*(50+i)+6, func(r *model.Rule) {
				r.Peers[0] = block(fmt.Sprintf("10.%d.0.0/16", i%2), fmt.Sprintf("10.%d.7.0/24", i%2))
			})
		}},
		{"edit ports of a policy", 40, 20_000, func(b *bench, i int) {
			b.edit(10*(100+i)+8, func(r *model.Rule) { r.Ports[0] = tcp(uint16(20_000+i), uint16(20_000+i)) })
		}},
		{"edit a policy of all pods", 20, 20_000, func(b *bench, i int) {
			b.edit(9, func(r *model.Rule) { r.Peers[0] = block(fmt.Sprintf("203.0.%d.0/24", i%250)) })
		}},
		{"relabel a namespace", 20, 0, func(b *bench, i int) {
			ns := fmt.Sprintf("ns-%d", i)
			b.snapshot.Namespaces = b.snapshot.Namespaces.With(ns, model.NewNamespace(ns, map[string]string{"team": fmt.Sprintf("team-%d", (i+5)%20)}))
		}},
		{"add a node", 20, 0, func(b *bench, i int) {
			n := &model.Node{Name: fmt.Sprintf("late-%d", i), OS: model.Linux, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{192, 168, 100, byte(i)})},
				PodCIDRs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 100, byte(i), 0}), 24)}}
			b.snapshot.Nodes = b.snapshot.Nodes.With(n.Name, n)
		}},
	}
}

// newPod returns a pod with the labels of existing pods, on another node.
func newPod(i int) *model.Pod {
	p := pod(pods+1+i%(nodes-2), i%labelSets)
	p.Namespace, p.Name = namespaceOf(i%labelSets), fmt.Sprintf("new-%d", i)
	p.IPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})}
	return p
}

func (b *bench) setPod(p *model.Pod) { b.snapshot.Pods = b.snapshot.Pods.With(p.PodID, p) }

func (b *bench) relabel(i int, labels model.Labels) {
	was, _ := b.snapshot.Pods.Get(podID(i))
	p := *was
	p.Labels = labels
	b.setPod(&p)
}

// edit stores policy i after change has changed the first rule of each direction.
func (b *bench) edit(i int, change func(*model.Rule)) {
	p := policyOf(i)
	for d := range p.Rules {
		if len(p.Rules[d]) > 0 {
			change(&p.Rules[d][0])
		}
	}
	b.snapshot.Policies = b.snapshot.Policies.With(p.Origin.Key(), p)
}

// SPDX-License-Identifier: Apache-2.0

package windows_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy/compile"
	"github.com/isthmus-net/isthmus/windows"
	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hns/hnstest"
)

// crowd is a node with 60 endpoints under 30 tables in a cluster of 5,000 pods. Each application
// accepts three others, and all accept the monitoring.
func crowd() (*model.Snapshot, map[model.EndpointID]compile.Endpoint) {
	app := func(n int) model.Selector {
		return model.MakeSelector(model.Requirement{Key: "app", Operator: model.In, Values: []string{fmt.Sprint(n % 30)}})
	}
	var pods []*model.Pod
	endpoints := make(map[model.EndpointID]compile.Endpoint)
	for i := range 5000 {
		p := &model.Pod{PodID: model.PodID{Namespace: "x", Name: fmt.Sprint("p", i)}, Labels: model.MakeLabels(map[string]string{"app": fmt.Sprint(i % 30)}), Node: "node2",
			IPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})}}
		if i < 60 {
			p.Node, p.IPs = "node1", []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 1, byte(10 + i)})}
			endpoints[model.MakeEndpointID(p.Name, "eth0")] = compile.Endpoint{Pod: p.PodID, IPs: p.IPs}
		}
		pods = append(pods, p)
	}
	var policies []*model.Policy
	for i := range 30 {
		p := &model.Policy{Origin: model.Origin{Kind: "NetworkPolicy", Namespace: "x", Name: fmt.Sprint("p", i)}, Tier: model.TierNetworkPolicy,
			Subject: model.PodSelector{Namespace: "x", Pods: app(i)}, Isolates: [2]bool{true, true}}
		for j := range 3 {
			peer := []model.Peer{{Kind: model.PeerPods, Pods: model.PodSelector{Namespace: "x", Pods: app(i + j + 1)}}}
			port := uint16(8000 + j)
			p.Rules[model.Ingress] = append(p.Rules[model.Ingress], model.Rule{Index: j, Action: model.ActionAccept, Peers: peer, Ports: []model.PortMatch{{Protocol: model.TCP, First: port, Last: port}}})
		}
		p.Rules[model.Egress] = []model.Rule{{Action: model.ActionAccept, AnyPeer: true, Ports: []model.PortMatch{{Protocol: model.UDP, First: 53, Last: 53}}}}
		policies = append(policies, p)
	}
	monitoring := &model.Policy{Origin: model.Origin{Kind: "NetworkPolicy", Namespace: "x", Name: "monitoring"}, Tier: model.TierNetworkPolicy,
		Subject: model.PodSelector{Namespace: "x"}, Isolates: [2]bool{true, false}}
	monitoring.Rules[model.Ingress] = []model.Rule{{Action: model.ActionAccept, Peers: []model.Peer{{Kind: model.PeerPods, Pods: model.PodSelector{Namespace: "x", Pods: app(7)}}},
		Ports: []model.PortMatch{{Protocol: model.TCP, First: 9100, Last: 9100}}}}
	nodes := []*model.Node{{Name: "node1", OS: model.Windows, Addresses: []netip.Addr{netip.MustParseAddr("192.168.0.1")}, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24")}},
		{Name: "node2", Addresses: []netip.Addr{netip.MustParseAddr("192.168.0.2")}, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}}}
	return model.MakeSnapshot(nil, nodes, pods, append(policies, monitoring)), endpoints
}

// BenchmarkApply measures Apply on the Fake, which answers immediately: the agent's own work. It
// also reports the number of HNS calls that write.
func BenchmarkApply(b *testing.B) {
	s, endpoints := crowd()
	for _, profile := range []hns.Version{hns.Server2019, hns.Server2022} {
		in := compile.Input{Snapshot: s, Node: "node1", Endpoints: endpoints}
		state, _ := compile.Once(in)
		more := *s
		extra := &model.Pod{PodID: model.PodID{Namespace: "x", Name: "extra"}, Labels: model.MakeLabels(map[string]string{"app": "7"}), Node: "node2", IPs: []netip.Addr{netip.MustParseAddr("10.1.99.99")}}
		more.Pods = s.Pods.With(extra.PodID, extra)
		in.Snapshot, in.Previous = &more, state
		next, _ := compile.Once(in)
		for name, states := range map[string][]*model.State{"unchanged": {state}, "pod": {state, next}} {
			b.Run(fmt.Sprintf("hns%s/%s", profile, name), func(b *testing.B) {
				fake := hnstest.NewFake(profile)
				backend, err := windows.New(ctx, bridgeConfig(), fake, discard)
				if err != nil {
					b.Fatal(err)
				}
				for id, e := range endpoints {
					if _, err := backend.AddEndpoint(ctx, dataplane.EndpointSpec{ID: id, NetNS: fake.AddNamespace(), IPs: e.IPs}); err != nil {
						b.Fatal(err)
					}
				}
				apply := func(s *model.State) {
					if _, err := backend.Apply(ctx, s); err != nil {
						b.Fatal(err)
					}
				}
				apply(state)
				fake.ForgetCalls()
				i := 0
				for b.Loop() {
					i++
					apply(states[i%len(states)])
				}
				writes := 0
				for _, c := range fake.Calls() {
					if c.Op == "ModifyEndpoint" || c.Op == "ModifyNetwork" {
						writes++
					}
				}
				b.ReportMetric(float64(writes)/float64(i), "writes/op")
				b.ReportMetric(float64(len(state.Policy.Tables)), "tables")
			})
		}
	}
}

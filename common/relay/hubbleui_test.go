// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/api/hubble/flow"
	"github.com/isthmus-net/isthmus/common/api/hubble/observer"
	"github.com/isthmus-net/isthmus/common/api/hubble/relay"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/observe"
)

// uiRequest is what Hubble UI sends for a namespace, with its switches that hide DNS and the nodes. It follows
// src/factories/proto/index.ts and backend/internal/flow_stream/helpers.go of cilium/hubble-ui at cf05d86.
func uiRequest(namespace string, verdicts ...flow.Verdict) *observer.GetFlowsRequest {
	return &observer.GetFlowsRequest{Follow: true, Number: 10000,
		Whitelist: []*flow.FlowFilter{
			{SourcePod: []string{namespace + "/"}, Reply: []bool{false}, Verdict: verdicts},
			{DestinationPod: []string{namespace + "/"}, Reply: []bool{false}, Verdict: verdicts},
		},
		Blacklist: []*flow.FlowFilter{
			{SourceLabel: []string{"reserved:unknown", "reserved:host", "k8s:k8s-app=kube-dns", "reserved:remote-node"}},
			{DestinationLabel: []string{"reserved:unknown", "reserved:host", "reserved:remote-node"}},
			{DestinationLabel: []string{"k8s:k8s-app=kube-dns"}, DestinationPort: []string{"53"}},
			{SourceFqdn: []string{"*.cluster.local*"}},
			{DestinationFqdn: []string{"*.cluster.local*"}},
		}}
}

var (
	webAddress, apiAddress, dnsAddress = netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3")
	uiPods                             = []*model.Pod{
		{PodID: model.PodID{Namespace: "shop", Name: "web"}, Node: "a", IPs: []netip.Addr{webAddress}, Labels: model.MakeLabels(map[string]string{"app": "web"})},
		{PodID: model.PodID{Namespace: "pay", Name: "api"}, Node: "b", IPs: []netip.Addr{apiAddress}},
		{PodID: model.PodID{Namespace: "kube-system", Name: "dns"}, Node: "b", IPs: []netip.Addr{dnsAddress}, Labels: model.MakeLabels(map[string]string{"k8s-app": "kube-dns"})},
	}
)

// uiAgents starts two agents that know pods.
func uiAgents(t *testing.T, dir string) (a, b *agent) {
	t.Helper()
	known := model.MakeSnapshot(nil, []*model.Node{{Name: "a"}, {Name: "b"}}, uiPods, nil)
	a, b = newAgent(t, dir, "a", 100), newAgent(t, dir, "b", 100)
	for _, x := range []*agent{a, b} {
		x.stop()
		x.known = func() *model.Snapshot { return known }
		x.store = observe.NewStore(observe.Config{Keep: 4096}, quietLog, x.known)
		x.start()
	}
	return a, b
}

// from makes a flow now.
func (a *agent) from(pod *model.Pod, to netip.Addr, port uint16, verdict model.Verdict) {
	a.store.Add([]model.FlowEvent{{Time: time.Now(), Pod: pod.PodID, Verdict: verdict, Direction: model.Egress, Protocol: model.TCP,
		Src: pod.IPs[0], Dst: to, SrcPort: 40000, DstPort: port}})
}

// uiShows returns what Hubble UI shows of an answer: it ignores states of nodes, and flows without ports or ends.
func uiShows(m *observer.GetFlowsResponse) string {
	f := m.GetFlow()
	if f.GetL4() == nil || f.GetSource().GetIdentity() == 0 || f.GetDestination().GetIdentity() == 0 {
		return ""
	}
	return fmt.Sprint(f.GetSource().GetPodName(), " ", f.GetDestination().GetPodName(), " ", f.GetL4().GetTCP().GetDestinationPort(), " ", f.GetVerdict())
}

// uiOpen opens a stream. The result checks the flows that Hubble UI shows next.
func uiOpen(t *testing.T, c observer.ObserverClient, request *observer.GetFlowsRequest) func(want ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	stream, err := c.GetFlows(ctx, request)
	if err != nil {
		t.Fatal(err)
	}
	return func(want ...string) {
		t.Helper()
		var shown []string
		for len(shown) < len(want) {
			m, err := stream.Recv()
			if err != nil {
				t.Fatalf("Hubble UI shows %q, want %q: %v", shown, want, err)
			}
			if f := uiShows(m); f != "" {
				shown = append(shown, f)
			}
		}
		if !slices.Equal(shown, want) {
			t.Errorf("Hubble UI shows %q, want %q", shown, want)
		}
	}
}

// TestHubbleUI replays the requests of Hubble UI: it follows a namespace from its newest 10,000 flows on, and meanwhile reads
// the status of the relay and its nodes.
func TestHubbleUI(t *testing.T) {
	dir := t.TempDir()
	a, b := uiAgents(t, dir)
	nodes := addresses(a, b)
	nodes["gone"] = "unix://" + filepath.Join(dir, "gone")
	c, _, _ := serve(t, nodes)
	web, api := uiPods[0], uiPods[1]
	a.from(web, apiAddress, 80, model.Allow)
	a.from(web, dnsAddress, 53, model.Allow)
	b.from(api, dnsAddress, 80, model.Allow)
	b.from(api, webAddress, 81, model.Deny)
	time.Sleep(1500 * time.Millisecond) // the agents look for flows each second
	kept := []string{"web api 80 FORWARDED", "api web 81 DROPPED"}
	all, drops := uiOpen(t, c, uiRequest("shop")), uiOpen(t, c, uiRequest("shop", flow.Verdict_DROPPED))
	all(kept...)
	drops(kept[1:]...)
	a.from(web, apiAddress, 82, model.Allow)
	a.from(web, dnsAddress, 53, model.Allow)
	a.from(web, apiAddress, 83, model.Deny)
	all("web api 82 FORWARDED", "web api 83 DROPPED")
	drops("web api 83 DROPPED")
	s, err := c.ServerStatus(t.Context(), &observer.ServerStatusRequest{})
	if err != nil || s.GetSeenFlows() == 0 || s.GetUptimeNs() == 0 || s.GetNumConnectedNodes().GetValue() != 2 {
		t.Errorf("status %v, %v", s, err)
	}
	list, err := c.GetNodes(t.Context(), &observer.GetNodesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var states []string
	for _, n := range list.GetNodes() {
		states = append(states, fmt.Sprint(n.GetName(), " ", n.GetState() == relay.NodeState_NODE_CONNECTED))
	}
	if want := []string{"default/a true", "default/b true", "default/gone false"}; !slices.Equal(states, want) {
		t.Errorf("nodes %q, want %q", states, want)
	}
}

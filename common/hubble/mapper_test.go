// SPDX-License-Identifier: Apache-2.0

package hubble

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/prototext"

	"github.com/isthmus-net/isthmus/common/api/hubble/flow"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/observe"
)

// cluster has a pod of a Deployment, and two nodes.
func cluster() *model.Snapshot {
	return model.MakeSnapshot(nil,
		[]*model.Node{{Name: "n1", Labels: model.MakeLabels(map[string]string{"zone": "a"}), Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}},
			{Name: "n2", Addresses: []netip.Addr{netip.MustParseAddr("2001:db8::2")}}},
		[]*model.Pod{{PodID: model.PodID{Namespace: "shop", Name: "web-7d9f-x2x4z"}, Labels: model.MakeLabels(map[string]string{"app": "web", "pod-template-hash": "7d9f"})}}, nil)
}

func newMapper() *Mapper {
	return NewMapper("n1", "1.2.3", time.Unix(0, 0), func() func() *model.Snapshot {
		s := cluster()
		return func() *model.Snapshot { return s }
	}())
}

var (
	webPod = model.PodID{Namespace: "shop", Name: "web-7d9f-x2x4z"}
	dbPod  = model.PodID{Namespace: "data", Name: "db-0"}
)

// denied is an event of web, which db's policy denies.
func denied() *observe.Flow {
	return &observe.Flow{Peer: dbPod, FlowEvent: model.FlowEvent{Time: time.Unix(1, 5), Pod: webPod, Direction: model.Egress, Verdict: model.Deny,
		Src: netip.MustParseAddr("10.0.1.1"), Dst: netip.MustParseAddr("10.0.1.2"), SrcPort: 1000, DstPort: 5432, Protocol: model.TCP,
		Cause: &model.Cause{Reason: model.ReasonRule, Origin: model.Origin{Kind: "ClusterNetworkPolicy", Name: "guard"}, Tier: model.TierAdmin, Rule: 2, RuleName: "no-db", Direction: model.Egress}}}
}

func TestMap(t *testing.T) {
	got := newMapper().Map(denied())
	want := &flow.Flow{}
	if err := prototext.Unmarshal([]byte(`
time {seconds: 1 nanos: 5} verdict: DROPPED drop_reason_desc: POLICY_DENY
IP {source: "10.0.1.1" destination: "10.0.1.2" ipVersion: IPv4} l4 {TCP {source_port: 1000 destination_port: 5432}}
source {identity: 0 cluster_name: "default" namespace: "shop" pod_name: "web-7d9f-x2x4z"
  labels: "k8s:io.kubernetes.pod.namespace=shop" labels: "k8s:app=web" labels: "k8s:pod-template-hash=7d9f" workloads {name: "web" kind: "Deployment"}}
destination {cluster_name: "default" namespace: "data" pod_name: "db-0" labels: "k8s:io.kubernetes.pod.namespace=data"}
Type: L3_L4 node_name: "n1" node_labels: "zone=a" event_type {type: 5 sub_type: 181} traffic_direction: EGRESS policy_match_type: 2 is_reply {}
emitter {name: "Isthmus" version: "1.2.3"}
egress_denied_by {name: "guard" kind: "ClusterNetworkPolicy" labels: "isthmus.dev/tier=Admin" labels: "isthmus.dev/rule=2" labels: "isthmus.dev/rule-name=no-db"}
policy_log: "CAUSE" Summary: "CAUSE"`), want); err != nil {
		t.Fatal(err)
	}
	cause := denied().Cause.String()
	want.PolicyLog, want.Summary = []string{cause}, cause
	want.EgressDeniedBy[0].Labels[0] = "isthmus.dev/tier=" + model.TierAdmin.String()
	want.Uuid, want.Source.Identity, want.Destination.Identity = got.GetUuid(), got.GetSource().GetIdentity(), got.GetDestination().GetIdentity()
	if a, b := prototext.Format(got), prototext.Format(want); a != b {
		t.Errorf("got\n%s\nwant\n%s", a, b)
	}
	for _, e := range []*flow.Endpoint{got.GetSource(), got.GetDestination()} {
		if id := e.GetIdentity(); id>>24 != 1 {
			t.Errorf("identity %d of %s is reserved", id, e.GetPodName())
		}
	}
	other := NewMapper("n2", "1.2.3", time.Unix(9, 0), func() *model.Snapshot { return cluster() }).Map(denied())
	if a, b := got.GetSource().GetIdentity(), other.GetSource().GetIdentity(); a != b {
		t.Errorf("another node has identity %d for the same workload, not %d", b, a)
	}
}

// TestMapOutcomes checks every outcome in both directions, and the ends that are not pods.
func TestMapOutcomes(t *testing.T) {
	rule := denied().Cause
	isolated := &model.Cause{Reason: model.ReasonIsolated, Origin: model.Origin{Kind: "NetworkPolicy", Namespace: "shop", Name: "web"}, Direction: model.Ingress}
	for name, c := range map[string]struct {
		edit func(*observe.Flow)
		want string
	}{
		"allowed by rule":      {func(f *observe.Flow) { f.Verdict = model.Allow }, "FORWARDED 5/0 match 2 egress+guard"},
		"allowed by default":   {func(f *observe.Flow) { f.Verdict, f.Cause = model.Allow, &model.Cause{} }, "FORWARDED 5/0 match 4"},
		"rules not known":      {func(f *observe.Flow) { f.Verdict, f.Cause = model.Deny, nil }, "DROPPED 5/133 match 0"},
		"allowed ingress":      {func(f *observe.Flow) { f.Verdict, f.Direction = model.Allow, model.Ingress }, "FORWARDED 5/0 match 2 ingress+guard"},
		"denied ingress":       {func(f *observe.Flow) { f.Direction, f.Cause = model.Ingress, isolated }, "DROPPED 5/133 match 0 ingress-web"},
		"denied egress":        {func(f *observe.Flow) { f.Cause = rule }, "DROPPED 5/181 match 2 egress-guard"},
		"observed denial":      {func(f *observe.Flow) { f.Cause, f.Observed = rule, true }, "AUDIT 5/181 match 2 egress-guard"},
		"observed drop":        {func(f *observe.Flow) { f.Drop, f.Observed = model.DropSpoofed, true }, "AUDIT 1/132 match 0"},
		"dropped with a cause": {func(f *observe.Flow) { f.Drop = model.DropSpoofed }, "DROPPED 1/132 match 0"},
	} {
		f := denied()
		c.edit(f)
		m := newMapper().Map(f)
		got := m.GetVerdict().String() + " " + text(m)
		if got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
		if len(m.GetPolicyLog()) != 1 || m.GetPolicyLog()[0] == "" {
			t.Errorf("%s: policy_log is %q", name, m.GetPolicyLog())
		}
		local := m.GetSource()
		if f.Direction == model.Ingress {
			local = m.GetDestination()
		}
		if local.GetPodName() != webPod.Name {
			t.Errorf("%s: the pod is %v", name, local)
		}
	}
	for node, want := range map[string]string{"": "reserved:world", "n1": "reserved:host", "n2": "reserved:remote-node"} {
		f := denied()
		f.Peer, f.PeerNode = model.PodID{}, node
		if got := newMapper().Map(f).GetDestination().GetLabels()[0]; got != want {
			t.Errorf("a flow to node %q has the destination %s, want %s", node, got, want)
		}
	}
	frame := &observe.Flow{FlowEvent: model.FlowEvent{Drop: model.DropNotIP, Detail: 0x88cc}}
	if m := newMapper().Map(frame); m.GetIP() != nil || m.GetL4() != nil || m.GetSource().GetLabels()[0] != "reserved:unknown" {
		t.Errorf("a frame without addresses is %v", m)
	}
}

// text is the type of an event and the policies that it names.
func text(m *flow.Flow) string {
	s := []string{fmt.Sprintf("%d/%d match %d", m.GetEventType().GetType(), m.GetEventType().GetSubType(), m.GetPolicyMatchType())}
	for sign, list := range map[string][]*flow.Policy{"egress+": m.GetEgressAllowedBy(), "ingress+": m.GetIngressAllowedBy(), "egress-": m.GetEgressDeniedBy(), "ingress-": m.GetIngressDeniedBy()} {
		for _, p := range list {
			s = append(s, sign+p.GetName())
		}
	}
	return strings.Join(s, " ")
}

// TestDropReasons checks that every reason of the data path has a reason of Hubble, and that no flow hides it.
func TestDropReasons(t *testing.T) {
	for r := model.DropNoEndpoint; int(r) < len(dropReasons); r++ {
		f := denied()
		f.Drop, f.Cause = r, nil
		m := newMapper().Map(f)
		if m.GetDropReasonDesc() == 0 || flow.DropReason_name[int32(m.GetDropReasonDesc())] == "" || m.GetPolicyLog()[0] != r.String() {
			t.Errorf("%s is %s, %q", r, m.GetDropReasonDesc(), m.GetPolicyLog())
		}
	}
	if int(model.DropPortTaken)+1 != len(dropReasons) {
		t.Error("a reason of the data path has no reason of Hubble")
	}
}

func TestMapProtocols(t *testing.T) {
	for p, want := range map[model.Protocol]string{model.TCP: "TCP", model.UDP: "UDP", model.SCTP: "SCTP", model.ICMP: "ICMPv4", model.ICMPv6: "ICMPv6", 47: ""} {
		f := denied()
		f.Protocol = p
		f.Src, f.Dst = netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")
		f.Service, f.Masquerade = netip.MustParseAddrPort("[fd00::1]:443"), netip.MustParseAddrPort("[2001:db8::9]:77")
		m := newMapper().Map(f)
		if l4 := fmt.Sprintf("%v", m.GetL4()); !strings.HasPrefix(l4, want) || want == "" && m.GetL4() != nil {
			t.Errorf("protocol %d is %s", p, l4)
		}
		if ip := m.GetIP(); ip.GetIpVersion() != flow.IPVersion_IPv6 || ip.GetSource() != "2001:db8::1" || ip.GetSourceXlated() != "2001:db8::9" {
			t.Errorf("addresses %v", ip)
		}
		if !strings.HasSuffix(m.GetSummary(), "; service [fd00::1]:443") {
			t.Errorf("the summary %q lacks the service", m.GetSummary())
		}
	}
}

func TestWorkloads(t *testing.T) {
	for name, c := range map[string]struct {
		labels map[string]string
		want   string
	}{
		"web-7d9f-x2x4z": {map[string]string{"pod-template-hash": "7d9f"}, "Deployment web"},
		"a-b-5f-q":       {map[string]string{"pod-template-hash": "5f"}, "Deployment a-b"},
		"odd":            {map[string]string{"pod-template-hash": "5f"}, ""},
		"-5f-q":          {map[string]string{"pod-template-hash": "5f"}, ""},
		"db-0":           {map[string]string{"statefulset.kubernetes.io/pod-name": "db-0", "controller-revision-hash": "db-1"}, "StatefulSet db"},
		"db-1":           {map[string]string{"statefulset.kubernetes.io/pod-name": "other"}, ""},
		"agent-x":        {map[string]string{"controller-revision-hash": "1", "pod-template-generation": "1"}, "DaemonSet agent"},
		"job-x":          {map[string]string{"batch.kubernetes.io/job-name": "job"}, "Job job"},
		"bare":           {nil, ""},
	} {
		w := workloadOf(&model.Pod{PodID: model.PodID{Namespace: "x", Name: name}, Labels: model.MakeLabels(c.labels)})
		if got := strings.TrimSpace(w.GetKind() + " " + w.GetName()); got != c.want {
			t.Errorf("pod %s belongs to %q, want %q", name, got, c.want)
		}
	}
}

// TestMapLabels checks that messages have a bounded part of a pod's labels, and its workload nevertheless.
func TestMapLabels(t *testing.T) {
	many, long := map[string]string{"pod-template-hash": "7d9f"}, map[string]string{"pod-template-hash": "7d9f"}
	for i := range 3000 {
		many[fmt.Sprintf("a%04d", i)] = ""
		long[fmt.Sprintf("%s%04d", strings.Repeat("a", 200), i)] = strings.Repeat("v", 63)
	}
	for name, labels := range map[string]map[string]string{"many": many, "long": long} {
		s := model.MakeSnapshot(nil, nil, []*model.Pod{{PodID: webPod, Labels: model.MakeLabels(labels)}}, nil)
		e := NewMapper("n1", "", time.Unix(0, 0), func() *model.Snapshot { return s }).Map(denied()).GetSource()
		size := 0
		for _, l := range e.GetLabels() {
			size += len(l)
		}
		if n := len(e.GetLabels()); n > 66 || n < 20 || size > 9<<10 {
			t.Errorf("%s: %d labels of %d bytes", name, n, size)
		}
		first, last := e.GetLabels()[0], e.GetLabels()[len(e.GetLabels())-1]
		if first != "k8s:io.kubernetes.pod.namespace=shop" || last != "isthmus:labels-cut" {
			t.Errorf("%s: the first label is %q, the last one %q", name, first, last)
		}
		if w := e.GetWorkloads(); len(w) != 1 || w[0].GetName() != "web" {
			t.Errorf("%s: workloads %v", name, w)
		}
	}
}

// TestMapSnapshots checks that flows of different snapshots share the Endpoint of a pod until its labels change.
func TestMapSnapshots(t *testing.T) {
	known := cluster()
	m := NewMapper("n1", "", time.Unix(0, 0), func() *model.Snapshot { return known })
	before := m.Keep(denied())
	known = cluster()
	if k := m.Keep(denied()); k.local != before.local || k.remote != before.remote {
		t.Error("the next snapshot has other Endpoints of the same pods")
	}
	known = model.MakeSnapshot(nil, nil, []*model.Pod{{PodID: webPod, Labels: model.MakeLabels(map[string]string{"app": "new"})}}, nil)
	if got := m.Keep(denied()).local.GetLabels(); len(got) != 2 || got[1] != "k8s:app=new" {
		t.Errorf("the changed pod has the labels %q", got)
	}
	known = nil
	if got := m.Keep(denied()).local.GetLabels(); len(got) != 1 {
		t.Errorf("the deleted pod has the labels %q", got)
	}
	for i := range 3 * maxEndpoints { // of pods that come and go
		if i%100 == 0 {
			known = cluster()
		}
		f := denied()
		f.Pod.Name = fmt.Sprint("pod-", i)
		m.Keep(f)
	}
	if m.endpoints[webPod] != nil || len(m.endpoints) > maxEndpoints || m.endpoints[model.PodID{Namespace: "shop", Name: fmt.Sprint("pod-", 3*maxEndpoints-1)}] == nil {
		t.Errorf("%d Endpoints, not those of the last pods", len(m.endpoints))
	}
}

func TestUUIDs(t *testing.T) {
	seen := make(map[string]bool)
	for _, start := range []int64{1, 2} {
		for _, node := range []string{"n1", "n2"} {
			m := NewMapper(node, "", time.Unix(start, 0), func() *model.Snapshot { return nil })
			for range 1000 {
				id := m.Map(denied()).GetUuid()
				if len(id) != 36 || id[14] != '8' || seen[id] {
					t.Fatalf("%s is not a new UUID of version 8", id)
				}
				seen[id] = true
			}
		}
	}
}

func BenchmarkMap(b *testing.B) {
	m, f := newMapper(), denied()
	b.ReportAllocs()
	for b.Loop() {
		m.Map(f)
	}
}

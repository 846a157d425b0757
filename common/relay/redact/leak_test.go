// SPDX-License-Identifier: Apache-2.0

package redact

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/isthmus-net/isthmus/common/access"
	"github.com/isthmus-net/isthmus/common/api/hubble/flow"
	"github.com/isthmus-net/isthmus/common/api/hubble/observer"
)

// secret begins every text that a client must not see, and secretNumber is below every such number.
const secret, secretNumber = "secret-", 7_000_000

// fill sets all fields of a message, also those that this test does not know, to texts and numbers with a mark.
func fill(r *rand.Rand, m protoreflect.Message, mark string) {
	value := func(fd protoreflect.FieldDescriptor) protoreflect.Value {
		n := secretNumber + r.Uint32N(1_000_000)
		switch fd.Kind() {
		case protoreflect.StringKind:
			return protoreflect.ValueOfString(mark + strconv.Itoa(int(n)))
		case protoreflect.Uint32Kind:
			return protoreflect.ValueOfUint32(n)
		case protoreflect.Int32Kind:
			return protoreflect.ValueOfInt32(int32(n))
		case protoreflect.Int64Kind:
			return protoreflect.ValueOfInt64(int64(n))
		case protoreflect.Uint64Kind:
			return protoreflect.ValueOfUint64(uint64(n))
		case protoreflect.BoolKind:
			return protoreflect.ValueOfBool(n%2 == 0)
		case protoreflect.EnumKind:
			v := fd.Enum().Values()
			return protoreflect.ValueOfEnum(v.Get(int(n) % v.Len()).Number())
		}
		panic(fmt.Sprintf("the test has no value for %s: add its kind", fd.FullName()))
	}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		switch {
		case fd.IsList() && fd.Message() != nil:
			l := m.Mutable(fd).List()
			fill(r, l.AppendMutable().Message(), mark)
		case fd.IsList():
			m.Mutable(fd).List().Append(value(fd))
		case fd.ContainingOneof() != nil && m.WhichOneof(fd.ContainingOneof()) != nil:
		case fd.Message() != nil:
			fill(r, m.Mutable(fd).Message(), mark)
		default:
			m.Set(fd, value(fd))
		}
	}
}

// kinds of an end.
const (
	ownPod = iota
	otherPod
	host
	remoteNode
	world
	unknown
	ends
)

// setEnd makes an end of a kind. The texts of what may be shown have no mark.
func setEnd(r *rand.Rand, e *flow.Endpoint, kind int) {
	proto.Reset(e)
	mark := "own-"
	if kind != ownPod {
		mark = secret
	}
	fill(r, e.ProtoReflect(), mark)
	switch kind {
	case ownPod:
		e.Namespace, e.Identity, e.ID, e.ClusterName = "shop", 42, 43, "default"
	case otherPod:
		e.Namespace = secret + strconv.Itoa(r.IntN(100))
		if r.IntN(10) == 0 {
			e.Identity = uint32(r.IntN(8)) // also a reserved one
		}
	default:
		e.Namespace, e.PodName, e.Identity = "", "", [ends]uint32{host: identityHost, remoteNode: identityRemoteNode, world: identityWorld}[kind]
	}
}

// random makes a flow whose every field has a value, between ends of two kinds. What the client may see has no mark.
func random(r *rand.Rand, src, dst int) *flow.Flow {
	f := &flow.Flow{}
	fill(r, f.ProtoReflect(), secret)
	f.Time.Seconds, f.Time.Nanos = 1_000_000, 1
	f.L4 = &flow.Layer4{Protocol: &flow.Layer4_TCP{TCP: &flow.TCP{SourcePort: r.Uint32N(65536), DestinationPort: r.Uint32N(65536)}}}
	f.Aggregate = &flow.Aggregate{IngressFlowCount: 1}
	setEnd(r, f.Source, src)
	setEnd(r, f.Destination, dst)
	f.Verdict = []flow.Verdict{flow.Verdict_FORWARDED, flow.Verdict_DROPPED}[r.IntN(2)]
	f.TrafficDirection = flow.TrafficDirection(r.IntN(3))
	f.EventType = &flow.CiliumEventType{Type: []int32{1, 5}[r.IntN(2)], SubType: r.Int32N(204)}
	f.PolicyMatchType = r.Uint32N(5)
	if src == ownPod || src == world {
		f.IP.Source = "own-address"
		f.SourceNames = []string{"own-name"}
	}
	if dst == ownPod || dst == world {
		f.IP.Destination = "own-address"
		f.DestinationNames = []string{"own-name"}
	}
	policies := func(own bool) []*flow.Policy {
		namespace, name := secret+"namespace", secret+"policy"
		if own {
			namespace, name = []string{"shop", ""}[r.IntN(2)], "own-policy"
		}
		return []*flow.Policy{{Name: name, Namespace: namespace, Kind: "NetworkPolicy", Labels: []string{name}}}
	}
	f.EgressAllowedBy, f.EgressDeniedBy = policies(src == ownPod), policies(src == ownPod)
	f.IngressAllowedBy, f.IngressDeniedBy = policies(dst == ownPod), policies(dst == ownPod)
	if decidedByOwn(f, src, dst) {
		f.Summary, f.PolicyLog = "own cause", []string{"own cause"}
	}
	return f
}

func decidedByOwn(f *flow.Flow, src, dst int) bool {
	return f.TrafficDirection == flow.TrafficDirection_EGRESS && src == ownPod || f.TrafficDirection == flow.TrafficDirection_INGRESS && dst == ownPod
}

// vary replaces all that a client must not learn about a flow.
func vary(r *rand.Rand, f *flow.Flow, src, dst int) *flow.Flow {
	g := random(r, src, dst)
	g.Verdict, g.TrafficDirection, g.L4, g.Type, g.IsReply, g.Uuid = f.Verdict, f.TrafficDirection, f.L4, f.Type, f.IsReply, f.Uuid
	g.IP.IpVersion, g.IP.Encrypted = f.IP.IpVersion, f.IP.Encrypted
	g.EventType.Type = f.EventType.Type
	if decidedByOwn(f, src, dst) {
		g.EventType, g.PolicyMatchType, g.DropReasonDesc = f.EventType, f.PolicyMatchType, f.DropReasonDesc
		g.Summary, g.PolicyLog = f.Summary, f.PolicyLog
	} else {
		g.Summary, g.PolicyLog = secret+"cause", []string{secret + "cause"}
	}
	if src == ownPod {
		g.Source, g.EgressAllowedBy, g.EgressDeniedBy = f.Source, f.EgressAllowedBy, f.EgressDeniedBy
	}
	if dst == ownPod {
		g.Destination, g.IngressAllowedBy, g.IngressDeniedBy = f.Destination, f.IngressAllowedBy, f.IngressDeniedBy
	}
	return g
}

// numbers calls see for each number in a message.
func numbers(m protoreflect.Message, see func(protoreflect.FieldDescriptor, uint64)) {
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		one := func(v protoreflect.Value) {
			switch fd.Kind() {
			case protoreflect.MessageKind:
				numbers(v.Message(), see)
			case protoreflect.Uint32Kind, protoreflect.Uint64Kind:
				see(fd, v.Uint())
			case protoreflect.Int32Kind, protoreflect.Int64Kind:
				see(fd, uint64(v.Int()))
			}
		}
		if fd.IsList() {
			for i := range v.List().Len() {
				one(v.List().Get(i))
			}
		} else {
			one(v)
		}
		return true
	})
}

// requests are those of a curious client: each filter is about a field that may be hidden.
func requests(r *rand.Rand, f *flow.Flow) *observer.GetFlowsRequest {
	e := []*flow.Endpoint{f.GetSource(), f.GetDestination()}[r.IntN(2)]
	filter := []*flow.FlowFilter{
		{SourcePod: []string{e.GetNamespace() + "/" + e.GetPodName()}}, {DestinationPod: []string{e.GetNamespace() + "/"}},
		{SourceLabel: []string{"!" + secret}}, {SourceIdentity: []uint32{e.GetIdentity()}}, {DestinationIdentity: []uint32{e.GetIdentity()}},
		{SourceWorkload: e.GetWorkloads()}, {DestinationWorkload: e.GetWorkloads()}, {SourceClusterName: []string{e.GetClusterName() + "x"}},
		{Uuid: []string{f.GetUuid()}}, {Interface: []*flow.NetworkInterface{f.GetInterface()}}, {DropReasonDesc: []flow.DropReason{f.GetDropReasonDesc()}},
		{EventType: []*flow.EventTypeFilter{{Type: f.GetEventType().GetType(), MatchSubType: true, SubType: f.GetEventType().GetSubType()}}},
		{NodeName: []string{"*secret*"}}, {SourceService: []string{"secret-"}}, {Verdict: []flow.Verdict{f.GetVerdict()}}, {},
	}[r.IntN(16)]
	if r.IntN(2) == 0 {
		return &observer.GetFlowsRequest{Whitelist: []*flow.FlowFilter{filter}}
	}
	return &observer.GetFlowsRequest{Blacklist: []*flow.FlowFilter{filter}}
}

// leaks returns the number of flows that ISTHMUS_LEAKS asks for.
func leaks(t *testing.T) int {
	t.Helper()
	text := os.Getenv("ISTHMUS_LEAKS")
	if text == "" {
		return 20_000
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("ISTHMUS_LEAKS %q: give a number of flows", text)
	}
	return n
}

// TestLeaks shows generated flows to a client of one namespace. No hidden text or number is left, and flows that
// differ only in what is hidden look the same, whatever the client filters by. ISTHMUS_LEAKS sets their number.
func TestLeaks(t *testing.T) {
	count := leaks(t)
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	scope := access.Scope{Namespaces: []string{"shop"}}
	leaked, seen := 0, 0
	for n := range count {
		src, dst := r.IntN(ends), r.IntN(ends)
		f := random(r, src, dst)
		request := requests(r, f)
		view, err := NewView(scope, request, []byte("key"))
		if err != nil {
			t.Fatalf("seed %d, flow %d: %v: %v", seed, n, request, err)
		}
		show := func(f *flow.Flow) *observer.GetFlowsResponse {
			return view.Flow(&observer.GetFlowsResponse{Time: f.GetTime(), NodeName: secret + strconv.Itoa(r.IntN(1000)), ResponseTypes: &observer.GetFlowsResponse_Flow{Flow: f}})
		}
		got, other := show(f), show(vary(r, f, src, dst))
		leak := ""
		switch {
		case !proto.Equal(got, other):
			leak = "two flows that differ in hidden parts look different"
		case got == nil:
			continue
		case src != ownPod && dst != ownPod:
			leak = "a flow without an end in the namespace is shown"
		}
		wire, err := proto.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(wire, []byte(secret)) {
			leak = "a hidden text is shown"
		}
		numbers(got.ProtoReflect(), func(fd protoreflect.FieldDescriptor, n uint64) {
			if n >= secretNumber && n < secretNumber+1_000_000 {
				leak = "a hidden number is shown in " + string(fd.FullName())
			}
		})
		if seen++; leak != "" {
			leaked++
			t.Errorf("seed %d, flow %d: %s:\n%s\nand\n%s", seed, n, leak, protojson.Format(got), protojson.Format(other))
		}
		if leaked > 3 {
			t.FailNow()
		}
	}
	t.Logf("access: %d flows, %d shown, %d leaks", count, seen, leaked)
	if seen < count/20 {
		t.Errorf("only %d of %d flows were shown: the test proves nothing", seen, count)
	}
}

// TestShown checks what a team still sees of a flow with an end of another namespace, and that wider scopes see more.
func TestShown(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	f := random(r, ownPod, otherPod)
	f.TrafficDirection = flow.TrafficDirection_EGRESS
	f.Summary = "egress rule 0"
	team := Flow(access.Scope{Namespaces: []string{"shop"}}, nil, f)
	if !proto.Equal(team.GetSource(), f.GetSource()) || team.GetIP().GetSource() != f.GetIP().GetSource() || team.GetSummary() != f.GetSummary() || team.GetVerdict() != f.GetVerdict() ||
		!proto.Equal(team.GetL4(), f.GetL4()) || len(team.GetEgressDeniedBy()) != 1 || team.GetEgressDeniedBy()[0].GetName() != "own-policy" {
		t.Errorf("the own end is not whole: %s", protojson.Format(team))
	}
	if d := team.GetDestination(); d.GetNamespace() != "" || d.GetPodName() != "" || !slices.Equal(d.GetLabels(), []string{"isthmus:hidden"}) || team.GetIP().GetDestination() != "" {
		t.Errorf("the other end: %s", protojson.Format(team))
	}
	flows := Flow(access.Scope{All: true}, nil, f)
	if !proto.Equal(flows.GetDestination(), f.GetDestination()) || len(flows.GetIngressDeniedBy()) != 1 || flows.GetNodeName() != "" || flows.GetIP().GetSourceXlated() != "" || flows.GetUuid() == f.GetUuid() {
		t.Errorf("a reader of all flows without data of nodes: %s", protojson.Format(flows))
	}
	all := Flow(access.Everything, nil, f)
	all.IP = f.GetIP()
	if !proto.Equal(all, f) {
		t.Errorf("an administrator misses something:\n%s\nof\n%s", protojson.Format(all), protojson.Format(f))
	}
	if Flow(access.Scope{}, nil, f) != nil || Flow(access.Scope{Namespaces: []string{"pay"}}, nil, f) != nil {
		t.Error("a client without an end sees the flow")
	}
}

// SPDX-License-Identifier: Apache-2.0

package flowevents

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/etw"
)

var (
	web    = netip.MustParseAddr("10.0.1.5")
	remote = netip.MustParseAddr("10.0.2.6")
)

// denying returns a State that isolates pod shop/web by a policy; it allows everything if the policy has no name.
func denying(policy string) *model.State {
	d := model.Decision{Verdict: model.Allow, Cause: &model.Cause{}}
	if policy != "" {
		d = model.Decision{Cause: &model.Cause{Reason: model.ReasonIsolated, Origin: model.Origin{Kind: "NetworkPolicy", Namespace: "shop", Name: policy}}}
	}
	side := model.Side{Default: &model.Row{Cells: []model.Decision{d}}}
	return &model.State{Policy: model.PolicyState{Tables: map[model.TableID]*model.Table{{1}: {ID: model.TableID{1}, Sides: [2]model.Side{side, side}}},
		Endpoints: map[model.EndpointID]model.EndpointState{"web:eth0": {Pod: model.PodID{Namespace: "shop", Name: "web"}, IPs: []netip.Addr{web}, Table: model.TableID{1}}}}}
}

// TestStateOfTheTime: a packet is explained by a State that may have been in force when it was dropped.
func TestStateOfTheTime(t *testing.T) {
	at := func(second int) time.Time { return time.Unix(int64(second), 0) }
	h := newHistory()
	first, second, third := denying("first"), denying("second"), denying("")
	h.begin(first, at(10))
	h.applied(first, at(12))
	h.begin(second, at(20))
	h.begin(second, at(22)) // a second attempt
	h.applied(second, at(24))
	h.begin(third, at(30))
	for second, want := range map[int]string{
		5:  "first", // from before the start of the agent
		11: "first", 15: "first", 19: "first",
		20: "second", 23: "second", 24: "second", 29: "second",
		30: "second", 39: "second", // the third is not in force yet, and allows it
	} {
		e, why := h.explain(&packet{time: at(second), direction: model.Ingress, src: remote, dst: web, protocol: model.TCP, dstPort: 80})
		if why != byPolicy || e.Cause == nil || e.Cause.Origin.Name != want || e.Pod.Name != "web" || e.Endpoint != "web:eth0" {
			t.Errorf("second %d: %d, %v by %v, want %s", second, why, e.Pod, e.Cause, want)
		}
	}
	h.applied(third, at(40))
	p := &packet{time: at(41), direction: model.Ingress, src: remote, dst: web, protocol: model.TCP, dstPort: 80}
	if e, why := h.explain(p); why != byNothing {
		t.Errorf("a State that is not in force any more explains a packet: %v", e.Cause)
	}
	p.blocked = true
	if e, why := h.explain(p); why != byPolicy || e.Cause != nil || e.Verdict != model.Deny {
		t.Errorf("a packet that Windows blocked and policy allows: %d, %v", why, e.Cause)
	}
}

// TestManyStates: the oldest are forgotten.
func TestManyStates(t *testing.T) {
	var h history
	for i := range 3 * maxVersions {
		s := denying("any")
		h.begin(s, time.Unix(int64(i), 0))
		h.applied(s, time.Unix(int64(i), 0))
	}
	if len(h.versions) != maxVersions || h.versions[0].from != time.Unix(2*maxVersions, 0) {
		t.Errorf("%d versions from %v", len(h.versions), h.versions[0].from)
	}
}

// TestAttachedPod: a pod that no State has yet is denied everything, and named.
func TestAttachedPod(t *testing.T) {
	h := newHistory()
	spec := dataplane.EndpointSpec{ID: "new:eth0", Pod: model.PodID{Namespace: "shop", Name: "new"}, IPs: []netip.Addr{netip.MustParseAddr("10.0.1.9")}}
	p := &packet{time: time.Unix(1, 0), direction: model.Egress, src: spec.IPs[0], dst: remote, protocol: model.UDP, dstPort: 53}
	if _, why := h.explain(p); why != byNothing {
		t.Error("a packet of no known pod has an event")
	}
	h.attach(spec, false)
	for range 2 { // without a State, and with one of other pods
		e, why := h.explain(p)
		if why != byPolicy || e.Pod != spec.Pod || e.Cause.Reason != model.ReasonPending || e.Cause.Direction != model.Egress {
			t.Errorf("%d, %+v, %v", why, e, e.Cause)
		}
		h.begin(denying("other"), time.Unix(0, 0))
	}
	h.detach(spec.ID)
	if _, why := h.explain(p); why != byNothing {
		t.Error("a packet of a removed pod has an event")
	}
}

// TestPodOfEarlierAgent: until the first State nothing says why an earlier agent's ACLs drop a packet, and it is not
// certain that an event in another language is a drop.
func TestPodOfEarlierAgent(t *testing.T) {
	h := newHistory()
	spec := dataplane.EndpointSpec{ID: "web:eth0", Pod: model.PodID{Namespace: "shop", Name: "web"}, IPs: []netip.Addr{web}}
	p := &packet{time: time.Unix(1, 0), direction: model.Ingress, src: remote, dst: web, protocol: model.TCP, dstPort: 80, blocked: true}
	explained := func() string {
		e, why := h.explain(p)
		if why != byPolicy {
			return "nothing"
		}
		if e.Cause == nil {
			return "no cause"
		}
		return e.Cause.String()
	}
	for range 2 { // the audit attaches it again
		h.attach(spec, true)
		if got := explained(); got != "no cause" {
			t.Errorf("the ACLs of an earlier agent: %s", got)
		}
	}
	p.blocked = false
	if got := explained(); got != "nothing" {
		t.Errorf("an event without a meaning: %s", got)
	}
	h.attach(spec, false) // recreated
	if got := explained(); got != "policy not known yet" {
		t.Errorf("a new endpoint: %s", got)
	}
	h.attach(spec, true) // a repeated ADD
	if got := explained(); got != "policy not known yet" {
		t.Errorf("a repeated ADD: %s", got)
	}
	h.begin(denying("p"), time.Unix(0, 0))
	if got := explained(); !strings.Contains(got, "shop/p") {
		t.Errorf("under a State: %s", got)
	}
}

// TestLayers: only rules of the ACL layer decide by policy. A layer before it has events of packets that are denied
// later.
func TestLayers(t *testing.T) {
	event := func(layer string) *etw.Event {
		return &etw.Event{Fields: []etw.Field{{Name: fieldLayer, Text: layer}, {Name: fieldType, Number: 9}, {Name: fieldDirection, Number: inbound}, {Name: fieldProtocol, Number: 6},
			{Name: fieldSrcPort, Bytes: []byte{1, 2}}, {Name: fieldDstPort, Bytes: []byte{0, 80}}, {Name: fieldSrc4, Bytes: remote.AsSlice()}, {Name: fieldDst4, Bytes: web.AsSlice()}}}
	}
	for layer, want := range map[string]bool{"ACL_ENDPOINT_LAYER": true, "acl_endpoint_layer": true, "VNET_PA_ROUTE_LAYER": false, "SLB_NAT_LAYER": false, "": false} {
		if _, ok := parse(event(layer)); ok != want {
			t.Errorf("layer %q: %t", layer, ok)
		}
	}
	for i := range event(aclLayer).Fields {
		e := event(aclLayer)
		e.Fields = append(e.Fields[:i], e.Fields[i+1:]...)
		if _, ok := parse(e); ok {
			t.Errorf("an event without field %d is taken for a packet", i)
		}
		e = event(aclLayer)
		e.Fields[i] = etw.Field{Name: e.Fields[i].Name, Number: 1 << 40}
		if p, ok := parse(e); ok && (p.dst != web || p.src != remote) {
			t.Errorf("an event with a wrong field %d has the packet %+v", i, p)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("ACL_ENDPOINT_LAYER", uint64(1), uint64(6), []byte{10, 0, 1, 5}, []byte{0, 80}, "Block ")
	f.Fuzz(func(t *testing.T, layer string, direction, protocol uint64, address, port []byte, kind string) {
		e := &etw.Event{Fields: []etw.Field{{Name: fieldLayer, Text: layer}, {Name: fieldType, Meaning: kind}, {Name: fieldDirection, Number: direction}, {Name: fieldProtocol, Number: protocol},
			{Name: fieldSrcPort, Bytes: port}, {Name: fieldDstPort, Bytes: port}, {Name: fieldSrc4, Bytes: address}, {Name: fieldDst4, Bytes: address}, {Name: fieldSrc6, Bytes: address}, {Name: fieldDst6, Bytes: address}}}
		p, ok := parse(e)
		if ok && (!p.own().IsValid() || !p.remote().IsValid() || p.own().Is4() != (len(address) == 4)) {
			t.Fatalf("%+v", p)
		}
		h := newHistory()
		h.begin(denying("any"), time.Unix(0, 0))
		if ok {
			h.explain(&p)
		}
	})
}

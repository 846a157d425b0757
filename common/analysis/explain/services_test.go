// SPDX-License-Identifier: Apache-2.0

package explain_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/analysis/explain"
	"github.com/isthmus-net/isthmus/common/model"
)

// A client outside the cluster may come with the address of a node, through a Service that
// leads to the pod. Nothing else gets the note.
func TestHiddenClients(t *testing.T) {
	api := model.MakeSelector(model.Requirement{Key: "app", Operator: model.In, Values: []string{"api"}})
	hides := model.Service{Namespace: "shop", Name: "front", Pods: api, External: "NodePort"}
	keeps, inside, other := hides, hides, hides
	keeps.KeepsClients, inside.External, other.Namespace = true, "", "bank"
	for _, c := range []struct {
		name     string
		src, dst string
		service  model.Service
		noted    bool
	}{
		{"client outside", "192.0.2.7", "10.0.1.2", hides, true},
		{"Service keeps clients", "192.0.2.7", "10.0.1.2", keeps, false},
		{"Service is for the cluster only", "192.0.2.7", "10.0.1.2", inside, false},
		{"Service of another namespace", "192.0.2.7", "10.0.1.2", other, false},
		{"pod without policy", "192.0.2.7", "10.0.2.2", hides, false},
		{"client is a pod", "10.0.2.2", "10.0.1.2", hides, false},
	} {
		f := model.Flow{Src: netip.MustParseAddr(c.src), Dst: netip.MustParseAddr(c.dst), Protocol: model.TCP, Port: 80}
		var notes []string
		for _, side := range explain.Flow(webToAPI(), f, []*model.Service{&c.service}, nil).Sides {
			notes = append(notes, side.Notes...)
		}
		if noted := len(notes) == 1 && strings.Contains(notes[0], "shop/front (NodePort)") && strings.Contains(notes[0], c.src); noted != c.noted || len(notes) > 1 {
			t.Errorf("%s: notes are %q", c.name, notes)
		}
	}
}

// A connection that a node forwards is decided for what each end sees, and the answer names that.
func TestForwarded(t *testing.T) {
	addr := netip.MustParseAddr
	egress := model.Flow{Src: addr("10.0.2.2"), Dst: addr("172.30.0.12"), Protocol: model.TCP, Port: 30080}
	ingress := model.Flow{Src: addr("172.30.0.12"), Dst: addr("10.0.1.2"), Protocol: model.TCP, Port: 80}
	direct := explain.Flow(webToAPI(), model.Flow{Src: egress.Src, Dst: ingress.Dst, Protocol: model.TCP, Port: 80}, nil, nil)
	var asked []model.Flow
	x := explain.Forwarded(webToAPI(), egress, ingress, nil, func(f model.Flow) explain.Enforced { asked = append(asked, f); return nil })
	if len(x.Sides) != 2 || len(direct.Sides) != 2 || !slices.Equal(asked, []model.Flow{egress, ingress}) || x.Port != 80 {
		t.Fatalf("%+v of %v", x, asked)
	}
	if direct.Verdict != "allow" || x.Verdict != "deny" || x.Sides[1].Suggestion == nil || x.Sides[1].Suggestion.Rule.From[0].Block.CIDR != "172.30.0.12/32" {
		t.Errorf("direct %s, forwarded %s with %+v", direct.Verdict, x.Verdict, x.Sides[1].Suggestion)
	}
	for i, want := range []string{"the pod calls port 30080 of another node", "forwards the client and replaces its address"} {
		if notes := fmt.Sprint(x.Sides[i].Notes); !strings.Contains(notes, want) || len(direct.Sides[i].Notes) > 0 {
			t.Errorf("%s: notes %s, want %q", x.Sides[i].Direction, notes, want)
		}
	}
}

// Where an answer is about a port of a node, as on a web page, a note names the Service or the pod to which it leads.
func TestBehindNode(t *testing.T) {
	addr := netip.MustParseAddr
	pod := &model.Pod{PodID: model.PodID{Namespace: "shop", Name: "db"}, Node: "n1", IPs: []netip.Addr{addr("10.0.1.2")},
		HostPorts: []model.HostPort{{Number: 8100, Protocol: model.TCP, Port: 5432}}}
	s := model.MakeSnapshot(nil, []*model.Node{{Name: "n1", Addresses: []netip.Addr{addr("172.30.0.11")}}, {Name: "n2", Addresses: []netip.Addr{addr("172.30.0.12")}}}, []*model.Pod{pod}, nil)
	front := []*model.Service{{Namespace: "shop", Name: "front", Ports: []model.ServicePort{{Protocol: model.TCP, Port: 80, Node: 30080}}}}
	for _, c := range []struct {
		to       string
		protocol model.Protocol
		port     uint16
		note     string
	}{
		{"172.30.0.11", model.TCP, 8100, "[TCP 8100 of node n1 is a host port of shop/db: explain the flow to port 5432 of that pod]"},
		{"172.30.0.12", model.TCP, 30080, "[TCP 30080 of node n2 leads to Service shop/front: explain the flows to its pods]"},
		{"172.30.0.12", model.TCP, 8100, "[]"},
		{"172.30.0.11", model.UDP, 8100, "[]"},
		{"172.30.0.11", model.TCP, 80, "[]"},
		{"172.30.0.11", model.ICMP, 0, "[]"},
		{"10.0.1.2", model.TCP, 8100, "[]"},
	} {
		x := explain.Flow(s, model.Flow{Src: addr("192.0.2.1"), Dst: addr(c.to), Protocol: c.protocol, Port: c.port}, front, nil)
		if got := fmt.Sprint(x.Notes); got != c.note {
			t.Errorf("%s %s %d: notes %s, want %s", c.to, c.protocol, c.port, got, c.note)
		}
	}
}

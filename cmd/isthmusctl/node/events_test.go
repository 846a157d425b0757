// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	isthmusv1 "github.com/isthmus-net/isthmus/common/api/isthmus/v1"
	"github.com/isthmus-net/isthmus/common/model"
)

func TestEventsErrors(t *testing.T) {
	n := newNode(t)
	n.fill()
	for name, c := range map[string]struct {
		args   []string
		status int
		text   string
	}{
		"verdict":   {[]string{"--verdict", "maybe"}, 2, `--verdict "maybe": give allow, deny, drop`},
		"pod":       {[]string{"--pod", "web"}, 2, `--pod "web": give NAMESPACE/NAME`},
		"both":      {[]string{"--pod", "shop/web", "-n", "shop"}, 2, "give one of them"},
		"output":    {[]string{"-o", "wide"}, 2, `--output "wide": give text or json`},
		"data path": {nil, 2, "the data path of this node (linux, kernel 6.1) does not report single flows"},
	} {
		status, out, errs := ctl(append([]string{"events", "--socket", n.socket}, c.args...)...)
		if status != c.status || !strings.Contains(errs, c.text) || out != "" {
			t.Errorf("%s: exit status %d, %q, %q, want %d with %q", name, status, out, errs, c.status, c.text)
		}
	}
}

// A pod that is not on the node, as after a typing error, is no reason for silence. One that is needs no remark.
func TestEventsOfAbsentPods(t *testing.T) {
	n := newNode(t)
	n.fill()
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--pod", "shop/wbe"}, "isthmusctl: pod shop/wbe is not attached to this node: it can only be the other end of flows here; ask the node on which it runs\n"},
		{[]string{"-n", "shpo"}, "isthmusctl: no pod of namespace shpo is attached to this node: "},
		{[]string{"--pod", "shop/web"}, ""},
		{[]string{"-n", "shop"}, ""},
		{nil, ""},
	} {
		_, _, errs := ctl(append([]string{"events", "--socket", n.socket}, c.args...)...)
		if c.want == "" && strings.Contains(errs, "attached") || !strings.Contains(errs, c.want) {
			t.Errorf("%q: %q, want %q", c.args, errs, c.want)
		}
	}
}

func TestFlowLines(t *testing.T) {
	for want, f := range map[string]*isthmusv1.FlowEvent{
		"1970-01-01T00:00:01.500Z deny  shop/web egress: 10.0.0.1 -> 10.0.0.2 (data/db) TCP/5432 by service 10.96.0.1:5432: isolated": {UnixNano: 1.5e9,
			Verdict: "deny", PodNamespace: "shop", PodName: "web", Direction: "egress", Src: "10.0.0.1", Dst: "10.0.0.2", Protocol: "TCP", DstPort: 5432,
			PeerNamespace: "data", PeerName: "db", Service: "10.96.0.1:5432", Cause: "isolated"},
		"1970-01-01T00:00:00.000Z allow shop/web ingress: 10.0.0.2 (node n1) -> 10.0.0.1 ICMP type 8: rules not known": {Verdict: "allow",
			PodNamespace: "shop", PodName: "web", Direction: "ingress", Src: "10.0.0.2", Dst: "10.0.0.1", Protocol: "ICMP", IcmpType: 8, PeerNode: "n1"},
		"1970-01-01T00:00:00.000Z deny  shop/web ingress: 10.0.0.2 -> 10.0.0.1 ICMP: isolated": {Verdict: "deny", PodNamespace: "shop", PodName: "web", Direction: "ingress",
			Src: "10.0.0.2", Dst: "10.0.0.1", Protocol: "ICMP", IcmpType: model.UnknownICMPType, Cause: "isolated"},
		"1970-01-01T00:00:00.000Z allow shop/web ingress: 192.0.2.7 -> 10.0.0.1 TCP/80 masqueraded as 10.0.0.9:4000: rules not known": {Verdict: "allow",
			PodNamespace: "shop", PodName: "web", Direction: "ingress", Src: "192.0.2.7", Dst: "10.0.0.1", Protocol: "TCP", DstPort: 80, Masquerade: "10.0.0.9:4000"},
		"1970-01-01T00:00:00.000Z drop  no known pod egress: frame of type 0x88cc: not_ip": {Verdict: "drop", Direction: "egress", Reason: "not_ip", EtherType: 0x88cc},
	} {
		if got := flowLine(f); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	}
	var out, notes bytes.Buffer
	m := &isthmusv1.WatchFlowsResponse{Missed: 3, Event: &isthmusv1.FlowEvent{Verdict: "allow"}}
	if err := writeFlowText(&out, &notes, m); err != nil || !strings.Contains(notes.String(), "3 events are missing here") {
		t.Errorf("missed events are noted as %q (%v)", notes.String(), err)
	}
	out.Reset()
	notes.Reset()
	if err := writeFlowText(&out, &notes, &isthmusv1.WatchFlowsResponse{Undelivered: 5}); err != nil || out.Len() > 0 ||
		!strings.Contains(notes.String(), "5 events of all pods are missing here: over --flow-event-rate") {
		t.Errorf("undelivered events are shown as %q and noted as %q (%v)", out.String(), notes.String(), err)
	}
	if err := writeFlowJSON(&out, &notes, m); err != nil || strings.Count(out.String(), "\n") != 1 || !json.Valid(out.Bytes()) {
		t.Errorf("%q is not a line of JSON (%v)", out.String(), err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package connectivity

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/connectivity"
	"github.com/isthmus-net/isthmus/common/connectivity/probe"
	"github.com/isthmus-net/isthmus/common/model"
)

// A report names each failure with its explanation on lines of their own, and no text of a node controls the terminal.
func TestWriteReport(t *testing.T) {
	pod := func(name string, role connectivity.Role, node string) connectivity.Placed {
		return connectivity.Placed{Pod: connectivity.Pod{Name: name, Role: role, Node: connectivity.Node{Name: node, OS: model.Linux}},
			Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Service: []netip.Addr{netip.MustParseAddr("10.96.0.1")}}
	}
	flows := connectivity.Flows(connectivity.Phases()[0], []connectivity.Placed{pod("client-1", connectivity.Client, "n1"), pod("server-1", connectivity.Server, "n1")})
	r := &connectivity.Report{Namespace: "test", Nodes: []connectivity.NodeReport{{Name: "n1", OS: model.Linux}},
		Pods: []connectivity.PodReport{{Name: "client-1", Node: "n1"}, {Name: "server-2", Node: "n2", Missing: "not running:\x1b[2J\nno image"}}}
	for i := range flows {
		x := &connectivity.Result{Flow: flows[i], Phase: flows[i].Phase, Kind: flows[i].Kind, From: "client-1", Expected: "answered", Passed: i > 0, Attempts: 3}
		if i == 0 {
			x.Wrong, x.Why = "no\nanswer", []string{"ingress policy: denied by\x07 x", "an edit"}
			r.Failed++
		} else {
			r.Passed++
		}
		r.Flows = append(r.Flows, x)
	}
	var out strings.Builder
	if err := writeReport(&out, r); err != nil {
		t.Fatal(err)
	}
	const want = `PHASE  TO       BY        EXPECTED  FLOWS  PASSED  FAILED
open   pod      TCP IPv4  answered  1      0       1
open   pod      UDP IPv4  answered  1      1       0
open   service  TCP IPv4  answered  1      1       0
open   service  UDP IPv4  answered  1      1       0
open   name     TCP DNS   answered  1      1       0

FAILED pod server-2 on node n2: not running:�[2J no image

FAILED open: client-1 (n1) -> server-1 (n1), tcp/10.0.0.1:7000: expected answered: no answer (3 attempts)
  ingress policy: denied by� x
  an edit

connectivity: nodes=1 pods=1 flows=5 passed=4 failed=1
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

// What is followed is what failed: a name that has no address leads to the DNS server.
func TestDestination(t *testing.T) {
	for _, c := range []struct {
		kind, host string
		target     string
		answer     probe.Answer
		want       string
	}{
		{connectivity.ToPod, "10.0.0.2", probe.UDP, probe.Answer{State: probe.Timeout}, "t/client-1 10.0.0.2 UDP 7000"},
		{connectivity.ToService, "fd96::1", probe.TCP, probe.Answer{State: probe.Timeout}, "t/client-1 fd96::1 TCP 7000"},
		{connectivity.ToName, "server-1", probe.TCP, probe.Answer{State: probe.Timeout}, "t/client-1 svc/t/server-1 TCP 7000"},
		{connectivity.ToName, "server-1", probe.TCP, probe.Answer{State: probe.Lookup, Resolver: "10.96.0.10:53"}, "t/client-1 10.96.0.10 UDP 53"},
		{connectivity.ToName, "server-1", probe.TCP, probe.Answer{State: probe.Lookup}, "t/client-1 svc/kube-system/kube-dns UDP 53"},
	} {
		f := &connectivity.Result{Kind: c.kind, From: "client-1", To: "server-1", Answer: c.answer, Flow: connectivity.Flow{Target: probe.Target{Kind: c.target, Host: c.host, Port: 7000}}}
		got := destination("t", f)
		if s := strings.Join([]string{got.From, got.To, got.Protocol, got.Port}, " "); s != c.want {
			t.Errorf("%s %s: %s, want %s", c.kind, c.host, s, c.want)
		}
	}
}

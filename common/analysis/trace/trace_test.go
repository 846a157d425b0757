// SPDX-License-Identifier: Apache-2.0

package trace_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/analysis/trace"
	"github.com/isthmus-net/isthmus/common/inspect"
	"github.com/isthmus-net/isthmus/common/model"
)

// bundle is node n1 with the pods a and b; c is on n2, and policy isolates b and c for ingress.
func bundle() *inspect.Bundle {
	pod := func(name, node, ip string) *model.Pod {
		return &model.Pod{PodID: model.PodID{Namespace: "shop", Name: name}, Node: node, IPs: []netip.Addr{netip.MustParseAddr(ip)}, Labels: model.MakeLabels(map[string]string{"app": name})}
	}
	origin := model.Origin{Kind: "NetworkPolicy", Namespace: "shop", Name: "p"}
	policy := &model.Policy{Origin: origin, Tier: model.TierNetworkPolicy, Isolates: [2]bool{true, false},
		Subject: model.PodSelector{Namespace: "shop", Pods: model.MakeSelector(model.Requirement{Key: "app", Operator: model.In, Values: []string{"b", "c"}})}}
	policy.Rules[model.Ingress] = []model.Rule{{Action: model.ActionAccept, AnyPeer: true, Ports: []model.PortMatch{{Protocol: model.TCP, First: 80, Last: 80}}}}
	s := model.MakeSnapshot(nil, []*model.Node{{Name: "n1", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24")}}, {Name: "n2", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.2.0/24")}}},
		[]*model.Pod{pod("a", "n1", "10.0.1.2"), pod("b", "n1", "10.0.1.3"), pod("c", "n2", "10.0.2.2")}, []*model.Policy{policy})
	return &inspect.Bundle{About: inspect.About{Node: "n1", Modes: []string{"other_nodes: direct (1)"}}, Cluster: inspect.MakeCluster(s),
		Endpoints: []inspect.Endpoint{{ID: "a:eth0", Pod: model.PodID{Namespace: "shop", Name: "a"}, Table: "1"},
			{ID: "b:eth0", Pod: model.PodID{Namespace: "shop", Name: "b"}, Table: "2", Policies: []model.Origin{origin}}}}
}

// withServices gives the cluster a range of Services.
func withServices(b *inspect.Bundle) {
	b.Cluster.ServiceCIDRs = []*model.ServiceCIDR{{Name: "kubernetes", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}}}
}

// TestSteps changes the data of a node, and checks the verdicts and the drift of a flow to TCP 80.
func TestSteps(t *testing.T) {
	exact := func(model.EndpointID, model.Direction, netip.Addr, model.Protocol, uint16) (model.Verdict, string, error) {
		return model.Allow, "", nil
	}
	denies := func(model.EndpointID, model.Direction, netip.Addr, model.Protocol, uint16) (model.Verdict, string, error) {
		return model.Deny, "x", nil
	}
	fails := func(model.EndpointID, model.Direction, netip.Addr, model.Protocol, uint16) (model.Verdict, string, error) {
		return model.Allow, "", errors.New("not readable")
	}
	for name, c := range map[string]struct {
		from, to  string
		change    func(*inspect.Bundle)
		installed trace.Installed
		verdict   string
		drift     bool
		text      string
	}{
		"as intended":     {"10.0.1.2", "10.0.1.3", nil, exact, "allow", false, "both ends are on this node"},
		"to no pod":       {"10.0.1.2", "10.0.1.9", nil, exact, "allow", false, "both ends are on this node; no known pod has the address 10.0.1.9"},
		"from no pod":     {"10.0.2.9", "10.0.1.3", nil, exact, "allow", false, "from node n2, by direct (1); no known pod has the address 10.0.2.9"},
		"damaged":         {"10.0.1.2", "10.0.1.3", func(b *inspect.Bundle) { b.Drift = []inspect.Drift{{Object: "rows", Detail: "row 3"}} }, denies, "deny", true, "rows: row 3"},
		"being applied":   {"10.0.1.2", "10.0.1.3", func(b *inspect.Bundle) { b.About.Pending = true }, denies, "deny", false, "being applied"},
		"not readable":    {"10.0.1.2", "10.0.1.3", nil, fails, "unknown", false, "not readable"},
		"other node":      {"10.0.1.2", "10.0.2.2", nil, exact, "unknown", false, "decided on node n2: run isthmusctl trace there"},
		"from other node": {"10.0.2.2", "10.0.1.3", nil, exact, "unknown", false, "from node n2, by direct (1)"},
		"to the world":    {"10.0.1.2", "203.0.113.1", nil, exact, "allow", false, "leaves the cluster"},
		"to a Service":    {"10.0.1.2", "10.96.0.5", withServices, exact, "allow", false, "an address of Services: this node replaces it by that of a backend before policy decides"},
		"no Service":      {"10.0.1.2", "203.0.113.1", withServices, exact, "allow", false, "leaves the cluster"},
		"from the world":  {"203.0.113.1", "10.0.1.3", nil, exact, "allow", false, "from outside the cluster"},
		"neither here":    {"203.0.113.1", "10.0.2.2", nil, exact, "unknown", false, "neither end is on this node"},
		"not attached":    {"10.0.1.2", "10.0.1.3", func(b *inspect.Bundle) { b.Endpoints = b.Endpoints[:1] }, exact, "deny", true, "the pod is not attached to this node"},
		"unenforced":      {"10.0.1.2", "10.0.1.3", func(b *inspect.Bundle) { b.Endpoints[1].Unenforced = true }, exact, "allow", true, "policy NOT enforced"},
		"route":           {"10.0.1.2", "10.0.2.2", func(b *inspect.Bundle) { b.Drift = []inspect.Drift{{Object: "node_routes", Detail: "10.0.2.0/24"}} }, exact, "unknown", true, "node_routes: 10.0.2.0/24"},
		"repaired route":  {"10.0.1.2", "10.0.2.2", func(b *inspect.Bundle) { b.About.Repairs = []string{"set route to 10.0.2.0/24"} }, exact, "unknown", false, "repaired: set route"},
		"over-blocked": {"10.0.1.2", "10.0.1.3", func(b *inspect.Bundle) {
			b.About.Unsupported = []model.Unsupported{{Policy: b.Endpoints[1].Policies[0], Construct: "ranges"}}
			b.Endpoints[0].Policies = b.Endpoints[1].Policies
		}, denies, "deny", false, "over-blocked: NetworkPolicy shop/p"},
	} {
		b := bundle()
		if c.change != nil {
			c.change(b)
		}
		r := trace.Flow(b, b.Cluster.Objects().Snapshot(), model.Flow{Src: netip.MustParseAddr(c.from), Dst: netip.MustParseAddr(c.to), Protocol: model.TCP, Port: 80}, c.installed)
		var all strings.Builder
		for _, s := range r.Steps {
			all.WriteString(s.Text + "\n" + strings.Join(s.Wrong, "\n") + "\n")
		}
		if r.Installed != c.verdict || r.Drift != c.drift || !strings.Contains(all.String(), c.text) || r.Intended != "allow" {
			t.Errorf("%s: installed %s, drift %t, intended %s; want %s, %t and %q in\n%s", name, r.Installed, r.Drift, r.Intended, c.verdict, c.drift, c.text, all.String())
		}
	}
}

// TestDeniedSource checks that a source of deny lists is denied, although policy allows it, and that the maps of deny lists are
// not known.
func TestDeniedSource(t *testing.T) {
	b := bundle()
	b.Cluster.DenyLists = []*model.DenyList{{Name: "scanners", Entries: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}}}
	exact := func(model.EndpointID, model.Direction, netip.Addr, model.Protocol, uint16) (model.Verdict, string, error) {
		return model.Allow, "", nil
	}
	for src, want := range map[string]string{"203.0.113.1": "deny unknown", "198.51.100.1": "allow allow"} {
		r := trace.Flow(b, b.Cluster.Objects().Snapshot(), model.Flow{Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr("10.0.1.3"), Protocol: model.TCP, Port: 80}, exact)
		first := r.Steps[0]
		if got := r.Intended + " " + r.Installed; got != want || r.Drift || (r.Intended == "deny") != (first.What == "deny lists" && first.Cause == "203.0.113.0/24 of DenyList scanners") {
			t.Errorf("from %s: %s, drift %t, first step %+v, want %s", src, got, r.Drift, first, want)
		}
	}
}

// TestEdits checks that a denied flow names the edits that would allow it.
func TestEdits(t *testing.T) {
	b := bundle()
	r := trace.Flow(b, b.Cluster.Objects().Snapshot(), model.Flow{Src: netip.MustParseAddr("10.0.1.2"), Dst: netip.MustParseAddr("10.0.1.3"), Protocol: model.TCP, Port: 81},
		func(_ model.EndpointID, d model.Direction, _ netip.Addr, _ model.Protocol, _ uint16) (model.Verdict, string, error) {
			return model.Verdict(d), "", nil // ingress denies, egress allows
		})
	last := r.Steps[len(r.Steps)-1]
	if r.Intended != "deny" || r.Installed != "deny" || r.Drift || len(last.Changes) == 0 || !strings.Contains(last.Changes[0], "NetworkPolicy shop/p") {
		t.Errorf("%+v", r)
	}
}

// TestMerge combines what the nodes of both ends say.
func TestMerge(t *testing.T) {
	step := func(what, installed string) trace.Step { return trace.Step{What: what, Installed: installed} }
	report := func(node, intended, installed string, steps ...trace.Step) *trace.Report {
		return &trace.Report{Node: node, Intended: intended, Installed: installed, Steps: steps}
	}
	from := report("n1", "allow", "unknown", step("attachment", ""), step("egress policy", "allow"), trace.Step{What: "path", Where: "n1"}, step("ingress policy", "unknown"))
	to := report("n2", "allow", "unknown", step("egress policy", "unknown"), trace.Step{What: "path", Where: "n2"}, step("attachment", ""), step("ingress policy", "allow"))
	wrong := report("n2", "allow", "deny", step("egress policy", "unknown"), trace.Step{What: "path", Where: "n2"}, trace.Step{What: "attachment", Drift: true})
	newer := report("n2", "deny", "deny", to.Steps...)
	partly := report("n2", "allow", "unknown", append(to.Steps[:3:3], step("ingress policy", "unknown"))...)
	for name, c := range map[string]struct {
		to                  *trace.Report
		intended, installed string
		drift, positive     bool
		steps               string
	}{
		"allowed":           {to, "allow", "allow", false, true, "attachment, egress policy, path n1, path n2, attachment, ingress policy"},
		"detached":          {wrong, "allow", "deny", true, false, "attachment, egress policy, path n1, path n2, attachment"},
		"a newer policy":    {newer, "deny", "deny", false, false, "attachment, egress policy, path n1, path n2, attachment, ingress policy, policy n1, n2"},
		"one is not read":   {partly, "allow", "unknown", false, true, "attachment, egress policy, path n1, path n2, attachment, ingress policy"},
		"without any steps": {report("n2", "allow", "allow"), "allow", "allow", false, true, "attachment, egress policy, path n1"},
	} {
		got := trace.Merge(from, c.to)
		var steps []string
		for _, s := range got.Steps {
			steps = append(steps, strings.TrimSpace(s.What+" "+s.Where))
		}
		if got.Node != "n1, n2" || got.Intended != c.intended || got.Installed != c.installed || got.Drift != c.drift || got.Positive() != c.positive || strings.Join(steps, ", ") != c.steps {
			t.Errorf("%s: %+v, steps %s", name, got, strings.Join(steps, ", "))
		}
	}
	if len(from.Steps) != 4 || len(to.Steps) != 4 {
		t.Error("Merge changed its input")
	}
}

// A node that forwards decides about the backend; what it says about the source is about another destination.
func TestForward(t *testing.T) {
	step := func(what, intended, installed string) trace.Step {
		return trace.Step{What: what, Intended: intended, Installed: installed}
	}
	path := trace.Step{What: "path"}
	report := func(node, intended, installed string, steps ...trace.Step) *trace.Report {
		return &trace.Report{Node: node, Intended: intended, Installed: installed, Steps: steps}
	}
	from := report("n1", "allow", "allow", step("attachment", "", ""), step("egress policy", "allow", "allow"), path)
	ends := func(intended, installed string) *trace.Report { // the source may not open this
		return report("n2", "deny", "deny", step("egress policy", "deny", "deny"), path, step("attachment", "", ""), step("ingress policy", intended, installed))
	}
	closed := report("n1", "deny", "deny", step("egress policy", "deny", "deny"), path)
	for name, c := range map[string]struct {
		from, to            *trace.Report
		intended, installed string
		drift               bool
		steps               int
	}{
		"allowed":         {from, ends("allow", "allow"), "allow", "allow", false, 6},
		"denied":          {from, ends("deny", "deny"), "deny", "deny", false, 6},
		"damaged":         {from, ends("allow", "deny"), "allow", "deny", false, 6},
		"not read":        {from, ends("allow", "unknown"), "allow", "unknown", false, 6},
		"source denies":   {closed, ends("allow", "allow"), "deny", "deny", false, 5},
		"source, unknown": {closed, ends("allow", "unknown"), "deny", "deny", false, 5},
		"not attached":    {from, report("n1", "allow", "deny", path, trace.Step{What: "attachment", Drift: true}), "allow", "deny", true, 5},
	} {
		c.to.To.Pod, c.to.Port = "shop/b", 8080
		got := trace.Forward(c.from, c.to)
		node := "n1, n2"
		if c.to.Node == "n1" {
			node = "n1"
		}
		if got.Node != node || got.Intended != c.intended || got.Installed != c.installed || got.Drift != c.drift || len(got.Steps) != c.steps || got.To.Pod != "shop/b" || got.Port != 8080 {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if len(from.Steps) != 3 {
		t.Error("Forward changed its input")
	}
}

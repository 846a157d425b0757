// SPDX-License-Identifier: Apache-2.0

package page

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/analysis/usage"
	"github.com/isthmus-net/isthmus/common/kube/manifests"
	"github.com/isthmus-net/isthmus/common/model"
)

// reportedBy is what nodes answer: n1 counts flows, n2 does not answer, and w1 counts packets.
func reportedBy() []usage.Answer {
	rule := 0
	report := func(unit string, allowed, denied uint64) *usage.Policies {
		sum, no := allowed, denied
		return &usage.Policies{Unit: unit, Uncounted: &usage.Rest{Default: 11, Node: 3, Past: 9, Allowed: 1, Denied: 4}, Items: []usage.Policy{{Policy: "NetworkPolicy pay/api", Pods: 1, Allowed: &sum, Denied: &no,
			Rules: []usage.Rule{{Direction: "ingress", Rule: &rule, Allowed: allowed, Shared: unit == usage.Flows && allowed == 8}, {Direction: "ingress", Denied: denied}}}}}
	}
	u := model.Unsupported{Policy: model.Origin{Kind: "NetworkPolicy", Namespace: "pay", Name: "api"}, Construct: "SCTP", OS: model.Windows, Platform: "hns 9.5", Reason: "no SCTP"}
	whole := u
	whole.Rule, whole.Policy = -1, model.Origin{Kind: "ClusterNetworkPolicy", Name: "audit"}
	return []usage.Answer{{Node: "n1", OS: model.Linux, Policies: report(usage.Flows, 7, 5)}, {Node: "n2", OS: model.Linux, Why: "connection refused"},
		{Node: "w1", OS: model.Windows, Policies: report(usage.Packets, 100, 50), Unsupported: []model.Unsupported{u, whole}}}
}

// The numbers of policies and rules are shown with what they count, the nodes that they are from, and what is missing.
func TestCounted(t *testing.T) {
	answers := reportedBy()
	h := newHandler(t, readShop(t), func(c *Config) {
		c.Usage = func(context.Context, string) (*usage.Total, error) { return usage.Sum(answers), nil }
	})
	const flows, packets = "7 allowed, 5 denied (1 node, 1 missing)", "at least 100 allowed, 50 denied (1 node)"
	for address, wants := range map[string][]string{
		"/policies": {"ingress 1 " + flows + " " + packets + " shop.yaml:14", "Linux nodes count new flows: numbers of 1 of 2 nodes.",
			"Not counted separately on these nodes: 1 allowed, 4 denied. By no policy: 11 where none isolates the pod, 3 of the node itself or of a pod to itself, 0 before policy was known, 9 by rules that are gone.",
			"Without numbers: n2 (connection refused).", "Windows nodes count packets, not flows", "numbers of 1 of 1 node. The numbers are lower bounds"},
		"/policies?namespace=shop": {"No policies here."},
		"/policies?namespace=pay":  {flows},
		"/policies?namespace=P":    {"namespace: give the name of a namespace"},
		"/policies/NetworkPolicy/pay/api": {"NetworkPolicy pay/api", "New flows, Linux " + flows, "Packets, Windows " + packets, "Rules: 2",
			"ingress rule 0 Accept 7 allowed, 0 denied (1 node, 1 missing) at least 100 allowed, 0 denied (1 node)",
			"isolation, ingress denies what no rule accepts 0 allowed, 5 denied (1 node, 1 missing) at least 0 allowed, 50 denied (1 node)", "Linux nodes count new flows"},
		"/inexact": {"Reported by 2 of 3 nodes. Without a report: n2 (connection refused).", "NetworkPolicy pay/api ingress 0 SCTP windows (hns 9.5) over-blocks: no SCTP (1 node: w1)",
			"ClusterNetworkPolicy audit the whole object SCTP", "that some node does not enforce exactly: 2"},
		"/inexact?namespace=pay":  {"that some node does not enforce exactly: 1"},
		"/inexact?namespace=shop": {"These nodes report no construct of such policies that they do not enforce exactly."},
		"/inexact?find=audit":     {"that some node does not enforce exactly: 1"},
	} {
		w := get(h, "/secret"+address)
		for _, want := range wants {
			if !strings.Contains(text(w), want) {
				t.Errorf("%s: no %q in\n%s", address, want, text(w))
			}
		}
	}
	for _, address := range []string{"/policies/NetworkPolicy/pay/none", "/policies/NetworkPolicy/api", "/policies/ClusterNetworkPolicy/pay/api"} {
		if w := get(h, "/secret"+address); w.Code != http.StatusNotFound {
			t.Errorf("%s: status %d", address, w.Code)
		}
	}
}

// A cell says why it has no number, and never shows 0 for what is not known.
func TestNumberCells(t *testing.T) {
	number := usage.Number{Nodes: 2, Allowed: 1, Denied: 2}
	for name, c := range map[string]struct {
		systems []usage.System
		os      model.OS
		n       usage.Number
		want    string
	}{
		"other nodes only":  {nil, model.Windows, usage.Number{}, "no such nodes"},
		"none counts":       {[]usage.System{{OS: model.Windows, Nodes: 2, Answered: 2}}, model.Windows, usage.Number{}, "not counted"},
		"no pods":           {[]usage.System{{OS: model.Linux, Nodes: 2, Counted: 2}}, model.Linux, usage.Number{}, "no pods"},
		"no pods, perhaps":  {[]usage.System{{OS: model.Linux, Nodes: 2, Counted: 1, Missing: make([]usage.Missing, 1)}}, model.Linux, usage.Number{}, "no pods, 1 missing"},
		"a number":          {[]usage.System{{OS: model.Linux, Nodes: 2, Counted: 2}}, model.Linux, number, "1 allowed, 2 denied (2 nodes)"},
		"not all of it":     {[]usage.System{{OS: model.Linux, Nodes: 2, Counted: 2}}, model.Linux, usage.Number{Nodes: 1, Shared: true}, "at least 0 allowed, 0 denied (1 node)"},
		"packets":           {[]usage.System{{OS: model.Windows, Nodes: 2, Counted: 2}}, model.Windows, number, "at least 1 allowed, 2 denied (2 nodes)"},
		"with missing ones": {[]usage.System{{OS: model.Linux, Nodes: 5, Counted: 2, Missing: make([]usage.Missing, 3)}}, model.Linux, number, "1 allowed, 2 denied (2 nodes, 3 missing)"},
		"unknown nodes":     {[]usage.System{{OS: model.Linux, Nodes: 2, Counted: 2}, {OS: usage.Unknown, Nodes: 1, Missing: make([]usage.Missing, 1)}}, model.Linux, number, "1 allowed, 2 denied (2 nodes, 1 missing)"},
	} {
		counted := &counted{Total: &usage.Total{Systems: c.systems}}
		if got := counted.cell(c.os, c.n); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	if got := (&counted{}).cell(model.Linux, number); got != "not known" {
		t.Error(got)
	}
}

// Hidden names of nodes are counted.
func TestMissingText(t *testing.T) {
	var all []usage.Missing
	for n := range 12 {
		all = append(all, usage.Missing{Node: fmt.Sprint("n", n), Why: "down"})
	}
	if got := missingText(all); !strings.HasPrefix(got, "n0 (down); n1 (down)") || !strings.HasSuffix(got, "n9 (down); and 2 more") {
		t.Error(got)
	}
	if got := missingText(make([]usage.Missing, 12)); got != "12 nodes" {
		t.Error(got)
	}
}

// The page asks for the right to exactly the namespace that it shows, and shows nothing without it.
func TestAllowNamespace(t *testing.T) {
	var asked []string
	h := newHandler(t, readShop(t), func(c *Config) {
		c.AllowNamespace = func(_ context.Context, namespace string) error {
			asked = append(asked, namespace)
			if namespace == "shop" {
				return nil
			}
			return Failed(http.StatusForbidden, errors.New("you may not"))
		}
		c.Agents = func(context.Context) (map[string]Agent, error) {
			return nil, Failed(http.StatusForbidden, errors.New("no nodes"))
		}
		c.Usage = func(_ context.Context, namespace string) (*usage.Total, error) {
			if namespace != "shop" {
				t.Errorf("numbers of %q", namespace)
			}
			return usage.Sum(reportedBy()), nil
		}
	})
	for address, want := range map[string]string{"/policies": "", "/policies?namespace=pay": "pay", "/policies?namespace=none": "none", "/policies/NetworkPolicy/pay/api": "pay",
		"/policies/NetworkPolicy/pay/none": "pay", "/policies/ClusterNetworkPolicy/audit": "", "/inexact": "", "/inexact?namespace=pay": "pay", "/nodes": "-"} {
		asked = nil
		w := get(h, "/secret"+address)
		if body := text(w); w.Code != http.StatusForbidden || strings.Contains(body, "allowed,") || strings.Contains(body, "SCTP") || strings.Contains(body, "shop.yaml") || strings.Contains(body, "10.0.1") {
			t.Errorf("%s: status %d: %s", address, w.Code, body)
		}
		if want != "-" && fmt.Sprint(asked) != "["+want+"]" {
			t.Errorf("%s: rights to %q", address, asked)
		}
		if strings.Contains(address, "?") && !strings.Contains(w.Body.String(), `name="namespace"`) {
			t.Errorf("%s: no form for another namespace", address)
		}
	}
	for _, address := range []string{"/policies?namespace=shop", "/inexact?namespace=shop"} {
		if w := get(h, "/secret"+address); w.Code != http.StatusOK || strings.Contains(text(w), "pay/") {
			t.Errorf("%s: status %d: %s", address, w.Code, text(w))
		}
	}
}

// Pages with the longest names, and agents that report too much, have less than 80 KB.
func TestSizesOfReports(t *testing.T) {
	const most = 80_000
	long, name := strings.Repeat("n", 63), strings.Repeat("p", 250)
	var b strings.Builder
	for i := range 60 {
		rules := 1
		if i == 1 {
			rules = 300
		}
		fmt.Fprintf(&b, "---\n{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: %s%03d, namespace: %s}, spec: {podSelector: {}, policyTypes: [Ingress, Egress], ingress: [%s]}}\n",
			name, i, long, strings.TrimSuffix(strings.Repeat("{}, ", rules), ", "))
	}
	for i := range 60 {
		fmt.Fprintf(&b, "---\n{apiVersion: v1, kind: Node, metadata: {name: %s%03d}}\n", name, i)
	}
	noise := make([]string, 100)
	for i := range noise {
		noise[i] = strings.Repeat("<&>", 2000)
	}
	h := newHandler(t, read(t, manifests.File{Name: "long.yaml", Data: []byte(b.String())}), func(c *Config) {
		c.Agents = func(context.Context) (map[string]Agent, error) {
			all := make(map[string]Agent)
			for i := range 60 {
				all[fmt.Sprintf("%s%03d", name, i)] = Agent{Version: strings.Repeat("v", 1000), Platform: strings.Repeat("k", 1000), Modes: strings.Fields(strings.Repeat("modes:of_the_data_path_of_pods_and_their_nodes_(123456) ", 100)),
					Problems: strings.Fields(strings.Repeat(strings.Repeat("x", 300)+" ", 100)), Repairs: strings.Fields(strings.Repeat(strings.Repeat("y", 300)+" ", 100))}
			}
			return all, nil
		}
		c.Usage = func(context.Context, string) (*usage.Total, error) {
			full := usage.Number{Nodes: 5000, Allowed: 1 << 63, Denied: 1 << 63, Shared: true}
			total := &usage.Total{Systems: []usage.System{{OS: model.Linux, Nodes: 5000, Answered: 5000, Counted: 5000}, {OS: model.Windows, Nodes: 5000, Answered: 5000, Counted: 5000}}, Policies: make(map[string]*usage.PolicyTotal)}
			for i := range 60 {
				p := &usage.PolicyTotal{Flows: full, Packets: full}
				for n := range 300 {
					p.Rules = append(p.Rules, usage.RuleTotal{Direction: "ingress", Rule: n, Flows: full, Packets: full})
				}
				total.Policies[fmt.Sprintf("NetworkPolicy %s/%s%03d", long, name, i)] = p
				total.Inexact = append(total.Inexact, usage.Construct{Policy: fmt.Sprint(long, "/", name, i), Construct: noise[0], On: []usage.Where{{OS: "linux", Platform: noise[0], Reason: strings.Repeat("r", 5000), Nodes: strings.Fields(strings.Repeat(name+" ", 50))},
					{Reason: strings.Repeat("r", 5000)}, {Reason: strings.Repeat("r", 5000)}, {}}})
			}
			for n := range 100 {
				total.Systems[0].Missing = append(total.Systems[0].Missing, usage.Missing{Node: fmt.Sprint(name, n), Why: noise[0]})
			}
			return total, nil
		}
	})
	for _, address := range []string{"/policies", "/policies?part=2", "/policies/NetworkPolicy/" + long + "/" + name + "001", "/nodes", "/inexact"} {
		w := get(h, "/secret"+address)
		t.Logf("%.30s %d bytes", address, w.Body.Len())
		if w.Code != http.StatusOK || w.Body.Len() > most {
			t.Errorf("%s: status %d, %d bytes, want at most %d", address, w.Code, w.Body.Len(), most)
		}
	}
}

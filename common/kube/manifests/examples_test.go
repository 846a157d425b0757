// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
)

const examples = "../../../deploy/examples"

func loadExamples(t *testing.T) model.Objects {
	t.Helper()
	o, warnings, errs := LoadDir(context.Background(), examples, DefaultLimits())
	for _, w := range warnings {
		t.Error(w)
	}
	for _, e := range errs {
		t.Error(e)
	}
	return o
}

func TestExamplesLoad(t *testing.T) {
	o := loadExamples(t)
	if n := len(o.Pods); n < 18 || n > 24 {
		t.Errorf("%d pods, want 18 to 24", n)
	}
	if n := len(o.Policies); n < 12 {
		t.Errorf("%d policies, want at least 12", n)
	}
	if len(o.Namespaces) < 3 || len(o.Nodes) != 0 {
		t.Errorf("%d namespaces, %d nodes; want at least 3, and no nodes", len(o.Namespaces), len(o.Nodes))
	}
	on := map[string]int{}
	windows := model.MakeLabels(map[string]string{"kubernetes.io/os": "windows"})
	for _, p := range o.Pods {
		where := "linux"
		if s, ok := o.NodeSelectors[p.PodID]; ok && s.Matches(windows) {
			where = "windows"
		}
		on[where]++
	}
	if on["windows"] < 3 || on["linux"] < 10 {
		t.Errorf("pods by system: %v", on)
	}
	for _, p := range o.Policies {
		if p.Origin.Kind != "NetworkPolicy" {
			t.Errorf("%s: the examples must work on any cluster", p.Origin)
		}
	}
}

// features lists what of the NetworkPolicy API an object uses.
func features(spec map[string]any) map[string]bool {
	found := map[string]bool{}
	use := func(format string, args ...any) { found[fmt.Sprintf(format, args...)] = true }
	if _, ok := spec["policyTypes"]; ok {
		use("policyTypes explicit")
	} else {
		use("policyTypes defaulted")
	}
	selectorFeatures("podSelector", spec["podSelector"], use)
	for _, d := range []struct{ direction, peers string }{{"ingress", "from"}, {"egress", "to"}} {
		rules, ok := spec[d.direction].([]any)
		use("%s %t", d.direction, ok)
		for _, r := range rules {
			rule, _ := r.(map[string]any)
			listFeatures(d.direction+" peers", rule, d.peers, use)
			listFeatures(d.direction+" ports", rule, "ports", use)
			peers, _ := rule[d.peers].([]any)
			for _, p := range peers {
				peerFeatures(p.(map[string]any), use)
			}
			ports, _ := rule["ports"].([]any)
			for _, p := range ports {
				portFeatures(p.(map[string]any), use)
			}
		}
	}
	return found
}

func listFeatures(what string, rule map[string]any, field string, use func(string, ...any)) {
	switch list, ok := rule[field].([]any); {
	case !ok:
		use("%s absent", what)
	case len(list) == 0:
		use("%s empty", what)
	case len(list) > 1:
		use("%s several", what)
	}
}

func selectorFeatures(what string, v any, use func(string, ...any)) {
	s, ok := v.(map[string]any)
	if !ok {
		return
	}
	if len(s) == 0 {
		use("%s empty", what)
	}
	if s["matchLabels"] != nil {
		use("%s matchLabels", what)
	}
	expressions, _ := s["matchExpressions"].([]any)
	for _, e := range expressions {
		use("operator %s", e.(map[string]any)["operator"])
	}
}

func peerFeatures(p map[string]any, use func(string, ...any)) {
	selectorFeatures("peer podSelector", p["podSelector"], use)
	selectorFeatures("peer namespaceSelector", p["namespaceSelector"], use)
	if p["podSelector"] != nil && p["namespaceSelector"] != nil {
		use("peer with both selectors")
	}
	block, ok := p["ipBlock"].(map[string]any)
	if !ok {
		return
	}
	family := "IPv4"
	if strings.Contains(block["cidr"].(string), ":") {
		family = "IPv6"
	}
	use("ipBlock %s", family)
	if block["except"] != nil {
		use("ipBlock except %s", family)
	}
}

func portFeatures(p map[string]any, use func(string, ...any)) {
	proto, ok := p["protocol"]
	if !ok {
		proto = "defaulted"
	}
	use("protocol %s", proto)
	switch p["port"].(type) {
	case nil:
		use("protocol without port")
	case string:
		use("port by name")
	default:
		use("port by number")
	}
	if p["endPort"] != nil {
		use("endPort")
	}
}

func TestExamplesUseEveryField(t *testing.T) {
	files, err := filepath.Glob(examples + "/*/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range splitYAML(data) {
			raw, err := yaml.YAMLToJSON(d.text)
			if err != nil {
				t.Fatal(err)
			}
			var object struct {
				Kind string
				Spec map[string]any
			}
			if err := json.Unmarshal(raw, &object); err != nil {
				t.Fatal(err)
			}
			if object.Kind != "NetworkPolicy" {
				continue
			}
			for f := range features(object.Spec) {
				found[f] = true
			}
		}
	}
	want := []string{
		"policyTypes explicit", "policyTypes defaulted", "podSelector empty", "podSelector matchLabels",
		"operator In", "operator NotIn", "operator Exists", "operator DoesNotExist",
		"ingress true", "ingress false", "egress true", "egress false",
		"ingress peers absent", "egress peers absent", "egress peers empty", "ingress ports absent", "egress ports empty",
		"ingress peers several", "egress peers several", "ingress ports several", "egress ports several",
		"peer podSelector matchLabels", "peer namespaceSelector matchLabels", "peer namespaceSelector empty", "peer with both selectors",
		"ipBlock IPv4", "ipBlock IPv6", "ipBlock except IPv4", "ipBlock except IPv6",
		"port by number", "port by name", "endPort", "protocol without port",
		"protocol TCP", "protocol UDP", "protocol SCTP", "protocol defaulted",
	}
	for _, f := range want {
		if !found[f] {
			t.Errorf("no example of: %s", f)
		}
	}
	if t.Failed() {
		var all []string
		for f := range found {
			all = append(all, f)
		}
		sort.Strings(all)
		t.Log("found: ", strings.Join(all, "; "))
	}
}

// meaning is a flow between pods of the examples or addresses outside.
type meaning struct {
	src, dst, port string
	want           model.Verdict
}

func meanings() []meaning {
	return []meaning{
		{"8.8.8.8", "reception/portal-0", "TCP/8080", model.Allow},
		{"10.3.3.3", "reception/portal-0", "TCP/8080", model.Deny},
		{"8.8.8.8", "reception/portal-1", "TCP/9102", model.Deny},
		{"8.8.8.8", "reception/appointments-0", "TCP/9000", model.Deny},
		{"reception/portal-0", "reception/appointments-1", "TCP/9000", model.Allow},
		{"reception/portal-0", "records/charts-api-0", "TCP/8080", model.Allow},
		{"reception/portal-0", "records/charts-api-0", "TCP/9000", model.Deny},
		{"reception/appointments-0", "records/charts-api-1", "TCP/9000", model.Allow},
		{"reception/portal-0", "records/chartdb-0", "TCP/5432", model.Deny},
		{"reception/portal-1", "naming/resolver-0", "UDP/53", model.Allow},
		{"reception/portal-1", "naming/resolver-0", "UDP/54", model.Deny},
		{"reception/portal-1", "billing/claims-api-0", "TCP/8080", model.Allow},
		{"records/charts-api-0", "records/chartdb-2", "TCP/5432", model.Allow},
		{"records/chartdb-migrate-0", "records/chartdb-0", "TCP/5432", model.Allow},
		{"records/chartdb-0", "records/chartdb-1", "TCP/5436", model.Allow},
		{"records/chartdb-0", "records/chartdb-1", "TCP/5437", model.Deny},
		{"records/chartdb-0", "8.8.8.8", "TCP/443", model.Deny},
		{"observability/collector-0", "records/chartdb-0", "TCP/9187", model.Allow},
		{"observability/collector-0", "records/chartdb-migrate-0", "TCP/9102", model.Deny},
		{"192.0.2.7", "lab/hl7-bridge-0", "SCTP/2905", model.Allow},
		{"192.0.2.7", "lab/hl7-bridge-0", "TCP/2905", model.Deny},
		{"192.0.2.200", "lab/hl7-bridge-0", "SCTP/2905", model.Deny},
		{"192.0.2.7", "lab/hl7-bridge-0", "TCP/2575", model.Allow},
		{"lab/hl7-bridge-0", "records/charts-api-0", "TCP/9000", model.Allow},
		{"lab/slide-viewer-0", "lab/slide-gateway-1", "TCP/445", model.Allow},
		{"198.51.100.5", "lab/slide-gateway-0", "UDP/5355", model.Allow},
		{"198.51.100.5", "lab/slide-gateway-0", "TCP/446", model.Deny},
		{"records/charts-api-0", "lab/slide-viewer-0", "TCP/8080", model.Allow},
		{"observability/collector-0", "lab/slide-viewer-0", "TCP/8080", model.Deny},
		{"billing/claims-api-0", "billing/tariff-engine-1", "TCP/811", model.Allow},
		{"billing/claims-api-0", "billing/tariff-engine-1", "TCP/812", model.Deny},
		{"billing/claims-api-0", "203.0.113.9", "TCP/443", model.Allow},
		{"billing/claims-api-0", "203.0.113.200", "TCP/443", model.Deny},
		{"billing/claims-api-0", "billing/invoice-printer-0", "TCP/631", model.Allow},
		{"billing/invoice-printer-0", "198.51.100.130", "UDP/9100", model.Allow},
		{"billing/tariff-engine-0", "billing/invoice-printer-0", "TCP/631", model.Deny},
		{"reception/appointments-0", "observability/collector-0", "UDP/8125", model.Allow},
		{"8.8.8.8", "observability/collector-0", "UDP/8125", model.Deny},
		{"observability/collector-0", "observability/node-probe-0", "TCP/9100", model.Allow},
		{"10.3.3.3", "observability/node-probe-0", "TCP/7", model.Allow},
		{"8.8.8.8", "naming/resolver-1", "TCP/53", model.Allow},
	}
}

// TestVerdictsOfExamples checks that the policies do what their comments say.
func TestVerdictsOfExamples(t *testing.T) {
	o := loadExamples(t)
	at := map[string]netip.Addr{}
	for i, p := range o.Pods {
		p.IPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 244, 0, byte(10 + i)})}
		at[p.PodID.String()] = p.IPs[0]
	}
	for _, text := range []string{"203.0.113.9", "203.0.113.200", "192.0.2.7", "192.0.2.200", "198.51.100.5", "198.51.100.130", "10.3.3.3", "8.8.8.8"} {
		at[text] = netip.MustParseAddr(text)
	}
	reference := policy.NewEvaluator(o.Snapshot())
	for _, c := range meanings() {
		proto, port, _ := strings.Cut(c.port, "/")
		p, err := model.ParseProtocol(proto)
		if err != nil {
			t.Fatal(err)
		}
		f := model.Flow{Src: at[c.src], Dst: at[c.dst], Protocol: p}
		if _, err := fmt.Sscan(port, &f.Port); err != nil || !f.Src.IsValid() || !f.Dst.IsValid() {
			t.Fatalf("bad case %v", c)
		}
		egress, ingress := reference.Flow(f)
		if got := min(egress.Verdict, ingress.Verdict); got != c.want {
			t.Errorf("%s -> %s %s: %s, want %s\n  egress %s\n  ingress %s", c.src, c.dst, c.port, got, c.want, egress, ingress)
		}
	}
}

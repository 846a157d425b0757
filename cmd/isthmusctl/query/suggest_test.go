// SPDX-License-Identifier: Apache-2.0

package query

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/analysis/explain"
	"github.com/isthmus-net/isthmus/common/kube/manifests"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
	"github.com/isthmus-net/isthmus/test/world"
)

// A suggested rule, read as a manifest, opens the end that it is for.
func TestSuggestedRules(t *testing.T) {
	suggested := 0
	for i, shape := range reachShapes {
		for seed := range seeds() {
			s := world.Random(seed+uint64(400*i), shape)
			addrs, ports := world.Probes(s)
			for _, src := range addrs {
				for _, dst := range addrs {
					if src == dst || src.Is4() != dst.Is4() {
						continue
					}
					at := ports[suggested%len(ports)]
					f := model.Flow{Src: src, Dst: dst, Protocol: at.Protocol, Port: at.Port}
					for _, side := range explain.Flow(s, f, nil, nil).Sides {
						if side.Suggestion != nil {
							suggested++
							checkSuggestion(t, s, f, &side)
						}
					}
				}
			}
		}
	}
	t.Logf("suggested=%d", suggested)
	if suggested < 500 {
		t.Error("too few suggestions")
	}
}

func checkSuggestion(t *testing.T, s *model.Snapshot, f model.Flow, side *explain.Side) {
	t.Helper()
	rule, err := json.Marshal(side.Suggestion.Rule)
	if err != nil {
		t.Fatal(err)
	}
	namespace, _, _ := strings.Cut(side.Pod, "/")
	text := fmt.Sprintf(`{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "suggested", "namespace": %q},
		"spec": {"podSelector": {}, "policyTypes": [%q], %q: [%s]}}`, namespace, strings.ToUpper(side.Direction[:1])+side.Direction[1:], side.Direction, rule)
	o, _, errs := manifests.Parse("suggested.json", []byte(text), manifests.DefaultLimits())
	if len(errs) > 0 {
		t.Fatalf("%v: %s", errs[0], text)
	}
	egress, ingress := policy.NewEvaluator(swapped(s, nil, o.Policies[0])).Flow(f)
	got := ingress
	if side.Direction == "egress" {
		got = egress
	}
	if got.Verdict != model.Allow {
		t.Fatalf("%v: %s of %s is still denied with %s", f, side.Direction, side.Pod, rule)
	}
}

// The command is one for a shell, whatever labels an API server has stored.
func TestSuggestedCommand(t *testing.T) {
	pod := func(name, ip, label string) string {
		text, err := json.Marshal(label)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %q, "namespace": "shop", "labels": {"app": %s}},
			"spec": {"nodeName": "n", "containers": [{"name": "c"}]}, "status": {"phase": "Running", "podIPs": [{"ip": %q}]}}`, name, text, ip)
	}
	const evil = "a'; touch /tmp/x; echo $(id) `id`\\"
	text := pod("web", "10.0.0.1", evil) + pod("db", "10.0.0.2", "db") + `{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
		"metadata": {"name": "db", "namespace": "shop"}, "spec": {"podSelector": {"matchLabels": {"app": "db"}}}}`
	o, _, errs := manifests.Reading{Limits: manifests.DefaultLimits(), Stored: true}.Parse("m.json", []byte(text))
	if len(errs) > 0 {
		t.Fatal(errs[0])
	}
	s := o.Snapshot()
	f := model.Flow{Src: o.Pods[1].IPs[0], Dst: o.Pods[0].IPs[0], Protocol: model.TCP, Port: 5432}
	side := explain.Flow(s, f, nil, nil).Sides[1]
	if side.Suggestion == nil {
		t.Fatalf("no suggestion: %+v", side)
	}
	script := "kubectl() { for a in \"$@\"; do printf '%s\\0' \"$a\"; done; }\n" + side.Suggestion.Kubectl
	out, err := exec.Command("sh", "-c", script).Output()
	args := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
	if err != nil || len(args) != 8 {
		t.Fatalf("%v: %q", err, args)
	}
	var patch []struct {
		Op, Path string
		Value    []explain.SuggestedRule
	}
	if err := json.Unmarshal([]byte(args[7]), &patch); err != nil {
		t.Fatal(err)
	}
	if args[2] != "db" || args[4] != "shop" || patch[0].Op != "add" || patch[0].Path != "/spec/ingress" ||
		patch[0].Value[0].From[0].Pods.Labels["app"] != evil || patch[0].Value[0].Ports[0].Port != 5432 {
		t.Errorf("%q: %+v", args, patch)
	}
}

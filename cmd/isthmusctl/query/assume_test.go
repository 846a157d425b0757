// SPDX-License-Identifier: Apache-2.0

package query

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/clitest"
)

const policyHead = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: web, namespace: shop}\nspec: "

// clusterHead begins a ClusterNetworkPolicy.
const clusterHead = "---\napiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\nmetadata: {name: guard}\nspec: "

// diff reports a change of policies without any pods if it changes a verdict for pods that
// the policies may select.
func TestDiffPoliciesAlone(t *testing.T) {
	cluster := func(spec string) string { return policyHead + "{podSelector: {}}\n" + clusterHead + spec }
	for name, c := range map[string]struct {
		a, b string
		same bool
	}{
		"open, then closed":        {policyHead + "{podSelector: {}, ingress: [{}]}", policyHead + "{podSelector: {}}", false},
		"a policy goes":            {policyHead + "{podSelector: {matchLabels: {app: web}}}", "{apiVersion: v1, kind: Namespace, metadata: {name: shop}}", false},
		"another subject":          {policyHead + "{podSelector: {matchLabels: {app: web}}}", policyHead + "{podSelector: {matchLabels: {app: api}}}", false},
		"a value less":             {policyHead + "{podSelector: {matchExpressions: [{key: app, operator: In, values: [a, b]}]}}", policyHead + "{podSelector: {matchLabels: {app: a}}}", false},
		"a requirement more":       {policyHead + "{podSelector: {matchLabels: {app: a}}}", policyHead + "{podSelector: {matchLabels: {app: a, tier: x}}}", false},
		"absent or not equal":      {policyHead + "{podSelector: {matchExpressions: [{key: app, operator: NotIn, values: [a]}]}}", policyHead + "{podSelector: {matchExpressions: [{key: app, operator: DoesNotExist}]}}", false},
		"exists or not equal":      {policyHead + "{podSelector: {matchExpressions: [{key: app, operator: Exists}]}}", policyHead + "{podSelector: {matchExpressions: [{key: app, operator: Exists}, {key: app, operator: NotIn, values: [b]}]}}", false},
		"another peer":             {policyHead + "{podSelector: {}, ingress: [{from: [{podSelector: {matchLabels: {app: a}}}]}]}", policyHead + "{podSelector: {}, ingress: [{from: [{podSelector: {matchLabels: {app: b}}}]}]}", false},
		"all namespaces":           {policyHead + "{podSelector: {}, ingress: [{from: [{podSelector: {}}]}]}", policyHead + "{podSelector: {}, ingress: [{from: [{namespaceSelector: {}}]}]}", false},
		"labelled namespaces":      {policyHead + "{podSelector: {}, ingress: [{from: [{namespaceSelector: {}}]}]}", policyHead + "{podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {team: a}}}]}]}", false},
		"another namespace":        {policyHead + "{podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: a}}}]}]}", policyHead + "{podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: b}}}]}]}", false},
		"another port":             {policyHead + "{podSelector: {}, ingress: [{ports: [{port: 80}]}]}", policyHead + "{podSelector: {}, ingress: [{ports: [{port: 81}]}]}", false},
		"another name of a port":   {policyHead + "{podSelector: {}, ingress: [{ports: [{port: http}]}]}", policyHead + "{podSelector: {}, ingress: [{ports: [{port: web}]}]}", false},
		"another block":            {policyHead + "{podSelector: {}, egress: [{to: [{ipBlock: {cidr: 192.0.2.0/24}}]}]}", policyHead + "{podSelector: {}, egress: [{to: [{ipBlock: {cidr: 192.0.2.0/25}}]}]}", false},
		"another action":           {cluster("{tier: Admin, priority: 1, subject: {namespaces: {matchLabels: {team: a}}}, ingress: [{action: Deny, from: [{namespaces: {}}]}]}"), cluster("{tier: Admin, priority: 1, subject: {namespaces: {matchLabels: {team: a}}}, ingress: [{action: Pass, from: [{namespaces: {}}]}]}"), false},
		"another namespace's pods": {cluster("{tier: Admin, priority: 1, subject: {namespaces: {matchLabels: {team: a}}}, egress: [{action: Deny, to: [{namespaces: {}}]}]}"), cluster("{tier: Admin, priority: 1, subject: {namespaces: {matchLabels: {team: b}}}, egress: [{action: Deny, to: [{namespaces: {}}]}]}"), false},
		"pods of one namespace":    {policyHead + "{podSelector: {}, ingress: [{from: [{podSelector: {}}]}]}", policyHead + "{podSelector: {}}", false},
		"replicas of one pod":      {policyHead + "{podSelector: {matchLabels: {app: a}}, ingress: [{from: [{podSelector: {matchLabels: {app: a}}}]}]}", policyHead + "{podSelector: {matchLabels: {app: a}}}", false},
		"labels of a namespace": {clusterHead + "{tier: Admin, priority: 1, subject: {namespaces: {matchLabels: {team: a}}}, ingress: [{action: Deny, from: [{namespaces: {}}]}]}\n---\n{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {team: b}}}",
			clusterHead + "{tier: Admin, priority: 1, subject: {namespaces: {matchLabels: {team: a}}}, ingress: [{action: Deny, from: [{namespaces: {}}]}]}\n---\n{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {team: a}}}", false},
		"the same": {policyHead + "{podSelector: {}, ingress: [{}]}", policyHead + "{podSelector: {matchLabels: {}}, policyTypes: [Ingress], ingress: [{from: []}]}", true},
		"rules in another order": {policyHead + "{podSelector: {}, ingress: [{ports: [{port: 80}]}, {ports: [{port: 81}]}]}",
			policyHead + "{podSelector: {}, ingress: [{ports: [{port: 81}]}, {ports: [{port: 80}]}]}", true},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := clitest.Directory(t, c.a), clitest.Directory(t, c.b)
			for _, args := range [][]string{{a, b}, {b, a}} {
				status, out, errs := ctl("diff", args[0], args[1])
				if (status == 0) != c.same || status == 2 || strings.HasSuffix(out, "changes=0\n") != c.same {
					t.Errorf("exit status %d, %q", status, out)
				}
				if !c.same && !strings.Contains(errs, "policies that differ and select none: ") {
					t.Errorf("what was assumed is not said: %q", errs)
				}
			}
			if status, out, errs := ctl("diff", "--placeholders=false", a, b); strings.Contains(errs, "assumed:") ||
				status == 2 && !strings.Contains(errs, "nothing to compare: no pod is in both") {
				t.Errorf("without assumed pods: exit status %d, %q, %q", status, out, errs)
			}
		})
	}
}

// diff lists policies that differ even if no verdict does.
func TestDiffNamesPolicies(t *testing.T) {
	pod := "{apiVersion: v1, kind: Pod, metadata: {name: p, namespace: shop, labels: {app: web}}, spec: {containers: [{name: c}]}}\n---\n"
	a := clitest.Directory(t, pod+policyHead+"{podSelector: {matchLabels: {app: web}}, ingress: [{from: [{podSelector: {matchLabels: {app: absent}}}]}]}")
	b := clitest.Directory(t, pod+policyHead+"{podSelector: {matchLabels: {app: web}}, ingress: [{from: [{podSelector: {matchLabels: {app: noone}}}]}]}")
	status, out, _ := ctl("diff", a, b)
	if want := "policies that differ and change no verdict: NetworkPolicy shop/web\ndiff: opens=0 closes=0 changes=0\n"; status != 0 || out != want {
		t.Errorf("exit status %d, %q, want %q", status, out, want)
	}
	_, out, _ = ctl("diff", "-o", "json", a, b)
	var r struct {
		Policies []string `json:"policies_that_differ"`
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil || !slices.Equal(r.Policies, []string{"NetworkPolicy shop/web"}) {
		t.Errorf("%v: %s", err, out)
	}
	if status, out, _ := ctl("diff", a, a); status != 0 || out != "diff: opens=0 closes=0 changes=0\n" {
		t.Errorf("exit status %d, %q", status, out)
	}
}

// diff adds no placeholder pod for a policy if the manifests have pods that it selects.
func TestDiffAssumesNoMoreThanItMust(t *testing.T) {
	pods := "{apiVersion: v1, kind: Pod, metadata: {name: p, namespace: shop, labels: {app: web}}, spec: {containers: [{name: c}]}}\n---\n"
	a := clitest.Directory(t, pods+policyHead+"{podSelector: {}, ingress: [{from: [{podSelector: {matchLabels: {app: absent}}}]}]}")
	if _, _, errs := ctl("diff", a, a); strings.Contains(errs, "select none") {
		t.Errorf("assumed: %q", errs)
	}
}

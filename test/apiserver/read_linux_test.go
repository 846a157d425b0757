// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/kube/manifests"
	"github.com/isthmus-net/isthmus/common/kube/watch"
	"github.com/isthmus-net/isthmus/common/model"
)

// shop is a small cluster with a policy of every kind.
const shop = `
{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {team: a}, annotations: {isthmus.dev/allowed-addresses: 10.244.1.0/28}}}
---
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {kubernetes.io/os: linux}}
spec: {podCIDR: 10.244.1.0/24, podCIDRs: [10.244.1.0/24, "fd00:1::/64"]}
status: {addresses: [{type: InternalIP, address: 192.168.0.1}, {type: Hostname, address: n1}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}, annotations: {isthmus.dev/addresses: 10.244.1.2, other: x}}
spec: {nodeName: n1, containers: [{name: c, image: none, ports: [{name: http, containerPort: 80}]}]}
status: {phase: Running, podIP: 10.244.1.2, podIPs: [{ip: 10.244.1.2}, {ip: "fd00:1::2"}]}
---
apiVersion: v1
kind: Pod
metadata: {name: db, namespace: shop, labels: {app: db}}
spec: {nodeName: n1, containers: [{name: c, image: none}]}
status: {phase: Running, podIP: 10.244.1.3, podIPs: [{ip: 10.244.1.3}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db, namespace: shop}
spec:
  podSelector: {matchLabels: {app: db}}
  ingress: [{from: [{podSelector: {matchLabels: {app: web}}}], ports: [{port: 5432}]}]
---
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: guard}
spec:
  tier: Admin
  priority: 7
  subject: {namespaces: {}}
  egress: [{name: metadata, action: Deny, to: [{networks: [169.254.169.254/32]}]}]
---
apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {name: old}
spec:
  priority: 9
  subject: {namespaces: {}}
  egress: [{name: r, action: Pass, to: [{networks: [10.0.0.0/8]}]}]
---
apiVersion: policy.networking.k8s.io/v1alpha1
kind: BaselineAdminNetworkPolicy
metadata: {name: default}
spec:
  subject: {namespaces: {matchLabels: {team: a}}}
  ingress: [{name: none, action: Deny, from: [{namespaces: {}}]}]
`

// read follows the API server as an account does.
func read(t *testing.T, kubeconfig string, change func(*watch.APIConfig)) *follower {
	t.Helper()
	cfg := watch.DefaultAPIConfig(kubeconfig)
	if change != nil {
		change(&cfg)
	}
	source, err := watch.NewAPIServer(cfg, quiet())
	if err != nil {
		t.Fatal(err)
	}
	return follow(t, source)
}

// The role of the release is enough to read. The result equals that of the same objects in a file.
func TestReadWithShippedRole(t *testing.T) {
	s := running(t)
	apply(t, s, shop)
	f := read(t, account(t, s, "reader", "isthmus-agent"), nil)
	got := f.until("everything", func(*model.Snapshot) bool { return true })
	f.noProblems()
	want, _, errs := manifests.Parse("shop.yaml", []byte(shop), manifests.DefaultLimits())
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	if g, w := render(got, "shop"), render(want.Snapshot(), "shop"); g != w {
		t.Errorf("the API server says\n%s\nthe file says\n%s", g, w)
	}

	// A change of each kind arrives.
	apply(t, s, `
{apiVersion: v1, kind: Namespace, metadata: {name: late, labels: {team: b}}}
---
{apiVersion: v1, kind: Pod, metadata: {name: job, namespace: late}, spec: {nodeName: n1, containers: [{name: c, image: none}]}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: deny, namespace: late}, spec: {podSelector: {}}}`)
	f.until("policy", func(s *model.Snapshot) bool {
		_, policy := s.Policies.Get(model.Origin{Kind: "NetworkPolicy", Namespace: "late", Name: "deny"})
		_, pod := s.Pods.Get(model.PodID{Namespace: "late", Name: "job"})
		team, _ := s.Namespace("late").Labels.Get("team")
		return policy && pod && team == "b"
	})
}

// An account without the role gets an error that names the missing right. Nothing is published: without policies
// everything would be allowed.
func TestReadForbidden(t *testing.T) {
	s := running(t)
	f := read(t, account(t, s, "nobody"), nil)
	for _, resource := range []string{"pods", "namespaces", "nodes", "networkpolicies"} {
		f.problem(resource, "is forbidden", "grant this program's account the right")
	}
	if len(f.all()) > 0 {
		t.Error("published without the right to read")
	}
}

// An API server that does not stream lists answers in pages.
func TestReadPages(t *testing.T) {
	s := running(t)
	ctx := context.Background()
	var pods strings.Builder
	pods.WriteString("{apiVersion: v1, kind: Namespace, metadata: {name: many}}\n")
	for i := range 23 {
		fmt.Fprintf(&pods, "---\n{apiVersion: v1, kind: Pod, metadata: {name: p%d, namespace: many}, spec: {containers: [{name: c, image: none}]}}\n", i)
	}
	apply(t, s, pods.String())
	if err := s.KillAPI(); err != nil {
		t.Fatal(err)
	}
	if err := s.StartAPI(ctx, "--feature-gates=WatchList=false"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.KillAPI(); err != nil {
			t.Error(err)
		}
		if err := s.StartAPI(ctx); err != nil {
			t.Error(err)
		}
	})
	before, err := s.requests(ctx, "LIST", "pods")
	if err != nil {
		t.Fatal(err)
	}
	f := read(t, account(t, s, "pager", "isthmus-agent"), func(c *watch.APIConfig) { c.PageSize = 5 })
	got := f.until("pods", func(*model.Snapshot) bool { return true })
	n := 0
	for id := range got.Pods.All() {
		if id.Namespace == "many" {
			n++
		}
	}
	if n != 23 {
		t.Errorf("%d pods, want 23", n)
	}
	f.noProblems()
	after, err := s.requests(ctx, "LIST", "pods")
	if err != nil {
		t.Fatal(err)
	}
	if after-before < 5 {
		t.Errorf("%d lists for 23 pods in pages of 5", after-before)
	}
}

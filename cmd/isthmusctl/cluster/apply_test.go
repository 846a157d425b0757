// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"slices"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/kube/manifests"
	"github.com/isthmus-net/isthmus/common/model"
)

const running = `
{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {team: a, stays: "yes"}}}
---
{apiVersion: v1, kind: Node, metadata: {name: n1}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web-5d9c-x7k2p, namespace: shop, labels: {app: web, old: x, pod-template-hash: 5d9c}}, spec: {containers: [{name: c}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: single, namespace: shop, labels: {app: single}}, spec: {containers: [{name: c}]}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: a, namespace: shop}, spec: {podSelector: {}}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: b, namespace: shop}, spec: {podSelector: {}}}
---
{apiVersion: v1, kind: Service, metadata: {name: db, namespace: shop}, spec: {clusterIP: 10.96.0.5, selector: {app: db}, ports: [{port: 1}]}}
`

const applied = `
{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {team: b}}}
---
{apiVersion: v1, kind: Node, metadata: {name: other}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: shop}, spec: {replicas: 3, selector: {matchLabels: {app: web}},
  template: {metadata: {labels: {app: web, new: z}}, spec: {containers: [{name: c, ports: [{name: http, containerPort: 80}]}]}}}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: api, namespace: shop}, spec: {selector: {matchLabels: {app: api}},
  template: {metadata: {labels: {app: api}}, spec: {containers: [{name: c}]}}}}
---
{apiVersion: v1, kind: Pod, metadata: {name: single, namespace: shop, labels: {tier: x}}, spec: {containers: [{name: c}]}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: b, namespace: shop}, spec: {podSelector: {matchLabels: {app: web}}}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: c, namespace: shop}, spec: {podSelector: {}}}
---
{apiVersion: v1, kind: Service, metadata: {name: db, namespace: shop}, spec: {selector: {app: db}, ports: [{port: 2}]}}
`

func parse(t *testing.T, text string) model.Objects {
	t.Helper()
	o, _, errs := manifests.Parse("m.yaml", []byte(text), manifests.DefaultLimits())
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	return o
}

// Apply changes what kubectl apply changes, leaves both inputs alone, and has no effect the second time.
func TestApply(t *testing.T) {
	live, change := parse(t, running), parse(t, applied)
	before := describe(live)
	got := Apply(live, change, false)
	want := []string{"namespace shop kubernetes.io/metadata.name=shop,stays=yes,team=b", "node n1",
		"pod shop/api-0 app=api", "pod shop/single app=single,tier=x", "pod shop/web-5d9c-x7k2p app=web,new=z,pod-template-hash=5d9c TCP 80",
		"policy shop/a {}", "policy shop/b {app=web}", "policy shop/c {}", "service shop/db 10.96.0.5 2"}
	if text := describe(got); !slices.Equal(text, want) {
		t.Errorf("applied:\n%s\nwant:\n%s", strings.Join(text, "\n"), strings.Join(want, "\n"))
	}
	if after := describe(live); !slices.Equal(after, before) {
		t.Errorf("the cluster itself changed:\n%s", strings.Join(after, "\n"))
	}
	if again := describe(Apply(got, change, false)); !slices.Equal(again, want) {
		t.Errorf("applied again:\n%s", strings.Join(again, "\n"))
	}
	pruned := describe(Apply(live, change, true))
	if slices.Contains(pruned, "policy shop/a {}") || !slices.Contains(pruned, "policy shop/c {}") {
		t.Errorf("pruned:\n%s", strings.Join(pruned, "\n"))
	}
}

func describe(o model.Objects) (all []string) {
	for _, n := range o.Namespaces {
		all = append(all, "namespace "+n.Name+" "+n.Labels.String())
	}
	for _, n := range o.Nodes {
		all = append(all, "node "+n.Name)
	}
	for _, p := range o.Pods {
		text := "pod " + p.PodID.String() + " " + p.Labels.String()
		for _, n := range p.Ports {
			text += " " + n.Protocol.String() + " 80"
		}
		all = append(all, text)
	}
	for _, p := range o.Policies {
		all = append(all, "policy "+p.Origin.Namespace+"/"+p.Origin.Name+" {"+p.Subject.Pods.String()+"}")
	}
	for _, s := range o.Services {
		text := "service " + s.Namespace + "/" + s.Name
		for _, a := range s.Addresses {
			text += " " + a.String()
		}
		for _, p := range s.Ports {
			text += " " + string(rune('0'+p.Port))
		}
		all = append(all, text)
	}
	return all
}

// SPDX-License-Identifier: Apache-2.0

package page

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/kube/manifests"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
	"github.com/isthmus-net/isthmus/test/world"
)

// shop is a cluster of two nodes with both operating systems. Workload web of namespace shop reaches port 80 of api in
// namespace pay; nothing else reaches pay.
const shop = `
{apiVersion: v1, kind: Node, metadata: {name: n1, labels: {kubernetes.io/os: linux}}, spec: {podCIDRs: [10.0.1.0/24, "fd00:1::/64"]}, status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: n2, labels: {kubernetes.io/os: windows}}, spec: {podCIDRs: [10.0.2.0/24]}, status: {addresses: [{type: InternalIP, address: 192.0.2.2}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web-7d-a, namespace: shop, labels: {app: web, pod-template-hash: 7d}}, spec: {nodeName: n1, containers: [{name: c, image: i}]}, status: {podIP: 10.0.1.2, podIPs: [{ip: 10.0.1.2}, {ip: "fd00:1::2"}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web-7d-b, namespace: shop, labels: {app: web, pod-template-hash: 7d}}, spec: {nodeName: n2, containers: [{name: c, image: i}]}, status: {podIP: 10.0.2.2, podIPs: [{ip: 10.0.2.2}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: tools, namespace: shop, labels: {app: tools}}, spec: {nodeName: n1, containers: [{name: c, image: i}]}, status: {podIP: 10.0.1.3, podIPs: [{ip: 10.0.1.3}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: api-0, namespace: pay, labels: {app: api, apps.kubernetes.io/pod-index: "0", statefulset.kubernetes.io/pod-name: api-0}}, spec: {nodeName: n1, containers: [{name: c, image: i, ports: [{name: http, containerPort: 8080}]}]}, status: {podIP: 10.0.1.4, podIPs: [{ip: 10.0.1.4}, {ip: "fd00:1::4"}]}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: api, namespace: pay}, spec: {podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: shop}}, podSelector: {matchLabels: {app: web}}}], ports: [{port: 80}]}]}}
`

func read(t testing.TB, files ...manifests.File) *Cluster {
	t.Helper()
	o, warnings, errs := manifests.Reading{Limits: manifests.DefaultLimits()}.ParseFiles(files)
	if len(errs) > 0 {
		t.Fatal(errs[0])
	}
	c := &Cluster{Snapshot: o.Snapshot(), Services: o.Services, Places: o.Places, Workloads: o.Workloads, Source: "the test", At: time.Unix(1_800_000_000, 0)}
	for _, w := range warnings {
		c.Remarks = append(c.Remarks, w.String())
	}
	return c
}

func readShop(t testing.TB) *Cluster {
	return read(t, manifests.File{Name: "shop.yaml", Data: []byte(shop)})
}

// large is a cluster of 10,000 pods and 2,000 policies.
func large(t testing.TB) *Cluster {
	t.Helper()
	var files []manifests.File
	for name, text := range (world.Scale{Pods: 10_000, Policies: 2000, Seed: 1}).Manifests() {
		files = append(files, manifests.File{Name: name, Data: text})
	}
	slices.SortFunc(files, func(a, b manifests.File) int { return len(a.Name) - len(b.Name) })
	return read(t, files...)
}

func TestLevels(t *testing.T) {
	v := NewView(readShop(t))
	show := func(all []End, err error) string {
		if err != nil {
			return err.Error()
		}
		text := ""
		for _, e := range all {
			text += fmt.Sprintf("%s %d %s; ", e.Key, e.Pods, e.Systems())
		}
		return text
	}
	spaces := func(v6 bool) ([]End, error) { return v.Namespaces(v6), nil }
	for _, c := range []struct{ got, want string }{
		{show(spaces(false)), "pay 1 linux; shop 3 linux, windows; "},
		{show(spaces(true)), "pay 1 linux; shop 1 linux; "},
		{show(v.Workloads(false, "shop")), "Deployment/web 2 linux, windows; Pod/tools 1 linux; "},
		{show(v.Workloads(false, "pay")), "StatefulSet/api 1 linux; "},
		{show(v.Workloads(false, "bank")), `namespace "bank" has no pods with IPv4 addresses that policies apply to: check the spelling`},
		{show(v.Pods(false, "shop", "Deployment/web")), "web-7d-a 1 linux; web-7d-b 1 windows; "},
		{show(v.Pods(true, "shop", "Deployment/web")), "web-7d-a 1 linux; "},
		{show(v.Pods(false, "shop", "Deployment/x")), `namespace "shop" has no workload "Deployment/x": give KIND/NAME, as Deployment/web`},
	} {
		if c.got != c.want {
			t.Errorf("got  %s\nwant %s", c.got, c.want)
		}
	}
}

func TestCells(t *testing.T) {
	v := NewView(readShop(t))
	port := Port{model.TCP, 80}
	show := func(rows, columns []End, only *Port) string {
		t.Helper()
		all, err := v.Cells(rows, columns, only)
		if err != nil {
			t.Fatal(err)
		}
		text := ""
		for i := range all {
			for _, c := range all[i] {
				text += fmt.Sprintf("%s %q %s; ", c.Kind, c.Text, c.Port)
			}
		}
		return text
	}
	spaces := v.Namespaces(false)
	workloads, _ := v.Workloads(false, "shop")
	pay, _ := v.Workloads(false, "pay")
	tools, _ := v.Pods(false, "shop", "Pod/tools")
	api, _ := v.Pods(false, "pay", "StatefulSet/api")
	for _, c := range []struct{ got, want string }{
		{show(spaces, spaces, nil), `self "itself" TCP 80; all "all" TCP 80; some "2 of 3 pairs" TCP 80; all "all" TCP 80; `},
		{show(workloads, pay, nil), `ports "TCP 80" TCP 80; none "none" TCP 80; `},
		{show(workloads, pay, &port), `all "yes" TCP 80; none "no" TCP 80; `},
		{show(tools, api, nil), `none "none" TCP 8080; `},
		{show(tools, tools, nil), `self "itself" TCP 80; `},
		{show(workloads[:1], workloads[:1], nil), `all "all" TCP 80; `},
	} {
		if c.got != c.want {
			t.Errorf("got  %s\nwant %s", c.got, c.want)
		}
	}
}

// Cells of random clusters are those of the reference evaluator, pod by pod, on each level.
func TestCellsAgreeWithEvaluator(t *testing.T) {
	for seed := range uint64(40) {
		s := world.Random(seed, world.Shapes[int(seed)%len(world.Shapes)])
		v, reference := NewView(&Cluster{Snapshot: s}), policy.NewEvaluator(s)
		for _, v6 := range []bool{false, true} {
			for _, port := range []Port{{model.TCP, 80}, {model.UDP, 53}, {model.TCP, 65535}} {
				compare(t, v, reference, v6, port)
			}
		}
	}
}

// compare compares the matrix of namespaces with what the evaluator says about pairs of their pods.
func compare(t *testing.T, v *View, reference *policy.Evaluator, v6 bool, port Port) {
	t.Helper()
	spaces := v.Namespaces(v6)
	cells, err := v.Cells(spaces, spaces, &port)
	if err != nil {
		t.Fatal(err)
	}
	pods := make(map[string][]netip.Addr)
	for _, g := range v.partition.Groups(v6) {
		for _, m := range g.Pods {
			pods[m.ID.Namespace] = append(pods[m.ID.Namespace], m.Addrs[0])
		}
	}
	for i, from := range spaces {
		for j, to := range spaces {
			open, pairs := 0, 0
			for _, a := range pods[from.Key] {
				for _, b := range pods[to.Key] {
					if a == b {
						continue
					}
					pairs++
					egress, ingress := reference.Flow(model.Flow{Src: a, Dst: b, Protocol: port.Protocol, Port: port.Number})
					if egress.Verdict == model.Allow && ingress.Verdict == model.Allow {
						open++
					}
				}
			}
			want := fmt.Sprintf("some %d of %d pairs", open, pairs)
			switch {
			case pairs == 0:
				want = "self itself"
			case open == 0:
				want = "none no"
			case open == pairs:
				want = "all yes"
			}
			if got := string(cells[i][j].Kind) + " " + cells[i][j].Text; got != want {
				t.Errorf("%s to %s, %s: %s, want %s", from.Key, to.Key, port, got, want)
			}
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"", "rows=a&row=2", "port=80&protocol=udp&family=6", "from=a%2Fb&to=%ff&part=9999999999", "x=1", "row=1&row=2", "%zz"} {
		f.Add(s)
	}
	v := NewView(readShop(f))
	names := []string{"rows", "columns", "find", "row", "column", "part", "from", "to", "port", "protocol", "family"}
	f.Fuzz(func(t *testing.T, raw string) {
		p, err := parse(raw, names...)
		if err != nil {
			return
		}
		if min(p.row, p.column, p.part) < 1 || len(p.rows) > maxValue || len(p.find) > maxValue {
			t.Fatalf("%q: %+v", raw, p)
		}
		again, err := parse(p.query()[min(1, len(p.query())):], names...)
		if err != nil || again != p {
			t.Fatalf("%q: %+v becomes %+v, %v", raw, p, again, err)
		}
		if c := cut([]int{1, 2, 3}, p.part, 2); len(c.Items) == 0 || c.Part > c.Parts {
			t.Fatalf("%q: part %+v", raw, c)
		}
		if only, err := p.only(); err == nil {
			if _, err := v.Cells(v.Namespaces(p.v6), v.Namespaces(p.v6), only); err != nil {
				t.Fatalf("%q: %v", raw, err)
			}
		}
		_, _ = p.flow(v.cluster.Snapshot)
	})
}

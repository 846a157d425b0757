// SPDX-License-Identifier: Apache-2.0

package service_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/analysis/reach"
	"github.com/isthmus-net/isthmus/common/analysis/service"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
	"github.com/isthmus-net/isthmus/test/world"
)

// everywhere is a Service without a selector whose backends are all addresses that a world knows: of pods, of
// nodes, and outside. It has a port for every probe.
func everywhere(s *model.Snapshot) (*model.Service, *model.EndpointSlice) {
	addrs, ports := world.Probes(s)
	owner := &model.Service{Namespace: "shop", Name: "all"}
	slice := &model.EndpointSlice{Namespace: "shop", Name: "all-1", Service: "all"}
	for _, p := range s.Pods.All() {
		addrs = append(addrs, p.IPs...)
	}
	for _, n := range s.Nodes.All() {
		addrs = append(addrs, n.Addresses...)
	}
	seen := make(map[netip.Addr]bool)
	for _, a := range addrs {
		if !seen[a] {
			slice.Addresses = append(slice.Addresses, a)
		}
		seen[a] = true
	}
	for i, p := range ports {
		if p.Protocol.HasPorts() {
			name := fmt.Sprint("p", i)
			owner.Ports = append(owner.Ports, model.ServicePort{Name: name, Protocol: p.Protocol, Port: uint16(1000 + i)})
			slice.Ports = append(slice.Ports, model.NamedPort{Name: name, Protocol: p.Protocol, Port: p.Port})
		}
	}
	return owner, slice
}

// Every verdict for a backend equals that of the reference evaluator, for every pod of the source and for ranges.
func TestReachAgreesWithEvaluate(t *testing.T) {
	flows, denied := 0, 0
	for i, shape := range []world.Shape{{Pods: 8, Policies: 6}, {Pods: 9, Policies: 8, IPv6: true, Tiers: true}, {Pods: 10, Policies: 10, Tiers: true, IPv6: true, Nodes: 2}} {
		for seed := range uint64(6) {
			s := world.Random(seed+uint64(100*i), shape)
			owner, slice := everywhere(s)
			all := service.New(s, []*model.Service{owner}, []*model.EndpointSlice{slice})
			for _, v6 := range []bool{false, true} {
				f, d := checkReach(t, s, all, owner, v6)
				flows, denied = flows+f, denied+d
			}
		}
	}
	t.Logf("flows=%d denied=%d", flows, denied)
	if denied == 0 || denied == flows {
		t.Error("all verdicts are the same")
	}
}

func checkReach(t *testing.T, s *model.Snapshot, all *service.Services, owner *model.Service, v6 bool) (flows, denied int) {
	t.Helper()
	p := reach.New(s)
	reference := policy.NewEvaluator(s)
	from := p.Groups(v6)
	var routes []*service.Route
	for _, port := range owner.Ports {
		routes = append(routes, all.Route(owner, port, v6))
	}
	err := all.Reach(p, from, routes, func(i int, allowed [][]bool) error {
		for j, r := range routes {
			for k, to := range r.Targets {
				sources := []netip.Addr{p.Client(from[i], to.Addr)}
				for _, m := range from[i].Pods {
					sources = append(sources, m.Addrs[0])
				}
				for _, src := range sources {
					if src == to.Addr && !from[i].Single() {
						continue // the verdict is that of the others of the group
					}
					flows++
					egress, ingress := reference.Flow(model.Flow{Src: src, Dst: to.Addr, Protocol: r.Port.Protocol, Port: to.Port})
					want := egress.Verdict == model.Allow && ingress.Verdict == model.Allow
					if !want {
						denied++
					}
					if allowed[j][k] != want {
						t.Fatalf("%s -> %s by %s: reach says %t, the reference %t", src, to.Addr, r, allowed[j][k], want)
					}
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return flows, denied
}

func pod(name, ip, app string, more ...string) *model.Pod {
	p := &model.Pod{PodID: model.PodID{Namespace: "shop", Name: name}, Node: "n1", Labels: model.MakeLabels(map[string]string{"app": app})}
	for _, a := range append([]string{ip}, more...) {
		p.IPs = append(p.IPs, netip.MustParseAddr(a))
	}
	return p
}

func cluster(pods ...*model.Pod) *model.Snapshot {
	open := model.Policy{Origin: model.Origin{Kind: "NetworkPolicy", Namespace: "shop", Name: "db"}, Tier: model.TierNetworkPolicy,
		Subject: model.PodSelector{Namespace: "shop", Pods: app("db")}, Isolates: [2]bool{model.Ingress: true}}
	open.Rules[model.Ingress] = []model.Rule{{Action: model.ActionAccept, AnyPeer: true, Ports: []model.PortMatch{{Protocol: model.TCP, First: 80, Last: 80}}}}
	return model.MakeSnapshot([]*model.Namespace{model.NewNamespace("shop", nil)}, []*model.Node{{Name: "n1"}}, pods, []*model.Policy{&open})
}

func app(name string) model.Selector {
	return model.MakeSelector(model.Requirement{Key: "app", Operator: model.In, Values: []string{name}})
}

func leads(selector model.Selector, target uint16) *model.Service {
	return &model.Service{Namespace: "shop", Name: "db", Pods: selector, Selects: true, Addresses: []netip.Addr{netip.MustParseAddr("10.96.0.5")},
		Ports: []model.ServicePort{{Protocol: model.TCP, Port: 5432, Target: target}}}
}

// A Service changes what clients reach by its target port and by its selector, in both directions. It changes nothing
// if it leads elsewhere with the same verdict, and its slices do not count.
func TestChanges(t *testing.T) {
	web, db, other := pod("web", "10.0.0.1", "web"), pod("db", "10.0.0.2", "db"), pod("other", "10.0.0.3", "other")
	s := cluster(web, db, other)
	slices := []*model.EndpointSlice{{Namespace: "shop", Name: "db-1", Service: "db", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.9")}}}
	for _, c := range []struct {
		name    string
		was, is *model.Service
		want    string
	}{
		{"same", leads(app("db"), 80), leads(app("db"), 80), ""},
		{"target port closes", leads(app("db"), 80), leads(app("db"), 81), "every backend -> no backend: other web;"},
		{"target port opens", leads(app("db"), 81), leads(app("db"), 80), "no backend -> every backend: other web;"},
		{"selector, same verdict", leads(app("db"), 80), leads(app("other"), 80), ""},
		{"selector closes", leads(app("other"), 81), leads(app("db"), 81), "every backend -> no backend: other web;"},
		{"selector of nothing", leads(app("db"), 80), leads(app("none"), 80), "every backend -> nowhere: db other web;"},
	} {
		p := reach.New(s, s)
		text := ""
		for _, change := range service.Changes(p, service.New(s, []*model.Service{c.was}, slices), service.New(s, []*model.Service{c.is}, slices)) {
			text += fmt.Sprintf("%s -> %s:", change.Was.Outcome, change.Is.Outcome)
			for _, g := range change.From {
				for _, m := range g.Pods {
					text += " " + m.ID.Name
				}
			}
			text += ";"
		}
		if text != c.want {
			t.Errorf("%s: changes %q, want %q", c.name, text, c.want)
		}
	}
}

// A Service with addresses of one family leads nowhere for clients of the other, although its pods have both.
func TestRouteOfOneFamily(t *testing.T) {
	s := cluster(pod("db", "10.0.0.2", "db", "fd00::2"))
	one := leads(app("db"), 80)
	all := service.New(s, []*model.Service{one}, nil)
	if r := all.Route(one, one.Ports[0], false); len(r.Targets) != 1 || r.Targets[0].Addr.String() != "10.0.0.2" {
		t.Errorf("IPv4: %+v", r)
	}
	if r := all.Route(one, one.Ports[0], true); len(r.Targets) != 0 || r.Missing != "no IPv6 address of Service shop/db" {
		t.Errorf("IPv6: %+v", r)
	}
	one.Addresses = append(one.Addresses, netip.MustParseAddr("fd00:96::5"))
	if r := all.Route(one, one.Ports[0], true); len(r.Targets) != 1 || r.Targets[0].Addr.String() != "fd00::2" {
		t.Errorf("both: %+v", r)
	}
}

// With internalTrafficPolicy Local in one version, clients that no policy distinguishes reach different backends by their nodes.
func TestChangesOfOwnNode(t *testing.T) {
	on := func(p *model.Pod, node string) *model.Pod { p.Node = node; return p }
	s := cluster(on(pod("web-1", "10.0.0.1", "web"), "n1"), on(pod("web-2", "10.0.0.2", "web"), "n2"), on(pod("web-3", "10.0.0.3", "web"), "n3"),
		on(pod("db", "10.0.0.4", "db"), "n1"), on(pod("other", "10.0.0.5", "other"), "n2"))
	backends := model.MakeSelector(model.Requirement{Key: "app", Operator: model.In, Values: []string{"db", "other"}})
	near, headless := leads(backends, 81), leads(backends, 81)
	near.OwnNode, headless.OwnNode, headless.Headless = true, true, true
	for _, c := range []struct {
		was, is *model.Service
		want    []string
	}{
		{leads(backends, 81), near, []string{"some backends -> every backend: other web-2",
			"some backends -> no backend: web-1", "some backends -> nowhere: web-3"}},
		{near, leads(backends, 81), []string{"every backend -> some backends: other web-2",
			"no backend -> some backends: web-1", "nowhere -> some backends: web-3"}},
		{near, near, nil},
		{leads(backends, 81), headless, nil},
	} {
		var got []string
		for _, change := range service.Changes(reach.New(s, s), service.New(s, []*model.Service{c.was}, nil), service.New(s, []*model.Service{c.is}, nil)) {
			var from []string
			for _, g := range change.From {
				for _, m := range g.Pods {
					from = append(from, m.ID.Name)
				}
			}
			slices.Sort(from)
			got = append(got, fmt.Sprintf("%s -> %s: %s", change.Was.Outcome, change.Is.Outcome, strings.Join(from, " ")))
		}
		slices.Sort(got)
		if slices.Sort(c.want); !slices.Equal(got, c.want) {
			t.Errorf("own node %t -> %t: %q, want %q", c.was.OwnNode, c.is.OwnNode, got, c.want)
		}
	}
}

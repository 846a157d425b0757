// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/analysis/cells"
	"github.com/isthmus-net/isthmus/common/api/cniframe"
	"github.com/isthmus-net/isthmus/common/endpoint"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/model/immutable"
)

// several are the addresses of pod 0 in prevResult: those in the API, then the further ones.
var several = []string{"10.9.0.8", "fd00::8", "10.9.0.7", "fd00::7"}

func many(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("10.9.1.%d", i))
	}
	return all
}

// acceptEven is a cluster in which all pods accept connections from pods with even numbers.
func acceptEven(nodes ...*model.Node) cluster {
	even := model.PodSelector{Namespace: "shop", Pods: model.MakeSelector(model.Requirement{Key: "even", Operator: model.In, Values: []string{"true"}})}
	p := &model.Policy{Origin: model.Origin{Kind: "NetworkPolicy", Namespace: "shop", Name: "even"}, Tier: model.TierNetworkPolicy, Isolates: [2]bool{true, false},
		Subject: model.PodSelector{Namespace: "shop"}}
	p.Rules[model.Ingress] = []model.Rule{{Action: model.ActionAccept, Peers: []model.Peer{{Kind: model.PeerPods, Pods: even}}, AnyPort: true}}
	return cluster{pods: 4, nodes: append(nodes, node("node1")), more: []*model.Policy{p}}
}

// wantFurther checks the addresses of pod 0, and whether pod 1 accepts connections from its further ones.
func (r *rig) wantFurther(when string, further ...string) {
	r.t.Helper()
	r.settle()
	list, err := r.agent.Endpoints(context.Background())
	want := addrs(append(slices.Clone(several[:2]), further...)...)
	if err != nil || len(list) == 0 || !slices.Equal(list[0].Addresses, want) {
		r.t.Errorf("%s: endpoints %+v, %v, want the addresses %v", when, list, err, want)
	}
	for _, a := range several {
		verdict := model.Deny
		if slices.Contains(want, netip.MustParseAddr(a)) {
			verdict = model.Allow
		}
		if got := r.fake.Decide(id(1), model.Ingress, netip.MustParseAddr(a), model.TCP, 80); got != verdict {
			r.t.Errorf("%s: from %s: %v, want %v", when, a, got, verdict)
		}
	}
}

func addrs(all ...string) (ips []netip.Addr) {
	for _, a := range all {
		ips = append(ips, netip.MustParseAddr(a))
	}
	return ips
}

// Another plugin gives a pod several addresses of a family. Rules about the pod are about all of them, also after a restart. The
// first ones are in the API.
func TestForeignFurtherAddresses(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.policyOnly()
		c := acceptEven()
		c.edit = func(n int, p *model.Pod) {
			if n == 0 {
				p.IPs = addrs(several[:2]...)
			}
		}
		r.agent.Publish(c.snapshot())
		for range 2 { // a runtime may repeat ADD
			if _, err := r.agent.Add(context.Background(), foreignRequest(0, several...)); err != nil {
				t.Fatal(err)
			}
		}
		_, err := r.agent.Add(context.Background(), foreignRequest(0, several[:3]...))
		wantCode(t, err, 100, "has the addresses 10.9.0.8, fd00::8, 10.9.0.7, fd00::7, not")
		if _, err := r.agent.Add(context.Background(), foreignRequest(1, "10.9.0.9")); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			r.wantFurther("under policy", several[2:]...)
			check := &cniframe.CheckRequest{Attachment: addRequest(0).Attachment, Foreign: foreignRequest(0, several...).Foreign}
			if err := r.agent.Check(context.Background(), check); err != nil {
				t.Errorf("CHECK: %v", err)
			}
			b, err := r.agent.Dump(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			compared, err := cells.Compare(context.Background(), &cells.Node{Snapshot: b.Snapshot(), State: b.Installed.State, Reported: b.About.Unsupported})
			if err != nil || compared.Endpoints != 2 || compared.Differ > 0 || len(compared.Problems) > 0 {
				t.Errorf("what is installed differs from policy: %+v, %v", compared, err)
			}
			check.Foreign.Addresses = several[:2]
			wantCode(t, r.agent.Check(context.Background(), check), 104, "not 10.9.0.8, fd00::8")
			r.end()
			r.start()
			r.agent.Publish(c.snapshot())
			r.settle()
		}
		r.mustDel(0)
		r.settle()
		if r.fake.Decide(id(1), model.Ingress, netip.MustParseAddr(several[2]), model.TCP, 80) != model.Deny {
			t.Error("a further address is still that of a pod after DEL")
		}
		most := slices.Concat(many(cniframe.MaxAddresses), several[1:2])
		if _, err := r.agent.Add(context.Background(), foreignRequest(2, most...)); err != nil {
			t.Errorf("the most addresses: %v", err)
		}
		r.wantProblem("")
		r.end()
	})
}

// The API's owner has an address. While another object has a further address of a pod, the pod does not, and is reported.
func TestForeignFurtherConflicts(t *testing.T) {
	other := func(ip string) *model.Node {
		n := node("node2")
		n.Addresses = addrs(ip)
		return n
	}
	rangeOf := func(cidr string) *model.Snapshot {
		s := acceptEven().snapshot()
		s.ServiceCIDRs = immutable.MakeMap(map[string]*model.ServiceCIDR{"all": {Name: "all", Prefixes: []netip.Prefix{netip.MustParsePrefix(cidr)}}})
		return s
	}
	claimed := func(n int, ip string, change func(*model.Pod)) *model.Snapshot {
		c := acceptEven()
		c.edit = func(i int, p *model.Pod) {
			if i == n {
				p.IPs, p.Created, p.Node = addrs(ip), -1, "node2" // an older pod wins, too
				change(p)
			}
		}
		return c.snapshot()
	}
	for owner, s := range map[string]*model.Snapshot{
		"pod shop/web-3":               claimed(3, several[2], func(*model.Pod) {}),
		"pod shop/web-2":               claimed(2, several[2], func(p *model.Pod) { p.HostNetwork = true }),
		"node node2":                   acceptEven(other(several[2])).snapshot(),
		"Services, by ServiceCIDR all": rangeOf("10.9.0.0/29"),
		"":                             claimed(3, several[2], func(p *model.Pod) { p.Finished = true }),
	} {
		run(t, func(t *testing.T, r *rig) {
			r.policyOnly()
			r.agent.Publish(acceptEven().snapshot())
			for n, ips := range [][]string{several, {"10.9.0.9"}} {
				if _, err := r.agent.Add(context.Background(), foreignRequest(n, ips...)); err != nil {
					t.Fatal(err)
				}
			}
			r.wantFurther("before", several[2:]...)
			r.agent.Publish(s)
			if owner == "" {
				r.wantFurther("beside a pod that has finished", several[2:]...)
				r.wantProblem("")
			} else {
				r.settle()
				list, err := r.agent.Endpoints(context.Background())
				if err != nil || !slices.Equal(list[0].Addresses, addrs(several[0], several[1], several[3])) ||
					!strings.Contains(strings.Join(list[0].Problems, "; "), "address 10.9.0.7 is also that of "+owner) {
					t.Errorf("%s: endpoints %+v, %v", owner, list, err)
				}
				r.wantProblem("warning: endpoint c0:eth0 of pod shop/web-0: its further address 10.9.0.7 is also that of " + owner)
			}
			r.agent.Publish(acceptEven().snapshot())
			r.wantFurther("after", several[2:]...)
			r.wantProblem("")
			r.end()
		})
	}
}

// An address that another pod of the node has in its result is that of neither, unless it is the first one of the other.
func TestForeignFurtherOfTwo(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.policyOnly()
		r.agent.Publish(acceptEven().snapshot())
		add := func(n int, ips ...string) {
			t.Helper()
			if _, err := r.agent.Add(context.Background(), foreignRequest(n, ips...)); err != nil {
				t.Fatal(err)
			}
		}
		add(0, several...)
		add(1, "10.9.0.9")
		add(3, "10.9.0.7") // its own, and it is no even pod
		r.wantFurther("beside the owner", several[3])
		r.wantProblem("10.9.0.7 is also that of pod shop/web-3")
		r.mustDel(3)
		r.wantFurther("after the owner", several[2:]...)
		add(2, "10.9.0.10", "10.9.0.7", "fd00::10", "fd00::7")
		r.wantFurther("beside another with both")
		r.wantProblem("10.9.0.7 is also that of pod shop/web-2")
		r.wantProblem("10.9.0.7 is also that of pod shop/web-0")
		r.mustDel(2)
		r.wantFurther("after the other", several[2:]...)
		r.wantProblem("")
		r.wantOnly(0, 1)
		r.end()
	})
}

// A record names each address once, and only another plugin gives further ones.
func TestForeignFurtherRecord(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.policyOnly()
		if _, err := r.agent.Add(context.Background(), foreignRequest(0, several...)); err != nil {
			t.Fatal(err)
		}
		store, err := endpoint.Open(r.dir)
		if err != nil {
			t.Fatal(err)
		}
		records, _, err := store.Load()
		if err != nil || len(records) != 1 || !slices.Equal(records[0].Further, addrs(several[2:]...)) {
			t.Fatalf("records %+v, %v", records, err)
		}
		for text, change := range map[string]func(*endpoint.Record){
			"further[0] is 10.9.0.8 again": func(e *endpoint.Record) { e.Further = e.IPs[:1] },
			"further[1] is fd00::7 again":  func(e *endpoint.Record) { e.Further = addrs("fd00::7", "fd00::7") },
			"not foreign":                  func(e *endpoint.Record) { e.Kind = endpoint.Own },
			"not a plain":                  func(e *endpoint.Record) { e.Further = addrs("::ffff:10.9.0.1") },
			"has 33 addresses":             func(e *endpoint.Record) { e.Further = addrs(many(33)...) },
		} {
			e := records[0]
			change(&e)
			if err := e.Validate(); err == nil || !strings.Contains(err.Error(), text) {
				t.Errorf("got %v, want %q", err, text)
			}
		}
		r.end()
	})
}

// Outside of the pod ranges, other nodes would take a further address for none of a pod. If a rule denies or passes the pod, it may
// not use such an address.
func TestForeignFurtherExceptions(t *testing.T) {
	even := model.PodSelector{Namespace: "shop", Pods: model.MakeSelector(model.Requirement{Key: "even", Operator: model.In, Values: []string{"true"}})}
	odd := model.PodSelector{Namespace: "shop", Pods: model.MakeSelector(model.Requirement{Key: "even", Operator: model.In, Values: []string{"false"}})}
	about := func(s model.PodSelector) model.Rule {
		return model.Rule{Peers: []model.Peer{{Kind: model.PeerPods, Pods: s}}, AnyPort: true}
	}
	http := model.Rule{AnyPeer: true, Ports: []model.PortMatch{{Protocol: model.TCP, Name: "http"}}}
	const problem = "its further address 10.9.0.7 is in no pod range, so other nodes would not apply to it what ClusterNetworkPolicy guard denies or passes"
	for _, c := range []struct {
		action  model.Action
		rule    model.Rule
		ranges  []string
		further []string
		problem string
	}{
		{model.ActionDeny, about(even), nil, nil, problem},
		{model.ActionPass, about(even), nil, nil, problem},
		{model.ActionDeny, http, nil, nil, problem}, // the pod says which port that is
		{model.ActionDeny, about(even), []string{"10.9.0.0/24", "fd00::/64"}, several[2:], ""},
		{model.ActionDeny, about(odd), nil, several[2:], ""},
		{model.ActionAccept, about(even), nil, several[2:], ""},
	} {
		run(t, func(t *testing.T, r *rig) {
			c.rule.Action = c.action
			p := &model.Policy{Origin: model.Origin{Kind: "ClusterNetworkPolicy", Name: "guard"}, Tier: model.TierAdmin, Subject: model.PodSelector{Namespace: "other"}}
			p.Rules[model.Egress] = []model.Rule{c.rule}
			all := acceptEven(node("node2", c.ranges...))
			all.more = append(all.more, p)
			r.policyOnly()
			r.agent.Publish(all.snapshot())
			for n, ips := range [][]string{several, {"10.9.0.9"}} {
				if _, err := r.agent.Add(context.Background(), foreignRequest(n, ips...)); err != nil {
					t.Fatal(err)
				}
			}
			r.wantFurther(fmt.Sprintf("%+v in %v", c.rule, c.ranges), c.further...)
			r.wantProblem(c.problem)
			r.end()
		})
	}
}

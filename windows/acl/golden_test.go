// SPDX-License-Identifier: Apache-2.0

package acl_test

import (
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy/compile"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// shop is a small cluster: a Windows node with a billing service, pods that
// call it on other nodes, and a DNS server.
type shop struct {
	pods     []*model.Pod
	policies []*model.Policy
	dual     bool
}

func (s *shop) pod(namespace, app, node, ip string, ports ...model.NamedPort) {
	p := &model.Pod{PodID: model.PodID{Namespace: namespace, Name: fmt.Sprintf("%s-%d", app, len(s.pods))}, Node: node,
		Labels: model.MakeLabels(map[string]string{"app": app}), IPs: []netip.Addr{netip.MustParseAddr(ip)}, Ports: ports}
	if s.dual {
		b := p.IPs[0].As4()
		p.IPs = append(p.IPs, netip.MustParseAddr(fmt.Sprintf("fd00:%x::%x", b[2], b[3])))
	}
	s.pods = append(s.pods, p)
}

// policy adds a policy that isolates the billing pods in both directions.
func (s *shop) policy(name string, ingress, egress []model.Rule) *model.Policy {
	p := &model.Policy{Origin: model.Origin{Kind: "NetworkPolicy", Namespace: "pay", Name: name}, Tier: model.TierNetworkPolicy,
		Subject:  model.PodSelector{Namespace: "pay", Pods: appIs("billing")},
		Isolates: [2]bool{ingress != nil, egress != nil}, Rules: [2][]model.Rule{ingress, egress}}
	for d := range p.Rules {
		for i := range p.Rules[d] {
			p.Rules[d][i].Index = i
		}
	}
	s.policies = append(s.policies, p)
	return p
}

func appIs(name string) model.Selector {
	return model.MakeSelector(model.Requirement{Key: "app", Operator: model.In, Values: []string{name}})
}

func from(namespace, app string) model.Peer {
	return model.Peer{Kind: model.PeerPods, Pods: model.PodSelector{Namespace: namespace, Pods: appIs(app)}}
}

func block(cidr string, except ...string) model.Peer {
	b := model.IPBlock{CIDR: netip.MustParsePrefix(cidr)}
	for _, e := range except {
		b.Except = append(b.Except, netip.MustParsePrefix(e))
	}
	return model.Peer{Kind: model.PeerBlock, Block: b}
}

func accept(ports []model.PortMatch, peers ...model.Peer) model.Rule {
	return model.Rule{Action: model.ActionAccept, AnyPeer: len(peers) == 0, Peers: peers, AnyPort: len(ports) == 0, Ports: ports}
}

func tcp(first, last uint16) model.PortMatch {
	return model.PortMatch{Protocol: model.TCP, First: first, Last: last}
}

var dns = []model.PortMatch{{Protocol: model.TCP, First: 53, Last: 53}, {Protocol: model.UDP, First: 53, Last: 53}}

// scenarios returns the clusters of the golden files by name.
func scenarios() map[string]*shop {
	base := func(dual bool) *shop {
		s := &shop{dual: dual}
		s.pod("pay", "billing", "win1", "10.0.1.20", model.NamedPort{Name: "http", Protocol: model.TCP, Port: 8080})
		s.pod("pay", "billing", "win1", "10.0.1.21", model.NamedPort{Name: "http", Protocol: model.TCP, Port: 8080})
		s.pod("shop", "web", "lin1", "10.0.2.10")
		s.pod("shop", "web", "lin1", "10.0.2.11")
		s.pod("shop", "cart", "lin1", "10.0.2.12", model.NamedPort{Name: "metrics", Protocol: model.TCP, Port: 9100})
		s.pod("ops", "scraper", "lin1", "10.0.2.13", model.NamedPort{Name: "metrics", Protocol: model.TCP, Port: 9200})
		s.pod("kube-system", "dns", "lin1", "10.0.2.14")
		return s
	}
	all := map[string]*shop{"open": base(false)}

	denied := base(false)
	denied.policy("nothing", []model.Rule{}, []model.Rule{})
	all["default-deny"] = denied

	usual := base(false)
	usual.policy("billing", []model.Rule{
		accept([]model.PortMatch{tcp(8080, 8080), tcp(8443, 8450)}, from("shop", "web")),
		accept([]model.PortMatch{tcp(9090, 9090)}, from("ops", "scraper")),
	}, []model.Rule{accept(dns, from("kube-system", "dns")), accept([]model.PortMatch{tcp(443, 443)}, block("0.0.0.0/0", "10.0.0.0/8", "192.168.0.0/16"))})
	all["usual"] = usual

	holes := base(false)
	holes.policy("half", []model.Rule{accept(nil, block("172.16.0.0/24", "172.16.0.128/25"))},
		[]model.Rule{accept(dns), accept(nil, block("0.0.0.0/0", "10.0.0.0/8"), from("shop", "cart"))})
	all["holes"] = holes

	overlap := base(false)
	overlap.policy("a", []model.Rule{accept([]model.PortMatch{tcp(80, 80)}, from("shop", "web"), from("shop", "cart"))}, nil)
	overlap.policy("b", []model.Rule{accept([]model.PortMatch{tcp(443, 443)}, from("shop", "cart"), from("ops", "scraper"))}, nil)
	all["overlap"] = overlap

	names := base(false)
	names.policy("named", []model.Rule{accept([]model.PortMatch{{Protocol: model.TCP, Name: "http"}}, from("shop", "web"))},
		[]model.Rule{accept([]model.PortMatch{{Protocol: model.TCP, Name: "metrics"}}, from("shop", "cart"), from("ops", "scraper"))})
	all["named-ports"] = names

	tiers := base(true)
	tiers.policy("billing", []model.Rule{accept([]model.PortMatch{tcp(0, 65535)}, from("shop", "web"))}, nil)
	admin := tiers.policy("admin", []model.Rule{
		{Action: model.ActionDeny, Peers: []model.Peer{from("shop", "web")}, Ports: []model.PortMatch{tcp(22, 22)}},
		{Action: model.ActionAccept, Peers: []model.Peer{from("ops", "scraper")}, AnyPort: true},
	}, []model.Rule{{Action: model.ActionDeny, Peers: []model.Peer{block("169.254.169.254/32"), block("fd00:2::/64")}, AnyPort: true}})
	admin.Origin = model.Origin{Kind: "ClusterNetworkPolicy", Name: "admin"}
	admin.Tier, admin.Isolates = model.TierAdmin, [2]bool{}
	all["tiers-dual-stack"] = tiers
	return all
}

func (s *shop) state() *model.State {
	nodes := []*model.Node{
		{Name: "win1", OS: model.Windows, Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.13")}, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24")}},
		{Name: "lin1", OS: model.Linux, Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.11")}, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.2.0/24")}},
	}
	if s.dual {
		for i := range nodes {
			nodes[i].Addresses = append(nodes[i].Addresses, netip.MustParseAddr(fmt.Sprintf("2001:db8::%d", i+1)))
			nodes[i].PodCIDRs = append(nodes[i].PodCIDRs, netip.MustParsePrefix(fmt.Sprintf("fd00:%d::/64", i+1)))
		}
	}
	snapshot := model.MakeSnapshot(nil, nodes, s.pods, s.policies)
	billing := s.pods[0]
	state, _ := compile.Once(compile.Input{Snapshot: snapshot, Node: "win1",
		Endpoints: map[model.EndpointID]compile.Endpoint{"billing:eth0": {Pod: billing.PodID, IPs: billing.IPs}}})
	return state
}

// TestGolden compares lists with the files in testdata. Review the diff before you run it with
// -update.
func TestGolden(t *testing.T) {
	for name, s := range scenarios() {
		for _, profile := range []hns.Version{hns.Server2019, hns.Server2022} {
			t.Run(name+"/"+profile.String(), func(t *testing.T) {
				state := s.state()
				l := acl.Lower(state, options(profile), profile.String())
				if err := acl.Check(state, "billing:eth0", options(profile), &l.Ruleset, hns.Readings()...); err != nil {
					t.Fatal(err)
				}
				var b strings.Builder
				b.WriteString(hns.FormatACLs("", l.Lists["billing:eth0"]))
				for _, id := range slices.Sorted(maps.Keys(l.Sets)) {
					fmt.Fprintf(&b, "set %s %s\n", id, acl.EncodeSet(id, l.Sets[id]).Values)
				}
				file := filepath.Join("testdata", name+"."+profile.String()+".txt")
				if *update {
					if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
						t.Fatal(err)
					}
				}
				want, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				if string(want) != b.String() {
					t.Errorf("lists differ from %s:\n%s\nwant\n%s", file, b.String(), want)
				}
			})
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/cmd/isthmusctl/clitest"
	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cluster"
	"github.com/isthmus-net/isthmus/common/analysis/trace"
	"github.com/isthmus-net/isthmus/common/inspect"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// addresses gives the pods of fill the addresses of their endpoints, as the API server reports them.
func (n *node) addresses() {
	n.t.Helper()
	status, out, errs := ctl("endpoints", "-o", "json", "--socket", n.socket)
	var list struct {
		Endpoints []struct {
			Name      string   `json:"pod_name"`
			Addresses []string `json:"addresses"`
		}
	}
	if err := json.Unmarshal([]byte(out), &list); status != 0 || err != nil {
		n.t.Fatal(status, errs, err)
	}
	self := &model.Node{Name: "node1", OS: model.Linux, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24")}, Addresses: []netip.Addr{netip.MustParseAddr("172.30.0.11")}}
	other := &model.Node{Name: "node2", OS: model.Linux, Addresses: []netip.Addr{netip.MustParseAddr("172.30.0.12")}}
	far := &model.Pod{PodID: model.PodID{Namespace: "shop", Name: "far"}, Node: "node2", Labels: model.MakeLabels(map[string]string{"app": "api"}), IPs: []netip.Addr{netip.MustParseAddr("10.0.2.2")}}
	far.HostPorts = []model.HostPort{{Number: 8200, Protocol: model.TCP, Port: 81}}
	var pods []*model.Pod
	for _, e := range list.Endpoints {
		pods = append(pods, &model.Pod{PodID: model.PodID{Namespace: "shop", Name: e.Name}, Node: "node1", Labels: model.MakeLabels(map[string]string{"app": e.Name}),
			IPs: []netip.Addr{netip.MustParseAddr(e.Addresses[0])}, HostPorts: []model.HostPort{{Number: 8000 + uint16(len(pods)), Protocol: model.TCP, Port: 80}}})
	}
	pods = append(pods, far)
	web := model.MakeSelector(model.Requirement{Key: "app", Operator: model.In, Values: []string{"web"}})
	api := model.MakeSelector(model.Requirement{Key: "app", Operator: model.In, Values: []string{"api"}})
	policy := &model.Policy{Origin: model.Origin{Kind: "NetworkPolicy", Namespace: "shop", Name: "web"}, Tier: model.TierNetworkPolicy,
		Isolates: [2]bool{true, false}, Subject: model.PodSelector{Namespace: "shop", Pods: web}}
	policy.Rules[model.Ingress] = []model.Rule{{Action: model.ActionAccept, Peers: []model.Peer{{Kind: model.PeerPods, Pods: model.PodSelector{Namespace: "shop", Pods: api}}},
		Ports: []model.PortMatch{{Protocol: model.TCP, First: 80, Last: 80}}}}
	n.agent.Publish(model.MakeSnapshot(nil, []*model.Node{self, other}, pods, []*model.Policy{policy}))
	n.settled()
}

// settled waits until no change of policy is pending.
func (n *node) settled() {
	n.t.Helper()
	for range 200 {
		b, err := n.agent.Dump(n.t.Context())
		if err != nil {
			n.t.Fatal(err)
		}
		if !b.About.Pending && b.Installed != nil && len(b.Installed.State.Policy.Endpoints) == 2 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	b, err := n.agent.Dump(n.t.Context())
	n.t.Fatalf("policy does not get into force: %+v %+v %v", b.About, b.Installed, err)
}

// expect runs a command line and checks the exit status and parts of the output.
func expect(t *testing.T, status int, parts []string, args ...string) string {
	t.Helper()
	got, out, errs := ctl(args...)
	if got != status {
		t.Errorf("isthmusctl %s: exit status %d, want %d\n%s%s", strings.Join(args, " "), got, status, out, errs)
	}
	for _, p := range parts {
		if !strings.Contains(out+errs, p) {
			t.Errorf("isthmusctl %s: no %q in\n%s%s", strings.Join(args, " "), p, out, errs)
		}
	}
	return out
}

// TestTrace follows flows on a node, before and after the data path of a pod is damaged.
func TestTrace(t *testing.T) {
	n := newNode(t)
	n.attach()
	n.addresses()
	allowed := []string{"trace", "--from", "shop/api", "--to", "shop/web", "-p", "80", "--socket", n.socket}
	denied := []string{"trace", "--from", "shop/api", "--to", "shop/web", "-p", "81", "--socket", n.socket}
	expect(t, 0, []string{"intended: allow, installed: allow\n", "attachment, shop/web: interface", "policy in force"}, allowed...)
	n.fake.Break("c1:eth0", "routes")
	expect(t, 1, []string{"intended: allow, installed: allow: DRIFT", "egress policy, shop/api: intended allow", "routes", "both ends are on this node",
		"ingress policy, shop/web: intended allow (ingress rule 0 of NetworkPolicy shop/web, tier NetworkPolicy), installed allow"}, allowed...)
	expect(t, 1, []string{"intended: deny, installed: deny", "isolated for ingress by NetworkPolicy shop/web, no rule accepts"}, denied...)
	n.fake.Tamper("c1:eth0")
	out := expect(t, 1, nil, append(allowed, "-o", "json")...)
	var r trace.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil || !r.Drift || r.Intended != "allow" || r.Installed != "deny" {
		t.Errorf("%v\n%s", err, out)
	}
	expect(t, 1, []string{"ingress policy, shop/web: intended allow", "installed deny (the endpoint has no slot): DRIFT", "another table is in force"}, allowed...)
	for _, args := range [][]string{{"trace"}, {"trace", "--from", "shop/api", "--to", "shop/none", "-p", "80"}, {"trace", "--from", "shop/api", "--to", "shop/web"},
		{"trace", "--from", "shop/api", "--to", "shop/web", "-p", "80", "-o", "csv"}, {"trace", "--timeout", "0s", "--from", "a/b", "--to", "c/d"}} {
		expect(t, 2, nil, append(args, "--socket", n.socket)...)
	}
	expect(t, 2, []string{"start isthmus-agent"}, "trace", "--from", "a/b", "--to", "c/d", "--socket", "/nonexistent.sock")
}

// A host port leads to a pod. Policy of a client on another node decides about the node.
func TestTraceOfHostPorts(t *testing.T) {
	n := newNode(t)
	n.attach()
	n.addresses()
	b, err := n.agent.Dump(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	web := ""
	for _, p := range b.Cluster.Pods {
		if p.Name == "web" {
			web = strconv.Itoa(int(p.HostPorts[0].Number))
		}
	}
	to := func(from, node, port string) []string {
		return []string{"trace", "--from", from, "--to", "node:" + node, "-p", port, "--socket", n.socket}
	}
	expect(t, 1, []string{"192.0.2.1 -> shop/web (", "1. host port, shop/web: the node with the address replaces TCP 172.30.0.11:" + web + " by ", "intended: deny, installed: deny\n", "from outside the cluster"},
		to("192.0.2.1", "node1", web)...)
	expect(t, 0, []string{"both ends are on this node", "intended: allow, installed: allow\n"}, to("shop/api", "node1", web)...)
	expect(t, 0, []string{"shop/far (10.0.2.2) -> shop/web (", "intended: allow, installed: unknown\n", "2. egress policy, shop/far: intended allow"}, to("shop/far", "node1", web)...)
	expect(t, 0, []string{"shop/api (", "to node node2", "ingress policy, shop/far: intended allow", "TCP 81 on node node1\n"}, to("shop/api", "node2", "8200")...)
	expect(t, 0, []string{"-> node node2 (172.30.0.12) TCP 8300"}, to("shop/api", "node2", "8300")...)
}

// TestBundleAndReplay runs the same commands on a node and on its Bundle.
func TestBundleAndReplay(t *testing.T) {
	n := newNode(t)
	n.attach()
	n.addresses()
	file := filepath.Join(t.TempDir(), "node.tgz")
	expect(t, 0, []string{"node node1, 2 pods of 3, 1 policies, 0 differences"}, "bundle", "-o", file, "--no-doctor", "--socket", n.socket)
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
	expect(t, 2, []string{"exists: remove it"}, "bundle", "-o", file, "--no-doctor", "--socket", n.socket)
	expect(t, 2, []string{"-o"}, "bundle", "--socket", n.socket)
	flow := []string{"--from", "shop/api", "--to", "shop/web", "-p", "80"}
	live := expect(t, 0, nil, append([]string{"trace", "--socket", n.socket}, flow...)...)
	if replayed := expect(t, 0, nil, append([]string{"replay", file, "trace"}, flow...)...); replayed != live {
		t.Errorf("live\n%s\nreplayed\n%s", live, replayed)
	}
	expect(t, 0, []string{"0 differ, 0 over-blocked as reported, 0 differences found by the audit"}, "replay", file, "verify")
	live = expect(t, 0, []string{"NetworkPolicy shop/web", ">= 0"}, "policies", "--socket", n.socket)
	if replayed := expect(t, 0, nil, "replay", file, "policies"); replayed != live {
		t.Errorf("live\n%s\nreplayed\n%s", live, replayed)
	}
	expect(t, 0, []string{"node node1, linux (kernel 6.1), agent v1.2.3", "2 endpoints; the cluster has 3 pods, 1 policies"}, "replay", file, "about")

	n.fake.Tamper("c1:eth0")
	drifted := filepath.Join(t.TempDir(), "drifted.tgz")
	expect(t, 0, []string{"1 differences"}, "bundle", "-o", drifted, "--no-doctor", "--socket", n.socket)
	expect(t, 1, []string{"DRIFT: table of pod shop/web: another table is in force", "1 differences found by the audit"}, "replay", drifted, "verify")
	expect(t, 1, []string{"installed: deny: DRIFT"}, append([]string{"replay", drifted, "trace"}, flow...)...)
	for _, args := range [][]string{{"replay"}, {"replay", file}, {"replay", file, "nosuch"}, {"replay", "/nonexistent", "verify"}, {"replay", file, "trace", "--nosuch"},
		{"replay", os.Args[0], "verify"}} {
		expect(t, 2, nil, args...)
	}
}

// TestDump prints the parts of a Bundle.
func TestDump(t *testing.T) {
	n := newNode(t)
	n.attach()
	n.addresses()
	n.fake.Tamper("c1:eth0")
	var got struct {
		About     struct{ Node string }
		Endpoints []struct{ Pod model.PodID }
		Cluster   struct{ Pods []*model.Pod }
		Installed *struct{ State any }
		Drift     []inspect.Drift
	}
	out := expect(t, 0, nil, "dump", "--socket", n.socket)
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	if got.About.Node != "node1" || len(got.Endpoints) != 2 || len(got.Cluster.Pods) != 3 || got.Installed == nil || len(got.Drift) != 1 {
		t.Errorf("dump prints\n%s", out)
	}
	expect(t, 2, []string{"start isthmus-agent"}, "dump", "--socket", "/nonexistent.sock")
	expect(t, 2, []string{"--timeout 0s: give a duration above 0"}, "dump", "--socket", n.socket, "--timeout", "0s")
}

// TestVerifyLive compares the data path of a node, before and after it is damaged, as replay does with an archive.
func TestVerifyLive(t *testing.T) {
	n := newNode(t)
	n.attach()
	n.addresses()
	verify := func(socket string) (status int, stdout, stderr string) {
		return clitest.Run(func(e cli.Env) []*cobra.Command {
			return []*cobra.Command{{Use: "live", RunE: cli.Answering(func(c *cobra.Command, _ []string) error {
				return VerifyLive(e)(c.Context(), socket, time.Minute)
			})}}
		}, "live")
	}
	for want, damage := range []func(){func() {}, func() { n.fake.Tamper("c1:eth0") }} {
		t.Run(fmt.Sprint(want), func(t *testing.T) {
			damage()
			file := filepath.Join(t.TempDir(), "node.tgz")
			expect(t, 0, nil, "bundle", "-o", file, "--no-doctor", "--socket", n.socket)
			replayed := expect(t, want, []string{"cells compared"}, "replay", file, "verify")
			if status, live, errs := verify(n.socket); status != want || live != replayed {
				t.Errorf("exit status %d, %s, live\n%s\nreplayed\n%s", status, errs, live, replayed)
			}
		})
	}
	if status, _, errs := verify("/nonexistent.sock"); status != 2 || !strings.Contains(errs, "start isthmus-agent") {
		t.Errorf("without an agent: %d, %s", status, errs)
	}
}

// TestBundleAsManifests: every command that reads manifests reads a Bundle.
func TestBundleAsManifests(t *testing.T) {
	n := newNode(t)
	n.attach()
	n.addresses()
	file := filepath.Join(t.TempDir(), "node.tgz")
	expect(t, 0, nil, "bundle", "-o", file, "--no-doctor", "--socket", n.socket)
	source := cluster.Source{Manifests: []string{file}}
	s, problems, err := source.Load(t.Context())
	if err != nil || len(problems.Bad) > 0 || s.Pods.Len() != 3 || s.Policies.Len() != 1 {
		t.Errorf("%d pods, %d policies, %v, %v", s.Pods.Len(), s.Policies.Len(), problems, err)
	}
	if err := os.WriteFile(file, []byte{0x1f, 0x8b, 0}, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := source.Load(t.Context()); err == nil || !strings.Contains(err.Error(), "not a bundle of isthmusctl") {
		t.Errorf("a damaged bundle: %v", err)
	}
}

// TestACLsDecide: the ACLs of a Windows node decide as HNS does. An endpoint without ACLs passes everything, and a
// list whose meaning HNS leaves open has no verdict.
func TestACLsDecide(t *testing.T) {
	r := &acl.Ruleset{Lists: map[model.EndpointID][]hns.ACL{
		"shut": {{ID: "web", Protocols: "6", Action: hns.Allow, Direction: hns.In, LocalPorts: "80", RemoteAddresses: "10.0.1.2/32", RuleType: hns.Switch, Priority: 1000},
			{ID: "rest", Action: hns.Block, Direction: hns.In, RuleType: hns.Switch, Priority: 1001},
			{ID: "host", Action: hns.Allow, Direction: hns.In, RuleType: hns.Host, Priority: 1000}},
		"tie": {{ID: "a", Action: hns.Allow, Direction: hns.In, RuleType: hns.Switch, Priority: 1000}, {ID: "b", Action: hns.Block, Direction: hns.In, RuleType: hns.Switch, Priority: 1000}},
	}}
	at := func(port uint16) hns.Packet {
		return hns.Packet{Direction: hns.In, Remote: netip.MustParseAddr("10.0.1.2"), Protocol: 6, Port: port}
	}
	for _, c := range []struct {
		id      model.EndpointID
		port    uint16
		verdict model.Verdict
		by, err string
	}{
		{"shut", 80, model.Allow, "ACL web", ""}, {"shut", 81, model.Deny, "ACL rest", ""}, {"none", 80, model.Allow, "HNS passes everything", ""}, {"tie", 80, model.Deny, "", "does not document"},
	} {
		v, by, err := r.Decide(c.id, at(c.port))
		if v != c.verdict || !strings.Contains(by, c.by) || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s %d: %s by %q, %v", c.id, c.port, v, by, err)
		}
	}
}

// TestHits counts the events that name a policy.
func TestHits(t *testing.T) {
	b := &inspect.Bundle{Files: map[string][]byte{"events.jsonl": []byte(`{"policy":"NetworkPolicy a/b","verdict":"deny"}
{"policy":"NetworkPolicy a/b","verdict":"allow"}
{"policy":"NetworkPolicy a/b","verdict":"deny"}
{"verdict":"drop"}
no JSON
`)}}
	if got := countHits(b)["NetworkPolicy a/b"]; got != (hits{1, 2}) {
		t.Errorf("%+v", got)
	}
}

// SPDX-License-Identifier: Apache-2.0

package acl_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/kube/manifests"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
	"github.com/isthmus-net/isthmus/common/policy/compile"
	"github.com/isthmus-net/isthmus/test/hnsemu/facts"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// edges are the ingress rules of policies at the ends of what the API can say, by the name of the policy and its pod.
var edges = map[string]string{
	"last-port":     `[{ports: [{port: 65535}]}]`,
	"first-port":    `[{ports: [{port: 1}]}]`,
	"all-ports":     `[{ports: [{port: 1, endPort: 65535}]}]`,
	"to-the-end":    `[{ports: [{port: 65534, endPort: 65535}, {port: 65535, protocol: UDP}]}]`,
	"touching":      `[{ports: [{port: 1, endPort: 100}, {port: 101, endPort: 65535}]}]`,
	"one-port":      `[{ports: [{port: 80, endPort: 80}]}]`,
	"sctp":          `[{ports: [{port: 80, protocol: SCTP}]}]`,
	"sctp-all":      `[{ports: [{protocol: SCTP}]}]`,
	"tcp-all":       `[{ports: [{protocol: TCP}]}]`,
	"everything":    `[{from: [{ipBlock: {cidr: 0.0.0.0/0}}]}]`,
	"everything-6":  `[{from: [{ipBlock: {cidr: "::/0"}}], ports: [{port: 80}]}]`,
	"both-families": `[{from: [{ipBlock: {cidr: 0.0.0.0/0}}, {ipBlock: {cidr: "::/0"}}]}]`,
	"one-address":   `[{from: [{ipBlock: {cidr: 192.0.2.7/32}}, {ipBlock: {cidr: "2001:db8::7/128"}}]}]`,
	"all-excepted":  `[{from: [{ipBlock: {cidr: 0.0.0.0/0, except: [0.0.0.0/1, 128.0.0.0/1]}}]}]`,
	"halves":        `[{from: [{ipBlock: {cidr: 192.0.2.0/24, except: [192.0.2.0/25, 192.0.2.128/25]}}]}]`,
	"all-but-ends":  `[{from: [{ipBlock: {cidr: 0.0.0.0/0, except: [0.0.0.0/32, 255.255.255.255/32]}}], ports: [{port: 80}]}]`,
	"excepted-pod":  `[{from: [{ipBlock: {cidr: 10.1.0.0/16, except: [10.1.0.9/32]}}]}]`,
	"given-back":    `[{from: [{ipBlock: {cidr: 10.1.0.0/16, except: [10.1.0.0/24]}}]}, {from: [{podSelector: {matchLabels: {app: peer}}}], ports: [{port: 65535}]}]`,
	"no-such-name":  `[{ports: [{port: nowhere}]}]`,
	"name-and-port": `[{ports: [{port: nowhere}, {port: 80}]}]`,
	"name":          `[{ports: [{port: web}]}]`,
	"nothing":       `[]`,
	"anything":      `[{}]`,
}

// edgeCluster has a pod for each of the edges on a Windows node, and a peer.
func edgeCluster(t *testing.T) *model.Snapshot {
	t.Helper()
	var b strings.Builder
	b.WriteString("apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n---\napiVersion: v1\nkind: Node\nmetadata: {name: node1, labels: {kubernetes.io/os: windows}}\nstatus: {addresses: [{type: InternalIP, address: 192.168.0.1}]}\n")
	pod := func(name, app, ip string) {
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: Pod\nmetadata: {name: %s, namespace: shop, labels: {app: %s}}\nspec: {nodeName: node1, containers: [{name: c, image: i, ports: [{name: web, containerPort: 65535}]}]}\n"+
			"status: {phase: Running, podIP: %s, podIPs: [{ip: %s}, {ip: \"fd00:1::%s\"}]}\n", name, app, ip, ip, ip[strings.LastIndex(ip, ".")+1:])
	}
	pod("peer", "peer", "10.1.0.9")
	n := 20
	for name, rules := range edges {
		pod(name, name, fmt.Sprintf("10.1.1.%d", n))
		n++
		fmt.Fprintf(&b, "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: %s, namespace: shop}\nspec: {podSelector: {matchLabels: {app: %s}}, policyTypes: [Ingress], ingress: %s}\n", name, name, rules)
	}
	o, warnings, errs := manifests.Parse("edges", []byte(b.String()), manifests.DefaultLimits())
	if len(errs) > 0 || len(warnings) > 0 {
		t.Fatal(errs, warnings)
	}
	return o.Snapshot()
}

// TestEdges compares the lists of policies at the ends of ranges with the specification: by both evaluators, and under every reading.
func TestEdges(t *testing.T) {
	s := edgeCluster(t)
	spec := policy.NewEvaluator(s)
	state, unsupported := compile.Once(compile.Input{Snapshot: s, Node: "node1", Endpoints: endpointsOf(s)})
	if len(unsupported) > 0 {
		t.Error(unsupported)
	}
	var remotes []netip.Addr
	for _, a := range []string{"0.0.0.0", "0.0.0.1", "127.255.255.255", "128.0.0.0", "255.255.255.254", "255.255.255.255", "192.0.2.0", "192.0.2.6", "192.0.2.7", "192.0.2.8",
		"192.0.2.127", "192.0.2.128", "192.0.2.255", "192.0.3.0", "10.1.0.8", "10.1.0.9", "10.1.0.10", "10.1.1.0", "10.1.255.255", "10.2.0.0", "192.168.0.1",
		"::", "::1:0", "2001:db8::6", "2001:db8::7", "2001:db8::8", "fd00:1::9", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"} {
		remotes = append(remotes, netip.MustParseAddr(a))
	}
	packets := 0
	for _, profile := range hns.Profiles() {
		l := acl.Lower(state, options(profile), "")
		for id := range state.Policy.Endpoints {
			if err := acl.Check(state, id, options(profile), &l.Ruleset, hns.Readings()...); err != nil {
				t.Errorf("hns %s: %v", profile, err)
			}
			packets += comparedAtEdges(t, spec, s, l, id, remotes)
		}
	}
	t.Logf("packets=%d", packets)
}

// comparedAtEdges compares one list.
func comparedAtEdges(t *testing.T, spec *policy.Evaluator, s *model.Snapshot, l *acl.Lowering, id model.EndpointID, remotes []netip.Addr) (packets int) {
	t.Helper()
	endpoint, network := sent(t, &l.Ruleset, id)
	port, err := facts.Read(endpoint, network)
	if err != nil {
		t.Fatal(err)
	}
	name := strings.TrimSuffix(strings.TrimPrefix(string(id), "shop."), ":eth0")
	pod, ok := s.Pods.Get(model.PodID{Namespace: "shop", Name: name})
	if !ok {
		t.Fatalf("no pod %s", name)
	}
	for _, remote := range remotes {
		local := pod.IPs[0]
		if remote.Is6() {
			local = pod.IPs[1]
		}
		for _, p := range []model.Protocol{model.TCP, model.UDP, model.SCTP, model.ICMP, model.ICMPv6, 47, 253} {
			for _, at := range []uint16{0, 1, 2, 79, 80, 81, 100, 101, 65533, 65534, 65535} {
				k := facts.Packet{From: remote, To: local, Protocol: int(p), FromPort: 40000, ToPort: int(at)}
				if !p.HasPorts() {
					k.FromPort, k.ToPort = 0, 0
				}
				want := spec.Endpoint(pod, model.Ingress, remote, p, at)
				got, err := port.Decide(facts.In, k)
				if packets++; err != nil || got != (want.Verdict == model.Allow) {
					t.Fatalf("%s from %s, %s/%d: passes %t, %v; want %s\n%s", name, remote, p, at, got, err, want, hns.FormatACLs("", l.Lists[id]))
				}
			}
		}
	}
	return packets
}

// SPDX-License-Identifier: Apache-2.0

package compile_test

import (
	"net/netip"
	"runtime"
	"syscall"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy/compile"
	"github.com/isthmus-net/isthmus/test/world"
)

// costOfBlocks compiles two policies of n blocks in all, and returns the processor time in microseconds and the
// allocated bytes.
func costOfBlocks(t *testing.T, n int) (processor, memory float64) {
	pod := &model.Pod{PodID: model.PodID{Namespace: "x", Name: "a"}, Node: "node1", IPs: []netip.Addr{netip.MustParseAddr("10.0.1.2")}}
	var policies []*model.Policy
	for half, name := range []string{"p", "q"} {
		rule := model.Rule{Action: model.ActionAccept, AnyPort: true}
		for i := range n / 2 {
			a := netip.AddrFrom4([4]byte{20, byte(half), byte(i >> 8), byte(i)})
			rule.Peers = append(rule.Peers, model.Peer{Kind: model.PeerBlock, Block: model.IPBlock{CIDR: netip.PrefixFrom(a, 32)}})
		}
		p := &model.Policy{Origin: model.Origin{Kind: "NetworkPolicy", Namespace: "x", Name: name}, Tier: model.TierNetworkPolicy,
			Subject: model.PodSelector{Namespace: "x"}, Isolates: [2]bool{true, false}}
		p.Rules[model.Ingress] = []model.Rule{rule}
		policies = append(policies, p)
	}
	s := model.MakeSnapshot(nil, []*model.Node{{Name: "node1"}}, []*model.Pod{pod}, policies)
	used := func() (float64, float64) {
		var u syscall.Rusage
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			t.Fatal(err)
		}
		return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e3, float64(m.TotalAlloc)
	}
	wasProcessor, wasMemory := used()
	state, unsupported := compile.Once(compile.Input{Snapshot: s, Node: "node1", Endpoints: world.Endpoints(s, "node1")})
	isProcessor, isMemory := used()
	if len(state.Policy.Prefixes) != n || len(unsupported) > 0 {
		t.Fatalf("%d prefixes of %d, %v", len(state.Policy.Prefixes), n, unsupported)
	}
	return isProcessor - wasProcessor, isMemory - wasMemory
}

// TestManyBlocks compares the cost of few blocks with that of sixteen times as many. One policy may have tens of
// thousands, and would stop an agent for minutes if the cost grew with the square: then both would be 256 times as much.
func TestManyBlocks(t *testing.T) {
	costOfBlocks(t, 64)
	fewTime, fewMemory := costOfBlocks(t, 1000)
	manyTime, manyMemory := costOfBlocks(t, 16000)
	if times := manyTime / max(fewTime, 1000); times > 40 {
		t.Errorf("processor time grows %.0f times", times)
	}
	if times := manyMemory / fewMemory; times > 32 {
		t.Errorf("memory grows %.0f times", times)
	}
	t.Logf("processor time %.0f and %.0f us, memory %.0f and %.0f bytes", fewTime, manyTime, fewMemory, manyMemory)
}

// TestCostlyRules compiles one policy of rules that a naive compiler needs gigabytes for: nested ranges of ports, which
// make as many sets as there are bounds, and blocks of one CIDR with an exception each. What exceeds a limit is closed
// before any memory is used for it.
func TestCostlyRules(t *testing.T) {
	nested := func(n int) (r model.Rule) {
		r.AnyPeer = true
		for i := range uint16(n) {
			r.Ports = append(r.Ports, model.PortMatch{Protocol: model.TCP, First: 1 + i, Last: 65535 - i})
		}
		return r
	}
	overlapping := model.Rule{AnyPort: true}
	for i := range 3000 {
		except := netip.PrefixFrom(netip.AddrFrom4([4]byte{20, 0, byte(i >> 8), byte(i)}), 32)
		overlapping.Peers = append(overlapping.Peers, model.Peer{Kind: model.PeerBlock, Block: model.IPBlock{CIDR: netip.MustParsePrefix("0.0.0.0/0"), Except: []netip.Prefix{except}}})
	}
	for name, rule := range map[string]model.Rule{"1500 ranges of ports": nested(1500), "30000 ranges of ports": nested(30000), "3000 blocks": overlapping} {
		p := &model.Policy{Origin: model.Origin{Kind: "NetworkPolicy", Namespace: "x", Name: "costly"}, Tier: model.TierNetworkPolicy,
			Subject: model.PodSelector{Namespace: "x"}, Isolates: [2]bool{true, false}}
		rule.Action = model.ActionAccept
		p.Rules[model.Ingress] = []model.Rule{rule}
		pod := &model.Pod{PodID: model.PodID{Namespace: "x", Name: "a"}, Node: "node1", IPs: []netip.Addr{netip.MustParseAddr("10.0.1.2")}}
		s := model.MakeSnapshot(nil, []*model.Node{{Name: "node1"}}, []*model.Pod{pod}, []*model.Policy{p})
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, unsupported := compile.Once(compile.Input{Snapshot: s, Node: "node1", Endpoints: world.Endpoints(s, "node1")})
		runtime.ReadMemStats(&after)
		if n := (after.TotalAlloc - before.TotalAlloc) >> 20; n > 64 || len(unsupported) != 1 {
			t.Errorf("%s: %d MiB are allocated, reported is %v", name, n, unsupported)
		}
	}
}

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

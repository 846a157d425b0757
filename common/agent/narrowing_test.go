// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
)

// fromBlocks is a policy that isolates a pod of the cluster. It accepts n addresses of 10.9.0.0/16, each by a block.
func fromBlocks(name, pod string, n int) *model.Policy {
	p := &model.Policy{Origin: model.Origin{Kind: "NetworkPolicy", Namespace: "shop", Name: name}, Tier: model.TierNetworkPolicy, Isolates: [2]bool{true, false},
		Subject: model.PodSelector{Namespace: "shop", Pods: model.MakeSelector(model.Requirement{Key: "pod", Operator: model.In, Values: []string{pod}})}}
	rule := model.Rule{AnyPort: true, Action: model.ActionAccept}
	for i := range n {
		rule.Peers = append(rule.Peers, model.Peer{Kind: model.PeerBlock, Block: model.IPBlock{CIDR: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)}), 32)}})
	}
	p.Rules[model.Ingress] = []model.Rule{rule}
	return p
}

// TestLargePolicyLeavesRoomForOthers has a policy that does not fit into the data path. Changes of other policies come
// into force, and pods start. Only the large policy is not enforced as written, until it fits.
func TestLargePolicyLeavesRoomForOthers(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.fake.SetPoison(func(s *model.State) error {
			if n := len(s.Policy.Prefixes); n > 200 {
				return fmt.Errorf("map prefixes4 is full: %d entries: %w", n, dataplane.ErrTooManyPeers)
			}
			return nil
		})
		with := func(more ...*model.Policy) *model.Snapshot {
			return cluster{pods: 3, more: more, edit: func(n int, p *model.Pod) {
				p.Labels = model.MakeLabels(map[string]string{"pod": p.Name})
			}}.snapshot()
		}
		accepts := func(n int, from string) bool {
			return r.fake.Decide(id(n), model.Ingress, netip.MustParseAddr(from), model.TCP, 80) == model.Allow
		}
		r.start()
		r.agent.Publish(with())
		r.mustAdd(0)
		r.mustAdd(1)
		r.agent.Publish(with(fromBlocks("large", "web-0", 300), fromBlocks("small", "web-1", 3)))
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if accepts(1, "10.0.2.7") || !accepts(1, "10.9.0.2") {
			t.Error("the small policy is not in force")
		}
		if accepts(0, "10.0.2.7") || accepts(0, "10.9.0.200") {
			t.Error("the large policy does not deny what does not fit")
		}
		r.mustAdd(2)
		wantCode(t, r.agent.Status(context.Background(), nil), 0, "")
		r.wantProblem("map prefixes4 is full")
		for began := r.fake.Applied(); r.fake.Applied() < began+3; { // it tries a larger bound, and stays exact for others
			time.Sleep(time.Minute)
			synctest.Wait()
			if accepts(1, "10.0.2.7") || !accepts(1, "10.9.0.2") || accepts(0, "10.0.2.7") {
				t.Fatal("the small policy is not in force any more")
			}
		}
		r.agent.Publish(with(fromBlocks("large", "web-0", 150), fromBlocks("small", "web-1", 3)))
		time.Sleep(time.Hour)
		synctest.Wait()
		if !accepts(0, "10.9.0.149") || accepts(0, "10.9.0.150") {
			t.Error("the large policy is not in force although it fits")
		}
		r.wantProblem("")
		r.end()
	})
}

// TestMomentarilyFullMap has a State that does not fit for two seconds, because an earlier one still occupies a map. No
// rule is closed.
func TestMomentarilyFullMap(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.start()
		r.agent.Publish(cluster{pods: 1}.snapshot())
		r.mustAdd(0)
		began := time.Now()
		r.fake.SetPoison(func(s *model.State) error {
			if time.Since(began) < 2*time.Second {
				return dataplane.ErrTooManyPeers
			}
			if n := len(s.Policy.Prefixes); n < 100 {
				t.Errorf("only %d prefixes", n)
			}
			return nil
		})
		r.agent.Publish(cluster{pods: 1, more: []*model.Policy{fromBlocks("large", "web-0", 100)}, edit: func(n int, p *model.Pod) {
			p.Labels = model.MakeLabels(map[string]string{"pod": p.Name})
		}}.snapshot())
		time.Sleep(time.Minute)
		synctest.Wait()
		if r.fake.Decide(id(0), model.Ingress, netip.MustParseAddr("10.9.0.99"), model.TCP, 80) != model.Allow || r.reachable(0) {
			t.Error("the policy is not in force")
		}
		r.end()
	})
}

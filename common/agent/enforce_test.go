// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
)

func TestNothingIsAppliedBeforeTheFirstSnapshot(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.start()
		r.agent.Publish(cluster{pods: 2}.snapshot())
		r.mustAdd(0)
		r.end()
		before := r.fake.Dump()
		r.start()
		time.Sleep(time.Hour)
		if after := r.fake.Dump(); after != before {
			t.Errorf("the data path changed from\n%s\nto\n%s", before, after)
		}
		err := r.agent.Status(context.Background(), nil)
		wantCode(t, err, 50, "the state of the cluster is not known yet")
		r.mustDel(0) // which needs no snapshot
		if len(r.attached()) > 0 {
			t.Error("pod is still attached")
		}
		r.end()
	})
}

func TestSnapshotsAreCoalesced(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.start()
		r.agent.Publish(cluster{pods: 1}.snapshot())
		r.settle()
		before := r.fake.Applied()
		for range 100 { // one every millisecond: the agent must not wait until they stop
			r.agent.Publish(cluster{pods: 1}.snapshot())
			time.Sleep(time.Millisecond)
		}
		r.settle()
		if n := r.fake.Applied() - before; n < 2 || n > 4 {
			t.Errorf("100 snapshots in 100 ms took %d applies", n)
		}
		before = r.fake.Applied()
		began := time.Now()
		r.agent.Publish(cluster{pods: 1}.snapshot())
		for r.fake.Applied() == before {
			time.Sleep(time.Millisecond)
		}
		if took := time.Since(began); took > 6*time.Millisecond {
			t.Errorf("one snapshot took %s to be in force", took)
		}
		r.end()
	})
}

// TestPauseAfterCostlyWork publishes continuously while Apply takes long.
func TestPauseAfterCostlyWork(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.start()
		r.agent.Publish(cluster{pods: 2}.snapshot())
		r.settle()
		r.fake.SetFault(func(context.Context, string) error { time.Sleep(200 * time.Millisecond); return nil })
		before := r.fake.Applied()
		for range 400 {
			r.agent.Publish(cluster{pods: 2}.snapshot())
			time.Sleep(10 * time.Millisecond)
		}
		if n := r.fake.Applied() - before; n < 8 || n > 12 {
			t.Errorf("%d applies of 200 ms in 4 s", n)
		}
		r.settle()
		r.end()
	})
}

// TestClassesKeepTheirNumbers changes policies one after the other, also over a restart. The data path has
// nothing to do for addresses that mean the same.
func TestClassesKeepTheirNumbers(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		numbers := func() map[string]model.PeerClass {
			s, err := r.fake.InForce(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			m := make(map[string]model.PeerClass)
			for a, c := range s.Policy.Addresses.All() {
				m[a.String()] = c
			}
			return m
		}
		from := func(cidrs ...string) cluster {
			c := cluster{pods: 2}
			for _, cidr := range cidrs {
				c.more = append(c.more, &model.Policy{Origin: model.Origin{Kind: "NetworkPolicy", Namespace: "shop", Name: cidr}, Tier: model.TierNetworkPolicy,
					Isolates: [2]bool{true, false}, Subject: model.PodSelector{Namespace: "shop"}, Rules: [2][]model.Rule{{{AnyPort: true, Action: model.ActionAccept,
						Peers: []model.Peer{{Kind: model.PeerBlock, Block: model.IPBlock{CIDR: netip.MustParsePrefix(cidr)}}}}}}})
			}
			return c
		}
		r.start()
		r.agent.Publish(from("0.0.0.0/1", "128.0.0.0/2").snapshot()) // takes the first numbers
		r.mustAdd(0)
		r.settle()
		r.agent.Publish(from("192.168.0.2/32", "10.0.2.7/32").snapshot())
		r.settle()
		before := numbers()
		for i, c := range []cluster{from("192.168.0.2/32", "10.0.2.7/32", "10.0.1.0/24"), from("192.168.0.2/32", "10.0.2.7/32", "0.0.0.0/1"), from("10.0.2.7/32", "192.168.0.2/32")} {
			if i == 2 {
				r.end()
				r.start()
			}
			r.agent.Publish(c.snapshot())
			r.settle()
			after := numbers()
			for _, a := range []string{"192.168.0.2", "10.0.2.7"} {
				if after[a] != before[a] {
					t.Errorf("change %d: %s was in class %d and is in %d", i, a, before[a], after[a])
				}
			}
		}
		r.end()
	})
}

func TestApplyIsTriedAgain(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.start()
		r.agent.Publish(cluster{pods: 2}.snapshot())
		r.mustAdd(0)
		var tries []time.Time
		r.fake.SetPoison(func(*model.State) error {
			tries = append(tries, time.Now())
			return errors.New("map is full")
		})
		r.agent.Publish(cluster{pods: 2, edit: func(n int, p *model.Pod) {
			p.Labels = model.MakeLabels(map[string]string{"even": "false"}) // shuts pod 0
		}}.snapshot())
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if !r.reachable(0) {
			t.Error("the old policy is not in force any more")
		}
		if len(tries) < 8 || len(tries) > 14 {
			t.Errorf("%d attempts in two minutes", len(tries))
		}
		for i := 2; i < len(tries); i++ {
			was, is := tries[i-1].Sub(tries[i-2]), tries[i].Sub(tries[i-1])
			if is < was && is < 30*time.Second {
				t.Errorf("attempt %d came after %s, the one before after %s", i, is, was)
			}
		}
		if got := r.metric("isthmus_apply_errors_total"); got == "0" {
			t.Error("errors are not counted")
		}
		err := r.agent.Status(context.Background(), nil)
		wantCode(t, err, 51, "map is full")
		_, err = r.add(1)
		wantCode(t, err, 103, "map is full")
		r.wantOnly(0)
		r.fake.SetPoison(nil)
		time.Sleep(31 * time.Second)
		if r.reachable(0) {
			t.Error("the new policy is not in force")
		}
		err = r.agent.Status(context.Background(), nil)
		wantCode(t, err, 0, "")
		r.mustAdd(1)
		r.end()
	})
}

// TestOneBrokenEndpointLeavesTheOthers breaks an attachment so that Apply reports it. Other pods
// start and end meanwhile, and the agent repairs it.
func TestOneBrokenEndpointLeavesTheOthers(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.start()
		r.agent.Publish(cluster{pods: 4}.snapshot())
		r.mustAdd(0)
		r.fake.Break(id(0), "routes")
		r.mustAdd(1)
		r.mustAdd(2)
		err := r.agent.Status(context.Background(), nil)
		wantCode(t, err, 0, "")
		wantCode(t, r.check(0), 104, "routes is missing")
		if err := r.check(2); err != nil {
			t.Errorf("CHECK 2: %v", err)
		}
		if !r.reachable(0) || !r.reachable(2) || r.reachable(1) {
			t.Errorf("reachable: %t %t %t", r.reachable(0), r.reachable(1), r.reachable(2))
		}
		if r.problems() != "1" {
			t.Error("no problem is reported")
		}
		r.end()
		r.start() // adopts and repairs the attachment
		r.agent.Publish(cluster{pods: 4}.snapshot())
		r.settle()
		if err := r.check(0); err != nil {
			t.Errorf("CHECK 0 after a restart: %v", err)
		}
		r.end()
	})
}

func TestHangingDataPath(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.start()
		r.agent.Publish(cluster{pods: 2}.snapshot())
		r.mustAdd(0)
		r.fake.SetFault(func(ctx context.Context, step string) error {
			if strings.HasPrefix(step, "apply") {
				<-ctx.Done()
			}
			return ctx.Err()
		})
		began := time.Now()
		_, err := r.add(1)
		wantCode(t, err, 11, "deadline exceeded")
		if took := time.Since(began); took > 11*time.Second {
			t.Errorf("took %s", took)
		}
		if !r.reachable(0) {
			t.Error("pod 0 lost its policy")
		}
		r.fake.SetFault(nil)
		time.Sleep(time.Minute)
		r.wantOnly(0)
		r.end()
	})
}

func TestStuckLoopIsNotHealthy(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.start()
		r.agent.Publish(cluster{pods: 2}.snapshot())
		r.mustAdd(0)
		release := make(chan struct{})
		r.fake.SetFault(func(context.Context, string) error { <-release; return nil }) // ignores its deadline
		go r.add(1)
		time.Sleep(31 * time.Second)
		if status, _ := r.get("/healthz"); status != 503 {
			t.Errorf("healthz: %d", status)
		}
		err := r.agent.Status(context.Background(), nil)
		wantCode(t, err, 51, "has not responded")
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if _, err := r.addContext(ctx, addRequest(1)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("ADD: %v", err)
		}
		close(release)
		r.settle()
		if status, _ := r.get("/healthz"); status != 200 {
			t.Errorf("healthz after the hang: %d", status)
		}
		r.end()
	})
}

func TestUnsupportedIsReported(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.start()
		many := &model.Policy{Origin: model.Origin{Kind: "NetworkPolicy", Namespace: "shop", Name: "many"}, Tier: model.TierNetworkPolicy, Isolates: [2]bool{true, false},
			Subject: model.PodSelector{Namespace: "shop"}}
		for p := range 1200 {
			many.Rules[0] = append(many.Rules[0], model.Rule{Index: p, Action: model.ActionAccept, AnyPeer: true,
				Ports: []model.PortMatch{{Protocol: model.TCP, First: uint16(1000 + p), Last: uint16(1000 + 2*p)}}})
		}
		r.agent.Publish(cluster{pods: 2, more: []*model.Policy{many}}.snapshot())
		r.mustAdd(0)
		r.settle()
		if got := r.metric(`isthmus_unsupported{effect="over-blocks"}`); got == "0" || got == "" {
			t.Errorf("isthmus_unsupported is %q", got)
		}
		r.agent.Publish(cluster{pods: 2}.snapshot())
		r.settle()
		if got := r.metric(`isthmus_unsupported{effect="over-blocks"}`); got != "0" {
			t.Errorf("isthmus_unsupported is %q when nothing is", got)
		}
		r.end()
	})
}

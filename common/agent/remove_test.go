// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/api/cniframe"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/dataplane/dataplanetest"
	"github.com/isthmus-net/isthmus/common/model"
)

func TestDelIsTolerant(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.start()
		r.mustDel(5) // before the first snapshot, and of an unknown pod
		r.agent.Publish(cluster{pods: 2}.snapshot())
		r.mustAdd(0)
		r.fake.RemoveNetNS(addRequest(0).Netns)
		for range 3 {
			r.mustDel(0)
		}
		r.wantOnly()
		err := r.agent.Del(context.Background(), &cniframe.DelRequest{Attachment: cniframe.Attachment{ContainerID: "/", IfName: "eth0"}})
		wantCode(t, err, 4, "CNI_CONTAINERID")
		r.end()
	})
}

func TestDelIsFinishedLater(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.start()
		r.agent.Publish(cluster{pods: 2}.snapshot())
		ips := r.mustAdd(0)
		busy := true
		r.fake.SetFault(func(_ context.Context, step string) error {
			if busy && strings.HasPrefix(step, "delete") {
				return errors.New("busy")
			}
			return nil
		})
		wantCode(t, r.del(0), 103, "busy")
		r.settle()
		if r.reachable(0) {
			t.Error("a pod whose DEL came is reachable")
		}
		if next := r.mustAdd(1); next[0] == ips[0] {
			t.Error("the address of an attachment that is still there was given out")
		}
		_, err := r.add(0)
		wantCode(t, err, 103, "busy")
		r.fake.SetFault(nil)
		time.Sleep(time.Minute)
		r.wantOnly(1) // although the runtime did not retry
		r.end()
	})
}

func TestGC(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.start()
		r.agent.Publish(cluster{pods: 5}.snapshot())
		for n := range 4 {
			r.mustAdd(n)
		}
		other := addRequest(4)
		other.Network = "another"
		if _, err := r.agent.Add(context.Background(), other); err != nil {
			t.Fatal(err)
		}
		removed, err := r.gc(1, 3, 99)
		if err != nil || fmt.Sprint(removed) != "[c0:eth0 c2:eth0]" {
			t.Errorf("removed %v, %v", removed, err)
		}
		r.settle()
		r.wantOnly(1, 3, 4)
		failing := 0
		r.fake.SetFault(func(_ context.Context, step string) error {
			if step == "delete.deny" {
				if failing++; failing == 1 {
					return errors.New("busy")
				}
			}
			return nil
		})
		_, err = r.gc()
		wantCode(t, err, 103, "remove 1 of the attachments")
		if got := r.attached(); len(got) != 2 {
			t.Errorf("GC did not go on after an error: %v is attached", got)
		}
		time.Sleep(time.Minute)
		r.wantOnly(4)
		resp, err := r.agent.GC(context.Background(), &cniframe.GCRequest{}) // of all networks
		if err != nil || len(resp.Removed) != 1 {
			t.Errorf("removed %v, %v", resp, err)
		}
		_, err = r.agent.GC(context.Background(), &cniframe.GCRequest{Valid: []cniframe.Attachment{{ContainerID: "ok", IfName: "a b"}}})
		wantCode(t, err, 4, "CNI_IFNAME")
		r.end()
	})
}

func TestCheck(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.start()
		r.agent.Publish(cluster{pods: 2}.snapshot())
		wantCode(t, r.check(0), 104, "attachment c0:eth0 does not exist")
		ip := r.mustAdd(0)[0].String()
		wantCode(t, r.check(0), 0, "")
		wantCode(t, r.check(0, ip+"/32"), 0, "")
		wantCode(t, r.check(0, "10.0.1.9/32"), 104, "has the addresses "+ip)
		wantCode(t, r.check(0, ip+"/32", "fd00::1/64"), 104, "has the addresses "+ip)
		wantCode(t, r.check(0, "nonsense"), 4, "is not valid")
		err := r.agent.Check(context.Background(), &cniframe.CheckRequest{Attachment: addRequest(0).Attachment, Netns: "/run/netns/x"})
		wantCode(t, err, 104, "is in /run/netns/c0, not in /run/netns/x")
		r.fake.Break(id(0), "addresses")
		wantCode(t, r.check(0), 104, "addresses is missing")
		r.mustDel(0)
		wantCode(t, r.check(0), 104, "does not exist")
		r.end()
	})
}

// TestCheckNeedsThePolicy checks that CHECK of a complete attachment fails until a State with the
// endpoint is in force, for example before the first snapshot of a new agent.
func TestCheckNeedsThePolicy(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.start()
		r.agent.Publish(cluster{pods: 1}.snapshot())
		r.mustAdd(0)
		wantCode(t, r.check(0), 0, "")
		r.end()
		r.start()
		r.settle()
		wantCode(t, r.check(0), 104, "its policy is not known, or not in force yet")
		r.agent.Publish(cluster{pods: 1}.snapshot())
		r.settle()
		wantCode(t, r.check(0), 0, "")
		r.end()
	})
}

func TestStopAnswersWaitingRequests(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.start()
		r.agent.Publish(cluster{pods: 1}.snapshot())
		r.mustAdd(0)
		result := make(chan error, 1)
		go func() { _, err := r.add(1); result <- err }()
		r.settle()
		r.end()
		wantCode(t, <-result, 11, "is stopping")
		if !r.reachable(0) {
			t.Error("the data path does not work any more")
		}
		_, err := r.add(1)
		wantCode(t, err, 11, "is stopping")
	})
}

// atOnce is a data path that removes several attachments by one call, all but one.
type atOnce struct {
	*dataplanetest.Fake
	busy  model.EndpointID
	sizes []int
}

func (a *atOnce) DeleteEndpoints(ctx context.Context, ids []model.EndpointID) []error {
	a.sizes = append(a.sizes, len(ids))
	errs := make([]error, len(ids))
	for i, id := range ids {
		if errs[i] = errors.New("busy"); id != a.busy {
			errs[i] = a.DeleteEndpoint(ctx, id)
		}
	}
	return errs
}

// TestDelsAreServedTogether sends several DELs while the loop works on one. One call serves them, each gets
// its own answer, and a failed one does not delay the others.
func TestDelsAreServedTogether(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		b := &atOnce{Fake: r.fake, busy: id(2)}
		r.change = func(c *agentConfig) {
			c.Open = func(context.Context, model.Node) (dataplane.Backend, error) { return b, nil }
		}
		r.start()
		r.agent.Publish(cluster{pods: 6}.snapshot())
		for n := range 6 {
			r.mustAdd(n)
		}
		slow := true
		r.onStep(func(name string) {
			if name == "drop.detach" && slow {
				slow = false
				time.Sleep(time.Second)
			}
		})
		dels := []int{0, 1, 2, 3, 3, 4}
		answers := make([]error, len(dels))
		var running sync.WaitGroup
		for i, n := range dels {
			running.Go(func() { answers[i] = r.del(n) })
			time.Sleep(time.Millisecond) // the first request alone
		}
		running.Wait()
		for i, n := range dels {
			if n == 2 {
				wantCode(t, answers[i], 103, "busy")
			} else if answers[i] != nil {
				t.Errorf("DEL %d: %v", n, answers[i])
			}
		}
		if fmt.Sprint(b.sizes) != "[4]" {
			t.Errorf("removed in calls of %v, want one of 4 after the first pod alone", b.sizes)
		}
		time.Sleep(time.Minute)
		r.wantOnly(5) // the failed one alone
		r.end()
	})
}

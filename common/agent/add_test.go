// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/api/cniframe"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/endpoint"
	"github.com/isthmus-net/isthmus/common/model"
)

func TestAddAnswersWhenPolicyIsInForce(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.start()
		r.agent.Publish(cluster{pods: 4}.snapshot())
		for n := range 4 {
			r.mustAdd(n)
			log := r.fake.Log()
			added, applied := slices.Index(log, "add "+string(id(n))), -1
			for i, line := range log {
				if strings.HasPrefix(line, "apply") && slices.Contains(strings.Fields(line), string(id(n))) {
					applied = i
					break
				}
			}
			if added < 0 || applied < added {
				t.Fatalf("pod %d was answered for, but the data path did %q", n, log)
			}
			if got, want := r.reachable(n), n%2 == 0; got != want {
				t.Errorf("pod %d reachable: %t, want %t", n, got, want)
			}
		}
		r.wantOnly(0, 1, 2, 3)
		r.end()
	})
}

func TestAddIsDeniedUntilApply(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.start()
		r.agent.Publish(cluster{pods: 1}.snapshot())
		r.settle()
		var seen []string
		r.fake.SetFault(func(_ context.Context, step string) error {
			if r.reachable(0) {
				seen = append(seen, step)
			}
			return nil
		})
		r.mustAdd(0)
		if len(seen) > 0 || !r.reachable(0) {
			t.Errorf("reachable at %v, in the end %t", seen, r.reachable(0))
		}
		r.end()
	})
}

func TestAddAgain(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.start()
		r.agent.Publish(cluster{pods: 3}.snapshot())
		first, err := r.agent.Add(context.Background(), addRequest(0))
		if err != nil {
			t.Fatal(err)
		}
		for round := range 3 {
			again, err := r.agent.Add(context.Background(), addRequest(0))
			if err != nil || !reflect.DeepEqual(again, first) {
				t.Errorf("round %d: %v, %v, want %v", round, again, err, first)
			}
			if round == 1 {
				r.end()
				r.start()
				r.agent.Publish(cluster{pods: 3}.snapshot())
			}
		}
		r.wantOnly(0)
		for name, change := range map[string]func(*cniframe.AddRequest){
			"pod":   func(q *cniframe.AddRequest) { q.PodName, q.PodUID = "web-1", "uid-1" },
			"uid":   func(q *cniframe.AddRequest) { q.PodUID = "" },
			"netns": func(q *cniframe.AddRequest) { q.Netns = "/run/netns/other" },
		} {
			q := addRequest(0)
			change(q)
			_, err := r.agent.Add(context.Background(), q)
			if code(err) != 100 || !strings.Contains(err.Error(), "DEL") {
				t.Errorf("%s differs: got %v", name, err)
			}
		}
		q := addRequest(0)
		q.Attachment.IfName = "net1"
		_, err = r.agent.Add(context.Background(), q)
		wantCode(t, err, 101, "one interface per pod")
		r.wantOnly(0)
		r.end()
	})
}

func TestAddRefusesBadRequests(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.start()
		r.agent.Publish(cluster{pods: 1}.snapshot())
		long := strings.Repeat("a", 300)
		for _, c := range []struct {
			change func(*cniframe.AddRequest)
			text   string
		}{
			{func(q *cniframe.AddRequest) { q.Attachment = cniframe.Attachment{} }, "CNI_CONTAINERID"},
			{func(q *cniframe.AddRequest) { q.Attachment.ContainerID = "../x" }, "CNI_CONTAINERID"},
			{func(q *cniframe.AddRequest) { q.Attachment.ContainerID = "-x" }, "CNI_CONTAINERID"},
			{func(q *cniframe.AddRequest) { q.Attachment.ContainerID = "a:b" }, "CNI_CONTAINERID"},
			{func(q *cniframe.AddRequest) { q.Attachment.IfName = "" }, "CNI_IFNAME"},
			{func(q *cniframe.AddRequest) { q.Attachment.IfName = ".." }, "CNI_IFNAME"},
			{func(q *cniframe.AddRequest) { q.Attachment.IfName = "a/b" }, "CNI_IFNAME"},
			{func(q *cniframe.AddRequest) { q.Attachment.IfName = "sixteen-letters-" }, "CNI_IFNAME"},
			{func(q *cniframe.AddRequest) { q.Netns = "" }, "CNI_NETNS"},
			{func(q *cniframe.AddRequest) { q.Netns = "/run/\x00" }, "CNI_NETNS"},
			{func(q *cniframe.AddRequest) { q.PodName = "" }, "CNI_ARGS"},
			{func(q *cniframe.AddRequest) { q.PodNamespace = "" }, "CNI_ARGS"},
			{func(q *cniframe.AddRequest) { q.PodNamespace = "a.b" }, "K8S_POD_NAMESPACE"},
			{func(q *cniframe.AddRequest) { q.PodName = "Web" }, "K8S_POD_NAME"},
			{func(q *cniframe.AddRequest) { q.PodName = long }, "K8S_POD_NAME"},
			{func(q *cniframe.AddRequest) { q.PodUID = "u id" }, "K8S_POD_UID"},
			{func(q *cniframe.AddRequest) { q.Network = "/" }, "network name"},
		} {
			q := addRequest(0)
			c.change(q)
			_, err := r.agent.Add(context.Background(), q)
			wantCode(t, err, 4, c.text)
		}
		r.wantOnly()
		r.end()
	})
}

func TestAddFailsForWhatTheDataPathRefuses(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.start()
		r.agent.Publish(cluster{pods: 2}.snapshot())
		r.settle()
		r.fake.RemoveNetNS(addRequest(0).Netns)
		_, err := r.add(0)
		wantCode(t, err, 4, "CNI_NETNS")
		if !errors.Is(err, dataplane.ErrNoNetNS) {
			t.Errorf("the cause is lost: %v", err)
		}
		r.fake.OccupyInterface(addRequest(1).Netns, "eth0")
		_, err = r.add(1)
		wantCode(t, err, 103, "interface exists")
		r.wantOnly()
		if r := r.records(); len(r) != 0 {
			t.Errorf("records %v are left", r)
		}
		r.end()
	})
}

func TestAddressesRunOut(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.change = func(c *agentConfig) { c.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.0.1.0/30")} }
		r.start()
		r.agent.Publish(cluster{pods: 3}.snapshot())
		r.mustAdd(0)
		_, err := r.add(1)
		wantCode(t, err, 102, "node node1 has no free address for pod shop/web-1: no free address in 10.0.1.0/30: 1 used, 0 in quarantine: delete pods")
		err = r.agent.Status(context.Background(), nil)
		wantCode(t, err, 50, "no free address")
		r.mustDel(0)
		_, err = r.add(1)
		wantCode(t, err, 102, "0 used, 1 in quarantine")
		time.Sleep(29 * time.Second)
		r.end() // the quarantine survives a restart
		r.start()
		r.agent.Publish(cluster{pods: 3}.snapshot())
		_, err = r.add(1)
		wantCode(t, err, 102, "0 used, 1 in quarantine")
		time.Sleep(time.Second)
		r.mustAdd(1)
		time.Sleep(time.Second)
		if got := r.records(); len(got[endpoint.Released]) != 0 {
			t.Errorf("tombstones %v were not purged", got)
		}
		r.end()
	})
}

func TestParallelAdds(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.start()
		r.agent.Publish(cluster{pods: 20}.snapshot())
		r.settle()
		before := r.fake.Applied()
		var wg sync.WaitGroup
		var mu sync.Mutex
		owner := make(map[netip.Addr]int)
		var pods []int
		for n := range 20 {
			pods = append(pods, n)
			wg.Go(func() {
				ips, err := r.add(n)
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					t.Errorf("pod %d: %v", n, err)
				}
				for _, ip := range ips {
					if other, ok := owner[ip]; ok {
						t.Errorf("pods %d and %d have %s", n, other, ip)
					}
					owner[ip] = n
				}
			})
		}
		wg.Wait()
		r.wantOnly(pods...)
		if n := r.fake.Applied() - before; n > 20 {
			t.Errorf("20 pods took %d applies", n)
		}
		r.end()
	})
}

// TestOnePodThatCannotBeAppliedLeavesTheOthers makes Apply fail whenever pod 3 is attached.
func TestOnePodThatCannotBeAppliedLeavesTheOthers(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.start()
		r.agent.Publish(cluster{pods: 6}.snapshot())
		r.settle()
		gate := make(chan struct{})
		adding := 0
		r.fake.SetFault(func(ctx context.Context, step string) error {
			if step == "add.slot" {
				if adding++; adding == 1 {
					<-gate // the other ADDs queue up, so that they form one batch
				}
			}
			return nil
		})
		var wg sync.WaitGroup
		results := make([]error, 6)
		for n := range 6 {
			wg.Go(func() { _, results[n] = r.add(n) })
			if n == 0 {
				r.settle()
			}
		}
		r.settle()
		r.fake.SetPoison(func(s *model.State) error {
			if _, ok := s.Policy.Endpoints[id(3)]; ok {
				return errors.New("no room for the table of pod 3")
			}
			return nil
		})
		close(gate)
		wg.Wait()
		for n, err := range results {
			if (err != nil) != (n == 3) {
				t.Errorf("pod %d: %v", n, err)
			}
		}
		wantCode(t, results[3], 103, "no room")
		r.settle()
		r.wantOnly(0, 1, 2, 4, 5)
		err := r.agent.Status(context.Background(), nil)
		wantCode(t, err, 0, "")
		r.end()
	})
}

func TestAddsForOneAttachmentAtOnce(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.start()
		r.agent.Publish(cluster{pods: 0}.snapshot())
		r.settle()
		var wg sync.WaitGroup
		answers := make([]string, 5)
		for i := range answers {
			wg.Go(func() {
				resp, err := r.agent.Add(context.Background(), addRequest(0))
				answers[i] = fmt.Sprint(resp, err)
			})
		}
		r.settle()
		r.agent.Publish(cluster{pods: 1}.snapshot())
		wg.Wait()
		for _, a := range answers {
			if a != answers[0] || strings.HasPrefix(a, "<nil>") {
				t.Errorf("answers %q", answers)
				break
			}
		}
		r.wantOnly(0)
		r.end()
	})
}

func TestDelOvertakesAdd(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.start()
		r.agent.Publish(cluster{pods: 0}.snapshot())
		r.settle()
		result := make(chan error, 1)
		go func() { _, err := r.add(0); result <- err }()
		r.settle()
		r.mustDel(0)
		wantCode(t, <-result, 11, "DEL of c0:eth0 came before")
		r.agent.Publish(cluster{pods: 1}.snapshot())
		r.settle()
		r.wantOnly()
		r.end()
	})
}

func TestCallerGivesUp(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.start()
		r.agent.Publish(cluster{pods: 0}.snapshot())
		r.settle()
		ctx, cancel := context.WithCancel(context.Background())
		result := make(chan error, 1)
		go func() { _, err := r.addContext(ctx, addRequest(0)); result <- err }()
		r.settle()
		cancel()
		if err := <-result; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		r.agent.Publish(cluster{pods: 1}.snapshot())
		r.settle()
		r.wantOnly() // the caller got an error, so nothing may be attached
		r.end()
	})
}

// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
)

func TestAddWaitsForItsPod(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.start()
		began := time.Now()
		_, err := r.add(0)
		wantCode(t, err, 11, "the state of the cluster is not known yet")
		if took := time.Since(began); took != 5*time.Second {
			t.Errorf("waited %s for the first snapshot", took)
		}
		r.agent.Publish(cluster{pods: 0}.snapshot())
		began = time.Now()
		go func() {
			time.Sleep(2 * time.Second)
			r.agent.Publish(cluster{pods: 1}.snapshot())
		}()
		r.mustAdd(0)
		if took := time.Since(began); took < 2*time.Second || took > 2*time.Second+time.Millisecond {
			t.Errorf("took %s for a pod that was known after 2 s", took)
		}
		_, err = r.add(1)
		wantCode(t, err, 11, "pod shop/web-1 is not known to the agent")
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		began = time.Now()
		_, err = r.addContext(ctx, addRequest(1))
		wantCode(t, err, 11, "pod shop/web-1 is not known to the agent")
		if took := time.Since(began); took >= time.Second {
			t.Errorf("answered %s after a request with a deadline of 1 s", took)
		}
		r.wantOnly(0)
		r.end()
	})
}

func TestAddWaitsForTheRightPod(t *testing.T) {
	const static = "0123456789abcdef0123456789abcdef"
	for name, c := range map[string]struct {
		edit func(*model.Pod)
		uid  string
		want uint32
		text string
	}{
		"same":                   {func(*model.Pod) {}, "uid-0", 0, ""},
		"no uid from runtime":    {func(*model.Pod) {}, "", 0, ""},
		"no uid in manifest":     {func(p *model.Pod) { p.UID = "" }, "uid-0", 0, ""},
		"static pod":             {func(p *model.Pod) { p.UID = "mirror" }, static, 0, ""},
		"not scheduled manifest": {func(p *model.Pod) { p.Node = "" }, "uid-0", 0, ""},
		"successor":              {func(p *model.Pod) { p.UID = "uid-old" }, "uid-0", 11, "known with UID uid-old, not uid-0"},
		"other node":             {func(p *model.Pod) { p.Node = "node2" }, "uid-0", 11, "bound to node node2, not to node1"},
		"finished":               {func(p *model.Pod) { p.Finished = true }, "uid-0", 11, "has finished"},
		"host network":           {func(p *model.Pod) { p.HostNetwork = true }, "uid-0", 101, "uses the host network"},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(t *testing.T, r *rig) {
				r.start()
				r.agent.Publish(cluster{pods: 1, edit: func(_ int, p *model.Pod) { c.edit(p) }}.snapshot())
				q := addRequest(0)
				q.PodUID = c.uid
				_, err := r.agent.Add(context.Background(), q)
				wantCode(t, err, c.want, c.text)
				if c.want != 0 {
					r.wantOnly()
				}
				r.end()
			})
		})
	}
}

// TestSecondSandbox adds a pod's new sandbox while the old one still exists. Only the new one has
// the pod's policy.
func TestSecondSandbox(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.start()
		r.agent.Publish(cluster{pods: 1}.snapshot())
		r.mustAdd(0)
		again := addRequest(0)
		again.Attachment.ContainerID, again.Netns = "c7", "/run/netns/c7"
		time.Sleep(time.Second)
		if _, err := r.agent.Add(context.Background(), again); err != nil {
			t.Fatal(err)
		}
		if r.reachable(0) || !r.reachable(7) {
			t.Errorf("reachable: old sandbox %t, new sandbox %t", r.reachable(0), r.reachable(7))
		}
		r.mustDel(0)
		r.settle()
		if !r.reachable(7) {
			t.Error("the new sandbox lost its policy with the old one")
		}
		r.end()
	})
}

// TestPodIsReplaced checks an attached pod whose name the API now has for another pod. The
// attachment does not get the new pod's policy.
func TestPodIsReplaced(t *testing.T) {
	for name, edit := range map[string]func(*model.Pod){
		"successor on this node": func(p *model.Pod) { p.UID = "uid-new" },
		"successor elsewhere": func(p *model.Pod) {
			p.UID, p.Node, p.IPs = "uid-new", "node2", []netip.Addr{netip.MustParseAddr("10.0.2.9")}
		},
		"on the host network": func(p *model.Pod) { p.UID, p.HostNetwork = "", true },
		"finished":            func(p *model.Pod) { p.Finished = true },
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(t *testing.T, r *rig) {
				r.start()
				r.agent.Publish(cluster{pods: 1}.snapshot())
				r.mustAdd(0)
				if !r.reachable(0) {
					t.Fatal("pod is not reachable")
				}
				r.agent.Publish(cluster{pods: 1, edit: func(_ int, p *model.Pod) { edit(p) }}.snapshot())
				r.settle()
				if r.reachable(0) {
					t.Error("the old pod has the policy of the new one")
				}
				wantCode(t, r.check(0), 104, "is denied")
				r.agent.Publish(cluster{}.snapshot()) // the pod does not exist
				r.settle()
				if r.reachable(0) {
					t.Error("a pod that the API does not have is reachable")
				}
				r.mustDel(0)
				r.end()
			})
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/agent"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/dataplane/dataplanetest"
	"github.com/isthmus-net/isthmus/common/endpoint"
	"github.com/isthmus-net/isthmus/common/model"
)

// TestLateFailureQuarantinesAddress makes the last write of an ADD fail, after its policy was in
// force. Peers may have seen the address by then, so the next pod must not get it, also not from
// the next agent.
func TestLateFailureQuarantinesAddress(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.start()
		r.agent.Publish(cluster{pods: 4}.snapshot())
		r.settle()
		var unblock func()
		r.onStep(func(name string) {
			switch {
			case name == "add.ready" && unblock == nil:
				unblock = r.block(0)
			case name == "drop.tombstone":
				unblock()
			}
		})
		_, err := r.add(0)
		wantCode(t, err, 5, "record pod shop/web-0")
		r.step.Store(nil)
		s, err := endpoint.Open(r.dir)
		if err != nil {
			t.Fatal(err)
		}
		all, _, err := s.Load()
		if err != nil || len(all) != 1 || all[0].State != endpoint.Released {
			t.Fatalf("records %v, %v: want the tombstone of the failed ADD", all, err)
		}
		quarantined := all[0].IPs[0]
		// Allocation proceeds through the range, so that only the quarantine protects the address.
		r.end()
		r.change = func(c *agent.Config) { c.PodCIDRs = ranges("10.0.1.0/30") }
		r.start()
		r.agent.Publish(cluster{pods: 4, nodes: []*model.Node{node("node1", "10.0.1.0/30"), node("node2", "10.0.2.0/24")}}.snapshot())
		_, err = r.add(1)
		wantCode(t, err, 102, "0 used, 1 in quarantine")
		time.Sleep(31 * time.Second)
		if ips := r.mustAdd(1); ips[0] != quarantined {
			t.Errorf("after the quarantine the pod has %v, want %s", ips, quarantined)
		}
		r.end()
	})
}

// TestEarlyFailureFreesAddress is the counterpart: an address that no peer can have seen is
// free immediately.
func TestEarlyFailureFreesAddress(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.change = func(c *agent.Config) { c.PodCIDRs = ranges("10.0.1.0/30") }
		r.start()
		r.agent.Publish(cluster{pods: 2}.snapshot())
		r.settle()
		r.fake.RemoveNetNS(addRequest(0).Netns)
		_, err := r.add(0)
		wantCode(t, err, 4, "CNI_NETNS")
		r.mustAdd(1)
		r.end()
	})
}

// TestTwoSandboxesOfOnePod adds two sandboxes of a pod at the same time. A State names only the
// newest sandbox of a pod. The other one has no policy, so its ADD must fail and leave nothing.
func TestTwoSandboxesOfOnePod(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.start()
		r.agent.Publish(cluster{pods: 0}.snapshot())
		r.settle()
		second := addRequest(0)
		second.Attachment.ContainerID, second.Netns = "c8", "/run/netns/c8"
		var older, newer error
		var wg sync.WaitGroup
		wg.Go(func() { _, older = r.add(0) })
		wg.Go(func() { _, newer = r.addContext(context.Background(), second) })
		r.settle()
		r.agent.Publish(cluster{pods: 1}.snapshot()) // now both requests proceed, as one batch
		wg.Wait()
		wantCode(t, older, 11, "pod shop/web-0 was replaced by another sandbox or pod")
		wantCode(t, newer, 0, "")
		r.wantOnly(8)
		if got := r.records()[endpoint.Released]; !slices.Equal(got, []string{string(id(0))}) {
			t.Errorf("tombstones %v, want that of the older sandbox, whose address is in quarantine", got)
		}
		r.end()
	})
}

func ranges(texts ...string) []netip.Prefix {
	var all []netip.Prefix
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// forgetful is a data path that reports the removal of an attachment that still exists.
type forgetful struct {
	*dataplanetest.Fake
	keeps bool
}

func (f *forgetful) DeleteEndpoint(ctx context.Context, id model.EndpointID) error {
	if f.keeps {
		return nil
	}
	return f.Fake.DeleteEndpoint(ctx, id)
}

// TestAttachmentOfATombstoneIsRemoved makes an attachment reappear after its DEL, when its record is a
// tombstone. GC, an audit and the next agent must each remove it.
func TestAttachmentOfATombstoneIsRemoved(t *testing.T) {
	for name, ask := range map[string]func(*rig){
		"GC": func(r *rig) {
			removed, err := r.gc(1)
			if err != nil || !slices.Equal(removed, []string{string(id(0))}) {
				r.t.Errorf("GC removed %v, %v, want c0:eth0", removed, err)
			}
		},
		"audit": func(r *rig) { time.Sleep(15 * time.Second) },
		"start": func(r *rig) {
			r.end()
			r.start()
			r.agent.Publish(cluster{pods: 2}.snapshot())
		},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(t *testing.T, r *rig) {
				b := &forgetful{Fake: r.fake}
				r.change = func(c *agent.Config) {
					c.AuditEvery = 10 * time.Second
					c.Open = func(context.Context, model.Node) (dataplane.Backend, error) {
						r.fake.Reopen()
						return b, nil
					}
				}
				r.start()
				r.agent.Publish(cluster{pods: 2}.snapshot())
				r.mustAdd(0)
				r.mustAdd(1)
				b.keeps = true
				r.mustDel(0)
				b.keeps = false
				if got := r.attached(); len(got) != 2 {
					t.Fatalf("attached %v: the data path was to keep it", got)
				}
				ask(r)
				r.settle()
				r.wantOnly(1)
				r.end()
			})
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-net/isthmus/common/agent"
	"github.com/isthmus-net/isthmus/common/api/cniframe"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/report"
)

// addressed is a snapshot of pods with addresses in the API.
func addressed(pods int, edit func(n int, p *model.Pod), addresses ...[]netip.Addr) *model.Snapshot {
	return cluster{pods: pods, edit: func(n int, p *model.Pod) {
		if n < len(addresses) {
			p.IPs = addresses[n]
		}
		if edit != nil {
			edit(n, p)
		}
	}}.snapshot()
}

// reported keeps the pods that an agent reports.
type reported struct{ facts atomic.Pointer[report.Facts] }

func (r *reported) configure(c *agent.Config) {
	c.Report = func(f report.Facts) { r.facts.Store(&f) }
}

// wantUnattached checks which pods an agent reports as not under policy, with a part of the reason: in its problems, its
// metrics, and what it reports to the cluster. It goes on working.
func (r *rig) wantUnattached(to *reported, why string, pods ...string) {
	r.t.Helper()
	synctest.Wait()
	status := r.agent.Node(context.Background())
	var inStatus, inReport []string
	for _, p := range status.Problems {
		if pod, rest, ok := strings.Cut(p, ": policy is NOT enforced: "); ok && strings.Contains(rest, why) {
			inStatus = append(inStatus, strings.TrimPrefix(pod, "pod "))
		}
	}
	for _, u := range to.facts.Load().Unenforced {
		if strings.Contains(u.Detail, why) {
			inReport = append(inReport, u.Pod.String())
		}
	}
	if !slices.Equal(inStatus, pods) || !slices.Equal(inReport, pods) {
		r.t.Errorf("problems %q name %q, the report %q, want %q", status.Problems, inStatus, inReport, pods)
	}
	list, err := r.agent.Endpoints(context.Background())
	if err != nil {
		r.t.Fatal(err)
	}
	var inList []string
	for _, e := range list {
		if e.Attached == "no" && e.Unenforced && len(e.Addresses) > 0 && strings.Contains(fmt.Sprint(e.Problems), why) {
			inList = append(inList, e.Pod.String())
		}
	}
	if !slices.Equal(inList, pods) {
		r.t.Errorf("endpoints name %q, want %q: %+v", inList, pods, list)
	}
	for _, series := range []string{"isthmus_pods_unpoliced", `isthmus_problems{kind="unenforced"}`} {
		if got := r.metric(series); got != fmt.Sprint(len(pods)) {
			r.t.Errorf("%s is %q, want %d", series, got, len(pods))
		}
	}
	if err := r.agent.Status(context.Background(), &cniframe.StatusRequest{}); err != nil || !status.Ready {
		r.t.Errorf("ready %t, STATUS %v", status.Ready, err)
	}
}

// A pod that has addresses in the API and was attached by another network has no policy, in both modes. It is reported after
// a grace period, also after a restart, until it is gone. Pods of the host network and others are not.
func TestUnattached(t *testing.T) {
	for mode, why := range map[string]string{"full": "Isthmus did not give it the address", "policy": "no veth pair"} {
		t.Run(mode, func(t *testing.T) {
			run(t, func(t *testing.T, r *rig) {
				to := &reported{}
				r.noPool, r.change = true, func(c *agent.Config) { to.configure(c); c.PolicyOnly = mode == "policy" }
				r.start()
				r.agent.Publish(addressed(7, nil))
				req := addRequest(0)
				if mode == "policy" {
					req = foreignRequest(0, "10.0.1.9")
				}
				own, err := r.addContext(context.Background(), req)
				if err != nil {
					t.Fatal(err)
				}
				if mode == "policy" {
					own = []netip.Addr{netip.MustParseAddr("10.0.1.9")}
				}
				v4, v6 := netip.MustParseAddr("10.0.1.77"), netip.MustParseAddr("fd00::77")
				snapshot := func(pods int) *model.Snapshot {
					both := []netip.Addr{v4, v6}
					return addressed(pods, func(n int, p *model.Pod) {
						p.HostNetwork, p.Finished = n == 3, n == 4
						if n == 5 {
							p.Node = "node2"
						}
					}, own, both, []netip.Addr{v6.Next()}, both, both, both)
				}
				r.agent.Publish(snapshot(7))
				time.Sleep(time.Second)
				r.wantUnattached(to, why)
				time.Sleep(3 * time.Second)
				r.wantUnattached(to, why, "shop/web-1", "shop/web-2")
				r.end()
				r.start()
				r.agent.Publish(snapshot(7))
				time.Sleep(4 * time.Second)
				r.wantUnattached(to, why, "shop/web-1", "shop/web-2")
				r.agent.Publish(snapshot(2))
				time.Sleep(time.Second)
				r.wantUnattached(to, why, "shop/web-1")
				r.agent.Publish(snapshot(1))
				time.Sleep(time.Second)
				r.wantUnattached(to, why)
				r.end()
			})
		})
	}
}

// unattachedRig starts an agent in mode full whose pods 0 and 1 are attached, and have these addresses in the API.
func unattachedRig(r *rig, to *reported) func(edit func(n int, p *model.Pod)) {
	r.change = to.configure
	r.start()
	r.agent.Publish(addressed(3, nil))
	first, second := r.mustAdd(0), r.mustAdd(1)
	show := func(edit func(n int, p *model.Pod)) {
		r.agent.Publish(addressed(3, edit, first, second))
		time.Sleep(5 * time.Second)
	}
	show(nil)
	r.wantUnattached(to, "")
	return show
}

// A pod that this agent or the one before has detached is not reported while the API still shows it, and neither is one whose
// sandbox is made again.
func TestDetachedIsNotReported(t *testing.T) {
	for name, detach := range map[string]func(r *rig){
		"DEL": func(r *rig) { r.mustDel(1) },
		"DEL, then a restart": func(r *rig) {
			r.mustDel(1)
			r.end()
			r.start()
		},
		"GC": func(r *rig) {
			if removed, err := r.gc(0); err != nil || len(removed) != 1 {
				r.t.Errorf("GC removed %q, %v", removed, err)
			}
		},
		"the next sandbox": func(r *rig) {
			r.mustDel(1)
			req := addRequest(1)
			req.Attachment.ContainerID = "next"
			if _, err := r.addContext(context.Background(), req); err != nil {
				r.t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(t *testing.T, r *rig) {
				to := &reported{}
				show := unattachedRig(r, to)
				detach(r)
				show(nil)
				third := r.mustAdd(2) // another pod is a reason to compare
				show(func(n int, p *model.Pod) {
					if n == 2 {
						p.IPs = third
					}
				})
				r.wantUnattached(to, "")
				r.end()
			})
		})
	}
}

// An endpoint under the name or the address of a pod does not hide that another network connects it.
func TestUnattachedBesideEndpoint(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		to := &reported{}
		show := unattachedRig(r, to)
		var shared []netip.Addr
		show(func(n int, p *model.Pod) {
			switch n {
			case 0: // Isthmus and another network use one range
				shared, p.Created = p.IPs, 2
			case 1: // the sandbox was made again by another network
				p.IPs = []netip.Addr{netip.MustParseAddr("10.8.0.1")}
			case 2:
				p.IPs, p.Created = shared, 1
			}
		})
		r.wantUnattached(to, "", "shop/web-1", "shop/web-2")
		r.mustDel(1) // the runtime removes the first sandbox late
		time.Sleep(5 * time.Second)
		r.wantUnattached(to, "", "shop/web-1", "shop/web-2")
		r.end()
	})
}

// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/agent"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
)

// running is a snapshot of pods that have the addresses 10.9.0.1, 10.9.0.2, ...
func running(n int) *model.Snapshot {
	return cluster{pods: n, nodes: []*model.Node{node("node1")}, edit: func(i int, p *model.Pod) {
		p.IPs, p.Created = []netip.Addr{runningIP(i)}, int64(i)
	}}.snapshot()
}

func runningIP(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 9, 0, byte(n + 1)}) }

// made is an interface that another plugin made.
func made(handle string, n int) dataplane.Interface {
	return dataplane.Interface{Handle: dataplane.HandlePrefix + "boot:" + handle, Name: "veth", IfName: "eth0", Addresses: []netip.Addr{runningIP(n)}}
}

func (r *rig) policyOnlyAgent() {
	r.noPool, r.change = true, func(c *agent.Config) { c.PolicyOnly = true }
	r.start()
}

// wantAttached checks the number of endpoints.
func (r *rig) wantAttached(want int) {
	r.t.Helper()
	if got := r.attached(); len(got) != want {
		r.t.Errorf("attached %q, want %d", got, want)
	}
}

// wantHow checks the mode of the agent, and how its only pod was attached.
func (r *rig) wantHow(mode, attached string) {
	r.t.Helper()
	list, err := r.agent.Endpoints(context.Background())
	if got := r.agent.Node(context.Background()).Mode; err != nil || got != mode || len(list) != 1 || list[0].Attached != attached {
		r.t.Errorf("mode %s, endpoints %+v, %v; want mode %s and one endpoint, %s", got, list, err, mode, attached)
	}
}

// Pods that ran before the agent come under policy within a second, stay across restarts and a GC of the runtime,
// and are released when their interface is gone. A missing one is reported.
func TestAdoptRunningPods(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.fake.SetInterfaces(made("5:2", 0), made("6:2", 1))
		r.policyOnlyAgent()
		began := time.Now()
		r.agent.Publish(running(3))
		for len(r.attached()) < 2 && time.Since(began) < time.Second {
			r.settle()
		}
		r.wantAttached(2)
		for _, id := range r.attached() {
			even := strings.HasSuffix(strings.TrimSuffix(id, ":eth0"), "uid-0")
			open := r.fake.Decide(model.EndpointID(id), model.Ingress, netip.MustParseAddr("10.0.2.7"), model.TCP, 80) == model.Allow
			if open != even {
				t.Errorf("endpoint %s is reachable: %t, want %t", id, open, even)
			}
		}
		time.Sleep(5 * time.Second)
		if got := r.metric("isthmus_pods_unpoliced"); got != "1" {
			t.Errorf("%s pods without policy, want 1", got)
		}
		if got := r.metric("isthmus_pod_unpoliced_seconds_count"); got != "2" {
			t.Errorf("%s pods were adopted, want 2", got)
		}
		if _, err := r.gc(); err != nil {
			t.Error(err)
		}
		r.wantAttached(2)
		r.end()
		r.start()
		r.agent.Publish(running(3))
		time.Sleep(3 * time.Second)
		r.wantAttached(2)
		r.fake.SetInterfaces(made("6:2", 1), made("7:2", 2))
		time.Sleep(3 * time.Second)
		r.wantAttached(1) // pod 2 was named before interface 7 existed
		r.agent.Publish(cluster{pods: 3, nodes: []*model.Node{node("node1")}, edit: func(i int, p *model.Pod) {
			p.IPs, p.Created = []netip.Addr{runningIP(i)}, int64(i)
			if i == 2 {
				p.UID = "uid-next"
			}
		}}.snapshot())
		time.Sleep(3 * time.Second)
		r.wantAttached(2)
		r.end()
	})
}

// Packets of a running pod pass until its policy is in force. An interface that was closed stays closed until then.
func TestAdoptedPodLosesNoPacket(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.fake.SetInterfaces(made("5:2", 0))
		r.policyOnlyAgent()
		r.agent.Publish(running(2))
		time.Sleep(time.Second)
		r.wantPassing(map[string]bool{"uid-0": true})
		r.fake.SetInterfaces(made("5:2", 0), made("7:2", 1)) // pod 1 was named before interface 7 existed
		time.Sleep(3 * time.Second)
		r.agent.Publish(cluster{pods: 2, nodes: []*model.Node{node("node1")}, edit: func(i int, p *model.Pod) {
			p.IPs, p.Created = []netip.Addr{runningIP(i)}, int64(i)
			if i == 1 {
				p.UID = "uid-next"
			}
		}}.snapshot())
		time.Sleep(3 * time.Second)
		r.wantPassing(map[string]bool{"uid-0": true, "uid-next": false})
		r.end()
	})
}

// wantPassing checks of pods whose packets passed when they were attached, and that policy is in force now.
func (r *rig) wantPassing(want map[string]bool) {
	r.t.Helper()
	r.wantAttached(len(want))
	for _, id := range r.attached() {
		for uid, passing := range want {
			if !strings.HasSuffix(strings.TrimSuffix(id, ":eth0"), "."+uid) {
				continue
			}
			if before, after := r.fake.Observed(model.EndpointID(id)); before != passing || after {
				r.t.Errorf("packets of %s passed %t when it was attached, %t under policy; want %t, false", id, before, after, passing)
			}
		}
	}
}

// An ADD takes the interface of an adopted pod over, and DEL ends it.
func TestAddAfterAdoption(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.fake.SetInterfaces(made("5:2", 0))
		r.policyOnlyAgent()
		r.agent.Publish(running(1))
		time.Sleep(time.Second)
		r.wantAttached(1)
		r.wantHow("policy", "adopted")
		if _, err := r.agent.Add(context.Background(), foreignRequest(0, runningIP(0).String())); err != nil {
			t.Fatal(err)
		}
		r.wantOnly(0)
		r.wantHow("policy", "chained")
		bad := foreignRequest(1, "10.9.0.200")
		bad.Netns = dataplane.HandlePrefix + "boot:5:2"
		_, err := r.agent.Add(context.Background(), bad)
		wantCode(t, err, 4, "CNI_NETNS")
		r.end()
	})
}

// Failures of every step are repeated until the pod is under policy.
func TestAdoptionFails(t *testing.T) {
	for _, at := range []string{"interfaces", "add.deny", "apply"} {
		run(t, func(t *testing.T, r *rig) {
			r.fake.SetInterfaces(made("5:2", 0))
			failures := 0
			r.fake.SetFault(func(_ context.Context, step string) error {
				if step == at && failures < 3 {
					failures++
					return errors.New("no memory")
				}
				return nil
			})
			r.fake.SetPoison(func(s *model.State) error {
				if at == "apply" && len(s.Policy.Endpoints) > 0 && failures < 3 {
					failures++
					return errors.New("no memory")
				}
				return nil
			})
			r.policyOnlyAgent()
			r.agent.Publish(running(1))
			time.Sleep(10 * time.Second)
			r.wantAttached(1)
			if failures == 0 {
				t.Errorf("step %s was not called", at)
			}
			if got := r.metric("isthmus_pods_unpoliced"); got != "0" {
				t.Errorf("%s pods without policy, want 0", got)
			}
			r.end()
		})
	}
}

// On a node that observes, adopted pods lose no packet: neither before policy is applied, nor because their address
// may be that of another pod. Namespaces decide otherwise for their pods.
func TestAdoptObserved(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.fake.SetInterfaces(made("5:2", 0))
		r.noPool, r.change = true, func(c *agent.Config) { c.PolicyOnly, c.Observe = true, model.ObserveAll }
		r.start()
		r.agent.Publish(running(1))
		time.Sleep(time.Second)
		r.wantAttached(1)
		r.wantHow("observe", "adopted")
		for _, id := range r.attached() {
			if before, after := r.fake.Observed(model.EndpointID(id)); !before || !after {
				t.Errorf("endpoint %s is observed %t when it is attached, %t under policy; want both", id, before, after)
			}
		}
		r.fake.SetInterfaces(made("6:2", 0)) // the address is on another interface now
		time.Sleep(3 * time.Second)
		all, err := r.fake.Interfaces(context.Background())
		if err != nil || len(all) != 1 || all[0].Closed {
			t.Errorf("interfaces %+v, %v; want one that is open", all, err)
		}
		r.end()
	})
}

// An interface that must drop packets, and cannot be made to, is reported as one whose packets pass.
func TestCloseFails(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.policyOnlyAgent()
		r.agent.Publish(running(1))
		time.Sleep(3 * time.Second)
		r.fake.SetFault(func(_ context.Context, step string) error {
			if step == "close interface" {
				return errors.New("no memory")
			}
			return nil
		})
		r.fake.SetInterfaces(made("7:2", 0)) // pod 0 was named before interface 7 existed
		time.Sleep(3 * time.Second)
		r.wantProblem("pod shop/web-0: policy is NOT enforced: interface veth has its address and cannot be closed, so packets pass without a verdict: close interface: no memory")
		if got := r.metric("isthmus_pods_unpoliced"); got != "1" {
			t.Errorf("%s pods without policy, want 1", got)
		}
		r.calm()
		time.Sleep(3 * time.Second)
		r.wantProblem("pod shop/web-0: policy is NOT enforced: interface veth got the address 10.9.0.1 after the API gave it to the pod: it drops every packet")
		r.end()
	})
}

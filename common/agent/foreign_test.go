// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/agent"
	"github.com/isthmus-net/isthmus/common/api/cniframe"
	"github.com/isthmus-net/isthmus/common/endpoint"
	"github.com/isthmus-net/isthmus/common/model"
)

// foreignRequest is an ADD for an interface that another plugin made.
func foreignRequest(n int, addresses ...string) *cniframe.AddRequest {
	r := addRequest(n)
	r.Foreign = &cniframe.Foreign{HostIfNames: []string{"veth0"}, Addresses: addresses}
	return r
}

// policyOnly starts an agent that only enforces policy, on a node without a pod range.
func (r *rig) policyOnly() {
	r.noPool, r.change = true, func(c *agent.Config) { c.PolicyOnly = true }
	r.start()
	r.agent.Publish(cluster{pods: 4, nodes: []*model.Node{node("node1")}}.snapshot())
}

// An agent in policy mode takes the addresses of another plugin, answers when policy is in force, and survives
// a restart.
func TestForeignAdd(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.policyOnly()
		if _, err := r.agent.Add(context.Background(), foreignRequest(0, "fd00::7", "10.9.0.7")); err != nil {
			t.Fatal(err)
		}
		want := []netip.Addr{netip.MustParseAddr("10.9.0.7"), netip.MustParseAddr("fd00::7")}
		for range 2 {
			store, err := endpoint.Open(r.dir)
			if err != nil {
				t.Fatal(err)
			}
			records, _, err := store.Load()
			if err != nil || len(records) != 1 || records[0].Kind != endpoint.Foreign || !slices.Equal(records[0].IPs, want) || records[0].State != endpoint.Ready {
				t.Fatalf("records %+v, %v", records, err)
			}
			check := &cniframe.CheckRequest{Attachment: addRequest(0).Attachment, Foreign: foreignRequest(0, "10.9.0.7", "fd00::7").Foreign}
			if err := r.agent.Check(context.Background(), check); err != nil {
				t.Errorf("CHECK: %v", err)
			}
			check.Foreign.Addresses = []string{"10.9.0.8"}
			wantCode(t, r.agent.Check(context.Background(), check), 104, "not 10.9.0.8")
			if err := r.agent.Status(context.Background(), &cniframe.StatusRequest{}); err != nil {
				t.Errorf("STATUS: %v", err)
			}
			r.end()
			r.start()
			r.agent.Publish(cluster{pods: 4, nodes: []*model.Node{node("node1")}}.snapshot())
			r.settle()
		}
		// The address leaves no quarantine, because the other plugin may give it to the next pod at once.
		if err := r.agent.Del(context.Background(), &cniframe.DelRequest{Attachment: addRequest(0).Attachment}); err != nil {
			t.Fatal(err)
		}
		if _, err := r.agent.Add(context.Background(), foreignRequest(1, "10.9.0.7")); err != nil {
			t.Fatal(err)
		}
		r.wantOnly(1)
		r.end()
	})
}

// A pod that gets the address of an earlier one ends the endpoint of that one: its DEL did not arrive.
func TestForeignAddressMoves(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.policyOnly()
		for n := range 3 {
			if _, err := r.agent.Add(context.Background(), foreignRequest(n, "10.9.0.7")); err != nil {
				t.Fatal(err)
			}
			r.wantOnly(n)
		}
		_, err := r.agent.Add(context.Background(), foreignRequest(2, "10.9.0.8"))
		wantCode(t, err, 100, "has the addresses 10.9.0.7, not 10.9.0.8")
		r.end()
	})
}

// A prevResult that names the address of another pod ends the endpoint of that pod only if the interface has the address: the
// other plugin, or one between, may be mistaken.
func TestForeignAddressOfAnother(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.policyOnly()
		if _, err := r.agent.Add(context.Background(), foreignRequest(0, "10.9.0.7")); err != nil {
			t.Fatal(err)
		}
		q := foreignRequest(1, "10.9.0.7")
		q.Foreign.MAC = "02:00:00:00:99:99"
		_, err := r.agent.Add(context.Background(), q)
		wantCode(t, err, 7, "prevResult has 02:00:00:00:99:99")
		r.wantOnly(0)
		r.fake.RemoveNetNS(addRequest(2).Netns)
		_, err = r.agent.Add(context.Background(), foreignRequest(2, "10.9.0.7"))
		wantCode(t, err, 4, "CNI_NETNS")
		r.wantOnly(0)
		if _, err := r.agent.Add(context.Background(), foreignRequest(1, "10.9.0.7")); err != nil {
			t.Fatal(err)
		}
		r.wantOnly(1)
		r.end()
	})
}

// Policy knows one interface of a pod. ADD of an enforced pod with more is refused, and one of an observed pod is
// reported.
func TestForeignOthers(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.noPool, r.change = true, func(c *agent.Config) { c.PolicyOnly, c.Observe = true, model.ObserveSome }
		r.start()
		shop := func(enforcement string) {
			s := cluster{pods: 4, nodes: []*model.Node{node("node1")}}.snapshot()
			ns, _ := s.Namespaces.Get("shop")
			ns.Enforcement = enforcement
			r.agent.Publish(s)
			r.settle()
		}
		add := func() error {
			q := foreignRequest(0, "10.9.0.7")
			q.Foreign.Others = []string{"net1", "v4if0"}
			_, err := r.agent.Add(context.Background(), q)
			return err
		}
		shop("")
		wantCode(t, add(), 7, "pod shop/web-0 has further interfaces: net1, v4if0")
		r.wantOnly()
		r.wantProblem("")
		shop("observe")
		if err := add(); err != nil {
			t.Error(err)
		}
		r.wantOnly(0)
		for _, enforcement := range []string{"observe", "enforce"} {
			shop(enforcement)
			r.wantProblem("endpoint c0:eth0 of pod shop/web-0: policy is NOT enforced: its further interfaces net1, v4if0")
			if got := r.metric("isthmus_endpoints_unenforced"); got != "1" {
				t.Errorf("%s endpoints without policy, want 1", got)
			}
		}
		list, err := r.agent.Endpoints(context.Background())
		if err != nil || len(list) != 1 || !strings.Contains(strings.Join(list[0].Problems, "; "), "net1, v4if0") || !list[0].Unenforced {
			t.Errorf("endpoints %+v, %v", list, err)
		}
		r.mustDel(0)
		r.settle()
		r.wantProblem("")
		r.end()
	})
}

// Packets of an observed pod pass from its ADD on; those of another pod pass once its policy is in force.
func TestForeignObserved(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.noPool, r.change = true, func(c *agent.Config) { c.PolicyOnly, c.Observe = true, model.ObserveSome }
		r.start()
		for i, enforcement := range []string{"enforce", "observe"} {
			s := cluster{pods: 4, nodes: []*model.Node{node("node1")}}.snapshot()
			ns, _ := s.Namespaces.Get("shop")
			ns.Enforcement = enforcement
			r.agent.Publish(s)
			r.settle()
			if _, err := r.agent.Add(context.Background(), foreignRequest(i, runningIP(i).String())); err != nil {
				t.Fatal(err)
			}
			want := enforcement == "observe"
			if before, after := r.fake.Observed(id(i)); before != want || after != want {
				t.Errorf("%s: the endpoint is observed %t when it is attached, %t under policy; want %t", enforcement, before, after, want)
			}
		}
		r.end()
	})
}

// DEL of mode policy succeeds without an agent. The next agent removes the endpoints whose network namespace is gone, a
// running one those that went without a DEL, and both keep the others.
func TestForeignGone(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.policyOnly()
		for n := range 3 {
			if _, err := r.agent.Add(context.Background(), foreignRequest(n, runningIP(n).String())); err != nil {
				t.Fatal(err)
			}
		}
		r.end()
		r.fake.RemoveNetNS(addRequest(0).Netns)
		r.start()
		r.agent.Publish(cluster{pods: 4, nodes: []*model.Node{node("node1")}}.snapshot())
		r.settle()
		r.wantOnly(1, 2)
		if _, err := r.agent.Add(context.Background(), foreignRequest(3, runningIP(0).String())); err != nil {
			t.Errorf("the next pod with the address: %v", err)
		}
		r.fake.RemoveNetNS(addRequest(1).Netns)
		r.fake.Break(id(1), "interface")
		time.Sleep(2 * agent.Defaults().AuditEvery)
		r.wantOnly(2, 3)
		if got := r.problems(); got != "0" {
			t.Errorf("%s problems, want none", got)
		}
		r.end()
	})
}

func TestForeignRefusals(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.policyOnly()
		for text, change := range map[string]func(*cniframe.AddRequest){
			"the plugin in mode full":          func(q *cniframe.AddRequest) { q.Foreign = nil },
			"cannot provide portMappings":      func(q *cniframe.AddRequest) { q.HostPorts = []cniframe.HostPort{{HostPort: 80, Port: 80, Protocol: 6}} },
			"cannot provide bandwidth":         func(q *cniframe.AddRequest) { q.Bandwidth = &cniframe.Bandwidth{IngressRate: 1} },
			"cannot provide dns":               func(q *cniframe.AddRequest) { q.DNS = &cniframe.DNS{} },
			"prevResult has no address":        func(q *cniframe.AddRequest) { q.Foreign.Addresses = nil },
			`address "10.9.0.300" of`:          func(q *cniframe.AddRequest) { q.Foreign.Addresses = []string{"10.9.0.7", "10.9.0.300"} },
			`address "10.9.0.7/24" of`:         func(q *cniframe.AddRequest) { q.Foreign.Addresses = []string{"10.9.0.7/24"} },
			`address "::ffff:10.9.0.7" of`:     func(q *cniframe.AddRequest) { q.Foreign.Addresses = []string{"::ffff:10.9.0.7"} },
			`address "127.0.0.1" of`:           func(q *cniframe.AddRequest) { q.Foreign.Addresses = []string{"127.0.0.1"} },
			`address "fe80::1" of`:             func(q *cniframe.AddRequest) { q.Foreign.Addresses = []string{"fe80::1"} },
			"at most 16 of each IP version":    func(q *cniframe.AddRequest) { q.Foreign.Addresses = many(cniframe.MaxAddresses + 1) },
			"MAC of prevResult is not valid":   func(q *cniframe.AddRequest) { q.Foreign.MAC = "ff:ff:ff:ff:ff:ff" },
			"prevResult has 02:00:00:00:99:99": func(q *cniframe.AddRequest) { q.Foreign.MAC = "02:00:00:00:99:99" },
			"interfaces of prevResult are not": func(q *cniframe.AddRequest) { q.Foreign.HostIfNames = []string{strings.Repeat("x", 16)} },
		} {
			q := foreignRequest(0, "10.9.0.7")
			change(q)
			_, err := r.agent.Add(context.Background(), q)
			wantCode(t, err, 7, text)
		}
		r.wantOnly()
		r.end()
		r.noPool, r.change = false, nil
		r.start()
		r.agent.Publish(cluster{pods: 4}.snapshot())
		_, err := r.agent.Add(context.Background(), foreignRequest(0, "10.9.0.7"))
		wantCode(t, err, 7, "isthmus-agent runs in mode full")
		r.mustAdd(0)
		r.end()
		// The interfaces of the other mode would stay without an owner.
		r.change = func(c *agent.Config) { c.PolicyOnly = true }
		r.start()
		if err := <-r.ended; err == nil || !strings.Contains(err.Error(), "drain the node before you change --mode") {
			t.Errorf("an agent in another mode: %v", err)
		}
	})
}

// A migrated pod belongs to mode full: that agent keeps its address and removes it on DEL, and an agent of mode
// policy does not start.
func TestMigratedRecord(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.start()
		r.agent.Publish(cluster{pods: 4}.snapshot())
		ips := r.mustAdd(0)
		r.end()
		store, err := endpoint.Open(r.dir)
		if err != nil {
			t.Fatal(err)
		}
		records, _, err := store.Load()
		if err != nil || len(records) != 1 {
			t.Fatalf("records %+v, %v", records, err)
		}
		records[0].Kind = endpoint.Migrated
		if err := store.Put(records[0]); err != nil {
			t.Fatal(err)
		}
		r.change = func(c *agent.Config) { c.PolicyOnly = true }
		r.start()
		if err := <-r.ended; err == nil || !strings.Contains(err.Error(), "isthmusctl migrate") {
			t.Errorf("an agent of mode policy: %v", err)
		}
		r.change = nil
		r.start()
		r.agent.Publish(cluster{pods: 4}.snapshot())
		if other := r.mustAdd(1); slices.Contains(other, ips[0]) {
			t.Errorf("another pod got %v, the addresses of the migrated one are %v", other, ips)
		}
		if !r.reachable(0) {
			t.Error("the migrated pod is not reachable")
		}
		r.mustDel(0)
		r.wantOnly(1)
	})
}

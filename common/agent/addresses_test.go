// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/dataplane/dataplanetest"
	"github.com/isthmus-net/isthmus/common/model"
)

func addresses(s ...string) []netip.Addr {
	var all []netip.Addr
	for _, a := range s {
		all = append(all, netip.MustParseAddr(a))
	}
	return all
}

func (r *rig) wantIPs(n int, want ...string) {
	r.t.Helper()
	ips, err := r.add(n)
	if err != nil || !slices.Equal(ips, addresses(want...)) {
		r.t.Errorf("pod %d has %v, %v, want %v", n, ips, err, want)
	}
}

func TestRangesOfTheNode(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.start()
		nodes := func(cidrs ...string) cluster {
			return cluster{pods: 9, nodes: []*model.Node{node("node1", cidrs...), node("node2", "10.0.2.0/24")}}
		}
		r.agent.Publish(nodes().snapshot())
		_, err := r.add(0)
		wantCode(t, err, 102, "node node1 has no pod range: set podCIDRs in its Node object or start the agent with --pod-cidr")
		r.agent.Publish(nodes("10.0.1.0/30").snapshot())
		r.wantIPs(0, "10.0.1.2")
		r.agent.Publish(nodes("10.0.1.0/30", "10.0.5.0/24").snapshot()) // a range more
		r.wantIPs(1, "10.0.5.2")
		r.agent.Publish(nodes("10.0.5.0/24", "fd00:1::/64").snapshot()) // one less, and dual stack
		r.wantIPs(2, "10.0.5.3", "fd00:1::2")
		r.wantIPs(0, "10.0.1.2")
		gone := cluster{pods: 9, nodes: []*model.Node{node("node2", "10.0.2.0/24")}}
		r.agent.Publish(gone.snapshot()) // our Node object is away for a moment
		r.wantIPs(3, "10.0.5.4", "fd00:1::3")
		r.end()
	})
}

func TestRangesThatCannotBeUsed(t *testing.T) {
	for name, c := range map[string]struct {
		own, other string
		text       string
	}{
		"overlap":   {"10.0.0.0/16", "10.0.2.0/24", "pod range 10.0.0.0/16 of node node1 overlaps 10.0.2.0/24 of node node2"},
		"same":      {"10.0.2.0/24", "10.0.2.0/24", "give the nodes disjoint ranges"},
		"too small": {"10.0.1.0/31", "10.0.2.0/24", "pod range 10.0.1.0/31 is too small"},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(t *testing.T, r *rig) {
				r.start()
				good := cluster{pods: 3}
				bad := cluster{pods: 3, nodes: []*model.Node{node("node1", c.own), node("node2", c.other)}}
				r.agent.Publish(bad.snapshot())
				_, err := r.add(0)
				wantCode(t, err, 102, c.text)
				r.settle()
				err = r.agent.Status(context.Background(), nil)
				wantCode(t, err, 50, c.text)
				if got := r.problems(); got != "1" {
					t.Errorf("%s problems", got)
				}
				r.agent.Publish(good.snapshot())
				r.mustAdd(0)
				r.agent.Publish(bad.snapshot())
				_, err = r.add(1)
				wantCode(t, err, 102, c.text)
				if !r.reachable(0) {
					t.Error("an attached pod lost its policy")
				}
				r.mustDel(0)
				r.end()
			})
		})
	}
}

func TestRangesFromTheConfig(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.change = func(c *agentConfig) {
			c.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("172.16.0.0/24"), netip.MustParsePrefix("fd00:9::/64")}
		}
		r.start()
		r.agent.Publish(cluster{pods: 3}.snapshot())
		r.wantIPs(0, "172.16.0.2", "fd00:9::2")
		r.end()
	})
}

func TestWindowsNode(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.fake = dataplanetest.NewFake(model.Features{OS: model.Windows, Platform: "13.3"})
		var opened []string
		r.change = func(c *agentConfig) {
			c.OpenNeedsNode = true
			c.Open = func(_ context.Context, n model.Node) (dataplane.Backend, error) {
				opened = append(opened, fmt.Sprint(n.Name, n.PodCIDRs))
				r.fake.Reopen()
				return r.fake, nil
			}
		}
		nodes := func(cidrs ...string) cluster {
			return cluster{pods: 3, nodes: []*model.Node{node("node1", cidrs...), node("node2", "10.0.2.0/24")}}
		}
		r.start()
		time.Sleep(time.Minute)
		wantCode(t, r.del(0), 11, "the data path is not open yet")
		_, err := r.gc()
		wantCode(t, err, 11, "the data path is not open yet")
		wantCode(t, r.check(0), 11, "the data path is not open yet")
		r.agent.Publish(nodes().snapshot())
		_, err = r.add(0)
		wantCode(t, err, 11, "the addresses and pod ranges of node node1 are not known yet")
		err = r.agent.Status(context.Background(), nil)
		wantCode(t, err, 50, "the addresses and pod ranges of node node1 are not known")
		const problem = "the data path is not open: the addresses and pod ranges of node node1 are not known yet: wait until its Node object has addresses and podCIDRs"
		if all := r.agent.Node(context.Background()).Problems; !slices.Contains(all, problem) {
			t.Errorf("problems %q, want %q", all, problem)
		}
		if len(opened) > 0 {
			t.Errorf("opened %v too early", opened)
		}
		r.agent.Publish(nodes("10.0.1.0/24", "fd00:1::/64").snapshot())
		r.wantIPs(0, "10.0.1.3") // .2 is the host's, and IPv6 is not possible
		if fmt.Sprint(opened) != "[node1[10.0.1.0/24 fd00:1::/64]]" {
			t.Errorf("opened %v", opened)
		}
		r.agent.Publish(nodes("10.0.1.0/24", "fd00:1::/64", "10.0.7.0/24").snapshot())
		_, err = r.add(1)
		wantCode(t, err, 102, "drain the node and restart the agent")
		moved := node("node1", "10.0.1.0/24", "fd00:1::/64")
		moved.Addresses = addresses("192.168.0.77")
		r.agent.Publish(cluster{pods: 3, nodes: []*model.Node{moved}}.snapshot())
		r.wantIPs(1, "10.0.1.4")
		r.settle()
		if got := r.problems(); got != "2" { // no IPv6, other addresses
			t.Errorf("%s problems", got)
		}
		r.end()
	})
}

func TestOpenFails(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.change = func(c *agentConfig) {
			c.Open = func(context.Context, model.Node) (dataplane.Backend, error) {
				return nil, fmt.Errorf("kernel is too old")
			}
		}
		r.start()
		if err := <-r.ended; err == nil || err.Error() != "open data path: kernel is too old" {
			t.Errorf("ended with %v", err)
		}
		r.stop()
		_, err := r.add(0)
		wantCode(t, err, 11, "is stopping")
	})
}

func prefixes(s ...string) []netip.Prefix {
	var all []netip.Prefix
	for _, p := range s {
		all = append(all, netip.MustParsePrefix(p))
	}
	return all
}

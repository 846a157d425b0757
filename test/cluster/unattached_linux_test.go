// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/cluster"
	"github.com/isthmus-net/isthmus/test/netns"
)

// TestPodOfAnotherNetwork has a pod that another network attached before Isthmus. Packets that policy denies reach it, also after a
// restart of the agent, and the agent says so until the pod is gone. Other pods stay under policy.
func TestPodOfAnotherNetwork(t *testing.T) {
	c, pods := startCluster(t, manifests, cluster.Config{Linux: 1})
	node, client, server := c.Nodes[0], pods["client"], pods["server"]
	old := &model.Pod{PodID: model.PodID{Namespace: "test", Name: "old"}, Labels: model.MakeLabels(map[string]string{"app": "server"}), Node: node.Name}
	ns := netns.ForTest(t)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(netns.Connect(netns.End{NS: node.NS, Name: "cni-old"}, netns.End{NS: ns, Name: "eth0"}))
	for _, near := range []string{"10.8.0.1/24", "fd08::1/64"} {
		gateway := netip.MustParsePrefix(near)
		far, all := gateway.Addr().Next(), netip.PrefixFrom(gateway.Addr(), 0).Masked()
		must(node.NS.Do(func() error { return netns.AddAddresses("cni-old", gateway) }))
		must(ns.Do(func() error {
			if err := netns.TrustAddresses(); err != nil {
				return err
			}
			if err := netns.AddAddresses("eth0", netip.PrefixFrom(far, gateway.Bits())); err != nil {
				return err
			}
			return netns.Route(all, gateway.Addr())
		}))
		old.IPs = append(old.IPs, far)
	}
	for _, at := range []*netns.NS{ns, server.NS} {
		whoami(t, at, netip.IPv6Unspecified())
	}
	passes := func() {
		t.Helper()
		for i, ip := range old.IPs {
			eventually(t, func() error { _, err := ask(client.NS, model.TCP, ip); return err })
			sees(t, client.NS, address(server, i > 0), address(client, i > 0), true)
		}
	}
	must(c.Manifests.WritePod(old))
	passes()
	reports(t, node, 1)
	must(node.Kill())
	must(node.Start())
	reports(t, node, 1)
	passes()
	must(c.Manifests.RemovePod(old.PodID))
	must(node.NS.Do(func() error { return netns.Remove("cni-old") }))
	reports(t, node, 0)
	must(c.Settle(t.Context())) // no problem is left
}

// reports waits until an agent says in its metrics and in its status that a number of pods has no policy.
func reports(t *testing.T, n *cluster.Node, want int) {
	t.Helper()
	eventually(t, func() error {
		metrics, _, err := n.Get("/metrics")
		if err != nil {
			return err
		}
		s, err := n.Status(t.Context())
		if err != nil {
			return err
		}
		got := slices.DeleteFunc(slices.Clone(s.GetProblems()), func(p string) bool { return !strings.HasPrefix(p, "pod test/old: policy is NOT enforced: ") })
		if len(got) != want || !strings.Contains(metrics, fmt.Sprintf("\nisthmus_pods_unpoliced %d\n", want)) {
			return fmt.Errorf("problems %q, want %d pods in them and in the metrics", s.GetProblems(), want)
		}
		return nil
	})
}

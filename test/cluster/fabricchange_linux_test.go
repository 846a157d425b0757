// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/cluster"
	"github.com/isthmus-net/isthmus/test/traffic"
)

// TestFabricChanges removes a node, adds it again, and gives it other addresses and another pod range. Pods of the
// other nodes lose no packet meanwhile, on routes or in tunnels. Afterwards they reach the node, and nothing of its
// earlier state is left.
func TestFabricChanges(t *testing.T) {
	c, pods := startCluster(t, fabricManifests, cluster.Config{Linux: 4, Segments: 2})
	last := c.Nodes[3] // without pods; linux1 and linux3 reach it by tunnels, linux2 on its segment
	late := &model.Pod{PodID: model.PodID{Namespace: "test", Name: "late"}, Node: last.Name}
	var attached *cluster.Pod

	for _, step := range []struct {
		name string
		// change returns texts that must not appear on other nodes afterwards.
		change func() (gone []string, err error)
	}{
		{"leave", func() ([]string, error) {
			return shownBy(last), c.Manifests.WriteNodes(c.Nodes[:3])
		}},
		{"join", func() (gone []string, err error) {
			if err = c.Manifests.WriteNodes(c.Nodes); err != nil {
				return nil, err
			}
			attached, err = attachLate(t, c, late)
			return nil, err
		}},
		{"readdress", func() ([]string, error) {
			var gone []string
			for _, a := range last.Addresses() {
				gone = append(gone, a.String())
			}
			if err := last.Readdress(99); err != nil {
				return nil, err
			}
			return gone, c.Manifests.WriteNodes(c.Nodes)
		}},
		{"podCIDR", func() (gone []string, err error) {
			for _, p := range last.PodCIDRs {
				gone = append(gone, p.String())
			}
			if err := c.Detach(t.Context(), attached); err != nil {
				return nil, err
			}
			last.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.77.0/24"), netip.MustParsePrefix("fd44:0:0:77::/64")}
			if err := c.Manifests.WriteNodes(c.Nodes); err != nil {
				return nil, err
			}
			eventually(t, func() error {
				attached, err = attachLate(t, c, late)
				if err == nil && !last.PodCIDRs[0].Contains(attached.IPs[0]) {
					err = fmt.Errorf("the new pod has address %s: %w", attached.IPs[0], c.Detach(t.Context(), attached))
				}
				return err
			})
			return gone, nil
		}},
	} {
		t.Run(step.name, func(t *testing.T) {
			streams := startStreams(t, pods)
			gone, err := step.change()
			if err != nil {
				t.Error(err)
			}
			for _, n := range c.Nodes[:3] {
				eventually(t, func() error { return without(n, gone) })
			}
			if step.name != "leave" {
				eventually(t, func() error { return reached(pods, attached) })
			}
			for _, s := range streams {
				lostNone(t, s)
			}
		})
	}
}

// startStreams starts a stream of packets of each family from the client to pods of the other nodes.
func startStreams(t *testing.T, pods map[string]*cluster.Pod) (streams []*traffic.Stream) {
	t.Helper()
	client := pods["client"]
	for _, v6 := range []bool{false, true} {
		var to []traffic.Target
		for _, server := range []string{"server", "third"} { // by tunnel, and on the segment
			to = append(to, traffic.Target{NS: pods[server].NS, From: address(client, v6), To: netip.AddrPortFrom(address(pods[server], v6), 7300)})
		}
		s, err := traffic.NewStream(client.NS, to, 1000)
		if err != nil {
			t.Fatal(err)
		}
		streams = append(streams, s)
	}
	return streams
}

// lostNone ends a stream, and checks that each of its packets arrived once.
func lostNone(t *testing.T, s *traffic.Stream) {
	t.Helper()
	got, err := s.Finish()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("sent=%d lost=%d twice=%d", got.Sent, got.Lost(), got.Twice)
	if got.Sent < 100 || got.Lost() > 0 || got.Twice > 0 {
		t.Errorf("of %d packets %d were lost, and %d came twice", got.Sent, got.Lost(), got.Twice)
	}
}

// attachLate attaches a pod without a server.
func attachLate(t *testing.T, c *cluster.Cluster, pod *model.Pod) (*cluster.Pod, error) {
	pod.IPs = nil
	if err := c.Manifests.WritePod(pod); err != nil {
		return nil, err
	}
	p, _, err := c.Attach(t.Context(), pod)
	if err == nil {
		whoami(t, p.NS, netip.IPv6Unspecified())
	}
	return p, err
}

// reached returns an error unless all other pods reach a pod with their own addresses.
func reached(pods map[string]*cluster.Pod, to *cluster.Pod) error {
	if to == nil {
		return fmt.Errorf("the pod is not attached")
	}
	for _, from := range pods {
		for _, v6 := range []bool{false, true} {
			got, err := ask(from.NS, model.TCP, address(to, v6))
			if err != nil || got != address(from, v6) {
				return fmt.Errorf("%s is seen by %s as %s: %w", from.Name, to.Name, got, err)
			}
		}
	}
	return nil
}

// shownBy returns texts that identify a node in the routes, neighbours and forwarding entries of other nodes.
func shownBy(n *cluster.Node) (all []string) {
	for _, a := range n.Addresses() {
		all = append(all, a.String())
	}
	for _, p := range n.PodCIDRs {
		all = append(all, p.String())
	}
	return all
}

// without returns an error if one of the texts is among a node's routes,
// neighbours, forwarding entries or rules.
func without(n *cluster.Node, texts []string) error {
	return n.NS.Do(func() error {
		for _, command := range []string{"ip -4 route show table all", "ip -6 route show table all", "ip neigh show nud permanent", "bridge fdb show", "ip rule", "ip -6 rule", "nft list ruleset"} {
			words := strings.Fields(command)
			out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
			if err != nil {
				return fmt.Errorf("%s: %w: %s", command, err, out)
			}
			for _, text := range texts {
				for _, word := range strings.Fields(strings.NewReplacer(",", " ", "{", " ", "}", " ").Replace(string(out))) {
					if word == text {
						return fmt.Errorf("%s of %s still shows %s", command, n.Name, text)
					}
				}
			}
		}
		return nil
	})
}

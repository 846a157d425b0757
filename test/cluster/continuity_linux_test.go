// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf/link"

	"github.com/isthmus-net/isthmus/linux/loader"
	"github.com/isthmus-net/isthmus/test/cluster"
	"github.com/isthmus-net/isthmus/test/traffic"
)

// continuityManifests: both ends of the traffic are isolated. The names place
// the pods: one server is on the client's node, one on the other.
const continuityManifests = `
apiVersion: v1
kind: Pod
metadata: {name: client-linux1, namespace: test, labels: {app: client}}
spec: {containers: [{name: main}]}
---
apiVersion: v1
kind: Pod
metadata: {name: near-linux1, namespace: test, labels: {app: server}}
spec: {containers: [{name: main}]}
---
apiVersion: v1
kind: Pod
metadata: {name: far-linux2, namespace: test, labels: {app: server}}
spec: {containers: [{name: main}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: server, namespace: test}
spec:
  podSelector: {matchLabels: {app: server}}
  ingress:
  - from: [{podSelector: {matchLabels: {app: client}}}]
    ports: [{port: 7001, protocol: UDP}, {port: 7001, protocol: TCP}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: client, namespace: test}
spec:
  podSelector: {matchLabels: {app: client}}
  policyTypes: [Egress]
  egress:
  - to: [{podSelector: {matchLabels: {app: server}}}]
    ports: [{port: 7001, protocol: UDP}, {port: 7001, protocol: TCP}]
`

// continuity is how much traffic goes over how many changes.
type continuity struct {
	rate, connections      int // packets per second
	restarts, replacements int
	pause                  time.Duration // before every change, at that rate
	flow                   *traffic.Stream
}

// A stream of packets and open connections lose nothing while agents are ended
// and started again and programs are replaced. CONTINUITY=full asks for
// 100,000 packets a second over 20 restarts and 5 replacements.
func TestContinuity(t *testing.T) {
	size := continuity{rate: 40_000, connections: 200, restarts: 4, replacements: 1, pause: 50 * time.Millisecond}
	if os.Getenv("CONTINUITY") == "full" {
		size = continuity{rate: 100_000, connections: 200, restarts: 20, replacements: 5, pause: 300 * time.Millisecond}
	}
	size.run(t, (*continuity).disturb)
}

// An agent whose maps have another layout takes over from the one before, on both
// nodes, and its next start is as any; it may be killed while it does.
func TestContinuityOverUpgrades(t *testing.T) {
	size := continuity{rate: 20_000, connections: 100, restarts: 2, pause: 50 * time.Millisecond}
	size.run(t, (*continuity).upgrade)
}

// rest waits until the stream has carried what it carries in a pause. A busy machine takes
// longer.
func (s *continuity) rest(t *testing.T) {
	t.Helper()
	want := s.flow.Received() + uint64(float64(s.rate)*s.pause.Seconds())
	eventually(t, func() error {
		if n := s.flow.Received(); n < want {
			return fmt.Errorf("%d packets of the stream have arrived, want %d", n, want)
		}
		return nil
	})
}

// leastDuring is how many packets must arrive during each change, or it shows nothing.
const leastDuring = 100

// during runs a change and checks that packets flow meanwhile.
func (s *continuity) during(t *testing.T, change func() error) error {
	t.Helper()
	before := s.flow.Received()
	err := change()
	if n := s.flow.Received() - before; n < leastDuring {
		t.Errorf("%d packets arrived during a change, want at least %d", n, leastDuring)
	}
	return err
}

// run sends traffic while something happens to the agents.
func (size *continuity) run(t *testing.T, happens func(*continuity, *testing.T, *cluster.Cluster)) {
	t.Helper()
	c, pods := startWith(t, continuityManifests)
	awaitLinks(t, c, map[string]int{"linux1": 4, "linux2": 2})
	client := pods["client-linux1"]
	var targets []traffic.Target
	for _, p := range []*cluster.Pod{pods["near-linux1"], pods["far-linux2"]} {
		for _, v6 := range []bool{false, true} {
			targets = append(targets, traffic.Target{NS: p.NS, From: address(client, v6), To: netip.AddrPortFrom(address(p, v6), 7001)})
		}
	}
	open, err := traffic.Connect(client.NS, targets, size.connections)
	if err != nil {
		t.Fatal(err)
	}
	flow, err := traffic.NewStream(client.NS, targets, size.rate)
	if err != nil {
		t.Fatal(err)
	}
	size.flow = flow
	began := time.Now()
	happens(size, t, c)
	size.rest(t)
	eventually(t, func() error {
		if n, want := open.Exchanges(), size.connections*size.restarts; n < want {
			return fmt.Errorf("%d connections exchanged only %d messages, want %d", size.connections, n, want)
		}
		return nil
	})
	took := time.Since(began)
	got, err := flow.Finish()
	if err != nil {
		t.Error(err)
	}
	resets, exchanges, retransmits := open.Finish()

	fmt.Printf("continuity: packets=%d restarts=%d replacements=%d connections=%d lost=%d reset=%d\n",
		got.Sent, size.restarts, size.replacements, size.connections, got.Lost(), len(resets))
	t.Logf("%.0f packets/s; lost in receive buffers %d, twice %d; exchanges on connections %d, retransmitted segments %d",
		float64(got.Sent)/took.Seconds(), got.Overflowed, got.Twice, exchanges, retransmits)
	if got.Lost() != 0 || got.Twice != 0 {
		t.Errorf("of %d packets %d were lost, %d of them in the receivers' buffers, and %d came twice", got.Sent, got.Lost(), got.Overflowed, got.Twice)
	}
	if len(resets) != 0 {
		t.Errorf("%d of %d connections broke, the first: %v", len(resets), size.connections, resets[0])
	}
	// The full size is a claim about a rate. Elsewhere rest and during make sure that there is a
	// stream, however busy the machine is.
	if want := float64(size.rate) * took.Seconds() / 2; os.Getenv("CONTINUITY") == "full" && float64(got.Sent) < want {
		t.Errorf("sent %d packets in %s, want %.0f at least", got.Sent, took, want)
	}
}

// disturb restarts the nodes' agents in turn, by SIGKILL and by SIGTERM, and in
// between replaces the programs as another version of the agent would.
func (s *continuity) disturb(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	every := s.restarts / s.replacements
	for i, replaced := 0, 0; i < s.restarts; i++ {
		s.rest(t)
		node := c.Nodes[i%len(c.Nodes)]
		how := []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM}[i/len(c.Nodes)%2]
		s.changes(t, c, node, func() error { return node.Restart(context.Background(), how) })
		if (i+1)%every != 0 || replaced == s.replacements {
			continue
		}
		replaced++
		s.rest(t)
		for _, n := range c.Nodes {
			s.changes(t, c, n, func() error {
				settings := loader.DefaultSettings() // are constants of the programs
				settings.Timeouts.Opening += time.Duration(replaced) * time.Second
				path, err := loader.Open(filepath.Join(c.BPFFS(), n.Name), settings, nil)
				if err != nil {
					return err
				}
				return errors.Join(n.NS.Do(func() error {
					if _, err := path.HookEgress(); err != nil {
						return err
					}
					return path.AdoptLinks()
				}), path.Close())
			})
		}
	}
}

// upgrade gives what is in force the name of an older layout while no agent runs,
// and starts agents twice: the first is killed somewhere on the way.
func (s *continuity) upgrade(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	for i := range s.restarts {
		for _, n := range c.Nodes {
			s.rest(t)
			if err := n.Kill(); err != nil {
				t.Fatal(err)
			}
			older := filepath.Join(c.BPFFS(), n.Name, "v1")
			if err := os.Rename(filepath.Join(c.BPFFS(), n.Name, loader.LayoutVersion), older); err != nil {
				t.Fatal(err)
			}
			if err := n.Start(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Duration(i) * 150 * time.Millisecond) // may be anywhere in it
			if err := n.Restart(context.Background(), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(older); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s is ready, and %s is still there: %v", n.Name, older, err)
			}
		}
	}
}

// changes makes sure that an action gives every hook of a node another program.
func (s *continuity) changes(t *testing.T, c *cluster.Cluster, n *cluster.Node, act func() error) {
	t.Helper()
	before := programs(t, c, n)
	if err := s.during(t, act); err != nil {
		t.Fatal(err)
	}
	after := programs(t, c, n)
	if len(after) != len(before) || len(after) == 0 {
		t.Fatalf("%s had %d links and has %d", n.Name, len(before), len(after))
	}
	for pin, id := range after {
		if before[pin] == id {
			t.Errorf("%s still runs program %d", pin, id)
		}
	}
}

// programs are the ids of the programs on the pinned links of a node's pods, by
// pin.
func programs(t *testing.T, c *cluster.Cluster, n *cluster.Node) map[string]uint32 {
	t.Helper()
	pins, err := filepath.Glob(filepath.Join(c.BPFFS(), n.Name, "*", "links", "*_pod")) // beside those of netfilter
	if err != nil {
		t.Fatal(err)
	}
	ids := make(map[string]uint32)
	for _, pin := range pins {
		l, err := link.LoadPinnedLink(pin, nil)
		if err != nil {
			t.Fatalf("open %s: %v", pin, err)
		}
		info, err := l.Info()
		l.Close()
		if err != nil {
			t.Fatalf("inspect %s: %v", pin, err)
		}
		ids[pin] = uint32(info.Program)
	}
	return ids
}

// awaitLinks waits until the programs of all pods are on pinned links.
func awaitLinks(t *testing.T, c *cluster.Cluster, want map[string]int) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for _, n := range c.Nodes {
		for len(programs(t, c, n)) < want[n.Name] {
			if time.Now().After(deadline) {
				t.Fatalf("%s has %d pinned links, want %d", n.Name, len(programs(t, c, n)), want[n.Name])
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
}

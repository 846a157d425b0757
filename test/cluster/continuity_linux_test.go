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
	"github.com/isthmus-net/isthmus/test/cluster/clustertest"
	"github.com/isthmus-net/isthmus/test/traffic"
)

// continuity sets the traffic and the changes of the test.
type continuity struct {
	rate, connections      int // packets per second
	restarts, replacements int
	pause                  time.Duration // of traffic before every change
	flow                   *traffic.Stream
}

// TestContinuity checks that a stream of packets and open connections lose nothing while agents restart and
// programs are replaced. CONTINUITY=full sends 100,000 packets a second during 20 restarts and 5 replacements.
func TestContinuity(t *testing.T) {
	size := continuity{rate: 40_000, connections: 200, restarts: 4, replacements: 1, pause: 50 * time.Millisecond}
	if os.Getenv("CONTINUITY") == "full" {
		size = continuity{rate: 100_000, connections: 200, restarts: 20, replacements: 5, pause: 300 * time.Millisecond}
	}
	size.run(t, (*continuity).disturb)
}

// An agent with another map layout migrates the flows of the previous agent, on both nodes, also if it is killed
// meanwhile. Its next start is a normal one.
func TestContinuityOverUpgrades(t *testing.T) {
	size := continuity{rate: 20_000, connections: 100, restarts: 2, pause: 50 * time.Millisecond}
	size.run(t, (*continuity).upgrade)
}

// rest waits until the stream has sent as many packets as in a pause. A busy machine takes longer.
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

// leastDuring is the minimum number of packets during each change; with fewer the test would prove nothing.
const leastDuring = 100

// during runs a change and checks that packets arrive during it.
func (s *continuity) during(t *testing.T, change func() error) error {
	t.Helper()
	before := s.flow.Received()
	err := change()
	if n := s.flow.Received() - before; n < leastDuring {
		t.Errorf("%d packets arrived during a change, want at least %d", n, leastDuring)
	}
	return err
}

// run sends traffic while disturb changes the agents.
func (size *continuity) run(t *testing.T, happens func(*continuity, *testing.T, *cluster.Cluster)) {
	t.Helper()
	c, pods := startWith(t, clustertest.IsolatedEnds)
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
	// Only the full size checks the rate. Otherwise rest and during make sure that packets arrive, however busy
	// the machine is.
	if want := float64(size.rate) * took.Seconds() / 2; os.Getenv("CONTINUITY") == "full" && float64(got.Sent) < want {
		t.Errorf("sent %d packets in %s, want %.0f at least", got.Sent, took, want)
	}
}

// disturb restarts the agents in turn, by SIGKILL and by SIGTERM. In between it replaces the programs as another
// version of the agent would.
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
				settings := loader.DefaultSettings() // the settings are constants of the programs
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

// upgrade renames the maps in force to an older layout while no agent runs, and starts agents twice. It kills the
// first one during the migration.
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
			time.Sleep(time.Duration(i) * 150 * time.Millisecond) // a different step of the migration each time
			if err := n.Restart(context.Background(), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(older); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s is ready, and %s is still there: %v", n.Name, older, err)
			}
		}
	}
}

// changes checks that an action replaces the program on every hook of a node.
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

// programs returns the ids of the programs on the pinned links of a node's pods, by pin.
func programs(t *testing.T, c *cluster.Cluster, n *cluster.Node) map[string]uint32 {
	t.Helper()
	pins, err := filepath.Glob(filepath.Join(c.BPFFS(), n.Name, "*", "links", "*_pod")) // without those of netfilter
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

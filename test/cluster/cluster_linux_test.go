// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/linux/loader"
	"github.com/isthmus-net/isthmus/test/cluster"
	"github.com/isthmus-net/isthmus/test/cluster/clustertest"
	"github.com/isthmus-net/isthmus/test/netns"
)

// manifests of a small cluster: client may reach server at UDP and TCP 7000.
const manifests = `
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: test, labels: {app: client}}
spec: {containers: [{name: main}]}
---
apiVersion: v1
kind: Pod
metadata: {name: server, namespace: test, labels: {app: server}}
spec: {containers: [{name: main, ports: [{name: echo, containerPort: 7000, protocol: UDP}]}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: server, namespace: test}
spec:
  podSelector: {matchLabels: {app: server}}
  ingress:
  - from: [{podSelector: {matchLabels: {app: client}}}]
    ports: [{port: echo, protocol: UDP}]
  - from: [{ipBlock: {cidr: 203.0.113.0/24}}, {ipBlock: {cidr: "2001:db8:1::/48"}}]
`

// commands are what the nodes of all tests run.
var commands clustertest.Commands

func TestMain(m *testing.M) { os.Exit(commands.Main(m)) }

// start makes a cluster of two Linux nodes with the two pods on them.
func start(t *testing.T) (*cluster.Cluster, map[string]*cluster.Pod) {
	t.Helper()
	return startWith(t, manifests)
}

// startWith makes a cluster of two Linux nodes with the pods of some manifests.
func startWith(t *testing.T, manifests string) (*cluster.Cluster, map[string]*cluster.Pod) {
	t.Helper()
	return startCluster(t, manifests, cluster.Config{Linux: 2})
}

// startCluster makes a cluster with the pods of some manifests.
func startCluster(t *testing.T, manifests string, cfg cluster.Config) (*cluster.Cluster, map[string]*cluster.Pod) {
	t.Helper()
	c := commands.Start(t, manifests, cfg)
	return c, clustertest.Attach(t, c)
}

// TestStreamOverRestarts checks that a stream between pods on two nodes loses no packet while both agents are
// killed and started again, several times.
func TestStreamOverRestarts(t *testing.T) {
	c, pods := start(t)
	for _, v6 := range []bool{false, true} {
		s := newStream(t, pods["client"].NS, address(pods["client"], v6), netip.AddrPortFrom(address(pods["server"], v6), 7000))
		for range 3 {
			for _, n := range c.Nodes {
				if err := n.Kill(); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(100 * time.Millisecond)
			if err := c.Start(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		sent, lost := s.finish()
		t.Logf("IPv6=%t sent=%d lost=%d over 6 restarts of agents", v6, sent, len(lost))
		if sent < 500 || len(lost) != 0 {
			t.Errorf("IPv6=%t: of %d packets %d were lost: %v", v6, sent, len(lost), lost)
		}
	}
}

func address(p *cluster.Pod, v6 bool) netip.Addr {
	for _, a := range p.IPs {
		if a.Is6() == v6 {
			return a
		}
	}
	return netip.Addr{}
}

// stream sends numbered datagrams to an echo server and counts the answers.
type stream struct {
	conn     net.Conn
	sent     uint64
	mu       sync.Mutex
	answered map[uint64]bool
	stop     chan struct{}
	stopped  chan struct{}
}

func newStream(t *testing.T, ns *netns.NS, from netip.Addr, to netip.AddrPort) *stream {
	t.Helper()
	s := &stream{answered: make(map[uint64]bool), stop: make(chan struct{}), stopped: make(chan struct{})}
	err := ns.Do(func() (err error) {
		s.conn, err = net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0)), net.UDPAddrFromAddrPort(to))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		buf := make([]byte, 64)
		for {
			n, err := s.conn.Read(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil { // an ICMP error
				t.Errorf("read: %v", err)
			}
			if n == 8 {
				s.mu.Lock()
				s.answered[binary.BigEndian.Uint64(buf)] = true
				s.mu.Unlock()
			}
		}
	}()
	go func() {
		defer close(s.stopped)
		tick := time.NewTicker(500 * time.Microsecond)
		defer tick.Stop()
		for {
			select {
			case <-s.stop:
				return
			case <-tick.C:
				if _, err := s.conn.Write(binary.BigEndian.AppendUint64(nil, s.sent)); err == nil {
					s.sent++
				}
			}
		}
	}()
	return s
}

// finish returns the number of packets sent, and those without an answer.
func (s *stream) finish() (sent uint64, lost []uint64) {
	close(s.stop)
	<-s.stopped
	for deadline := time.Now().Add(patience); !s.complete() && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	s.conn.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	for n := range s.sent {
		if !s.answered[n] {
			lost = append(lost, n)
		}
	}
	return s.sent, lost
}

func (s *stream) complete() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return uint64(len(s.answered)) == s.sent
}

// TestBPFToolShowsNames checks that bpftool shows every pinned map with the names of its fields.
func TestBPFToolShowsNames(t *testing.T) {
	c, _ := start(t)
	flows, err := c.Flows(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Try(context.Background(), flows, func(int) {}); err != nil {
		t.Fatal(err)
	}
	for _, f := range flows {
		if f.Got != f.Want {
			t.Errorf("%s to %s %s: cluster %s, reference %s", f.From.Name, f.To.PodID, f.Flow, f.Got, f.Want)
		}
	}
	maps, err := filepath.Glob(filepath.Join(c.BPFFS(), c.Nodes[1].Name, loader.LayoutVersion, "*"))
	if err != nil || len(maps) < 10 {
		t.Fatalf("pinned maps: %v %v", maps, err)
	}
	for _, path := range maps {
		name := filepath.Base(path)
		if name == "links" || name == "events" {
			continue // directories and rings have no entries
		}
		out, err := exec.Command("bpftool", "-j", "map", "dump", "pinned", path).Output()
		if err != nil {
			t.Errorf("dump %s: %v", name, err)
			continue
		}
		var entries []struct {
			Formatted struct{ Key, Value, Values any }
		}
		if err := json.Unmarshal(out, &entries); err != nil {
			t.Errorf("dump of %s: %v", name, err)
			continue
		}
		if len(entries) == 0 {
			if !strings.HasPrefix(name, "tunnel_") { // this cluster has none
				t.Errorf("map %s is empty, nothing is shown of it", name)
			}
			continue
		}
		f := entries[0].Formatted
		value := f.Value
		if cpus, ok := f.Values.([]any); ok && len(cpus) > 0 {
			value = cpus[0].(map[string]any)["value"]
		}
		if _, ok := value.(map[string]any); !ok {
			t.Errorf("values of %s have no field names: %v", name, value)
		}
	}
}

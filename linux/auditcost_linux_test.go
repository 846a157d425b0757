// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"runtime/debug"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy/compile"
)

// auditLimit is how many times the CPU time of reading its policy maps one audit may take.
const auditLimit = 5

// TestAuditCost measures an audit on a node in a cluster of 10,000 pods and 400 policies. It
// compares the minimums of 20 runs, or more if they do not suffice, because other load also affects CPU time.
func TestAuditCost(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(100)) // as the agent: make test sets a larger one
	l := newLab(t)
	for i := range 10 {
		l.pod(fmt.Sprint("p", i), byte(11+i))
	}
	l.enforceLarge(10_000, 400)
	for l.idle() {
	}
	entries := 0
	c, err := l.backend.Counters(context.Background())
	l.must(err)
	policyMaps := []string{"slots", "tables", "verdicts", "rows", "peers4", "peers6", "prefixes4", "prefixes6"}
	for _, m := range policyMaps {
		entries += c.Maps[m].Entries
	}
	minimum, least := time.Hour, time.Hour
	ratio := func() float64 { return float64(least) / float64(minimum) }
	for run := 0; run < 20 || ratio() > auditLimit && !emulated() && run < 100; run++ {
		l.must(l.node.Do(func() error {
			before := cpuTime()
			for _, name := range append(policyMaps, "ports") {
				if err := l.readAlone(name); err != nil {
					return err
				}
			}
			minimum = min(minimum, cpuTime()-before)
			before = cpuTime()
			if _, err := l.backend.Endpoints(context.Background()); err != nil {
				return err
			}
			found, err := l.backend.Audit(context.Background(), l.state)
			least = min(least, cpuTime()-before)
			if len(found) > 0 {
				t.Errorf("drifts: %v", found)
			}
			return err
		}))
	}
	fmt.Printf("audit of 10,000 pods, 400 policies: %d entries of policy maps beside %d ports, %.1f ms CPU, %.1f times reading them\n", entries, 3*65536, float64(least.Microseconds())/1000, ratio())
	if entries < 20_000 {
		t.Errorf("%d entries: the cluster is not large", entries)
	}
	if ratio() > auditLimit && !emulated() {
		t.Errorf("an audit costs %v of a processor, %.1f times reading the maps (%v), want at most %d", least, ratio(), minimum, auditLimit)
	}
}

// readAlone reads a pinned map and does nothing else.
func (l *lab) readAlone(name string) error {
	m, err := ebpf.LoadPinnedMap(l.pinned(name), nil)
	if err != nil {
		return err
	}
	defer m.Close()
	if memory, err := m.Memory(); err == nil { // a large array, mapped
		_, err = memory.ReadAt(make([]byte, memory.Size()), 0)
		return err
	}
	_, err = rawEntries(m)
	return err
}

// emulated reports whether the processor is emulated, so that its times say nothing (make test-kernel).
func emulated() bool { return os.Getenv("ISTHMUS_EMULATED") != "" }

// enforceLarge applies many policies in a cluster of many pods, most of them on other nodes.
func (l *lab) enforceLarge(pods, policies int) {
	l.t.Helper()
	node := &model.Node{Name: "node", OS: model.Linux, Addresses: []netip.Addr{netip.MustParseAddr(nodeAddr4)}, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}}
	var all []*model.Pod
	for _, e := range l.local {
		all = append(all, &model.Pod{PodID: e.Pod, Node: "node", IPs: e.IPs, Labels: model.MakeLabels(map[string]string{"name": e.Pod.Name})})
	}
	for i := range pods - len(all) {
		n := 1 + i
		all = append(all, &model.Pod{PodID: model.PodID{Namespace: "default", Name: fmt.Sprint("far", i)}, Node: "far",
			IPs:    []netip.Addr{netip.AddrFrom4([4]byte{10, 64, byte(n >> 8), byte(n)}), netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x64, 14: byte(n >> 8), 15: byte(n)})},
			Labels: model.MakeLabels(map[string]string{"name": fmt.Sprint("app", i%policies)})})
	}
	var set []*model.Policy
	for i := range policies {
		p := isolate(fmt.Sprint("p", i%10), model.Ingress, accept(model.Peer{Kind: model.PeerPods, Pods: named(fmt.Sprint("app", i))}, tcp(uint16(1000+i)), udp(53)))
		p.Origin.Name = fmt.Sprint("policy", i)
		set = append(set, p)
	}
	cluster := model.MakeSnapshot(nil, []*model.Node{node}, all, set)
	l.must(l.node.Do(func() (err error) {
		l.state, _ = compile.Once(compile.Input{Snapshot: cluster, Node: "node", Endpoints: l.local, Previous: l.state})
		_, err = l.backend.Apply(context.Background(), l.state)
		return err
	}))
}

// cpuTime returns the CPU time of this process, in user and kernel mode.
func cpuTime() time.Duration {
	var r unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &r) != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// SPDX-License-Identifier: Apache-2.0

package monitoring_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/cluster"
	"github.com/isthmus-net/isthmus/test/traffic"
)

// often is the flag for audits that a test can wait for.
const often = "--audit-interval=1s"

// TestRunbooksOfLinux breaks Linux nodes.
func TestRunbooksOfLinux(t *testing.T) {
	b := startBroken(t, shop, cluster.Config{Linux: 2, NodeFlags: map[string][]string{"linux1": {often}, "linux2": {often}},
		HostPorts: map[string][]cluster.HostPort{"reserved": {{HostPort: 6443, ContainerPort: 80, Protocol: "tcp"}}}})
	b.operator = newOperator(t, map[string][]string{"isthmus-agent": agents(t, b.cluster)})
	for _, all := range [][]breakage{b.agentsOfLinux(), b.policyOfLinux(), b.podsOfLinux(), b.flowsOfLinux()} {
		for _, c := range all {
			b.follow(c)
		}
	}
}

func (b *broken) agentsOfLinux() []breakage {
	one, two := b.cluster.Nodes[0], b.cluster.Nodes[1]
	files := b.cluster.Manifests
	var stop func()
	return []breakage{
		{alert: "IsthmusAgentDown", at: two, breaks: func() {
			b.must(two.Stop())
			b.flags["linux2"] = []string{often, "--map-entries=ports=8"}
			b.must(two.Start())
		}, remedy: func() { b.restart(two, often) }},
		{alert: "IsthmusNotReady", at: two, breaks: func() {
			b.must(files.Put("bad", bad))
			b.must(two.Stop())
			b.must(two.Start())
		}, remedy: func() { b.must(files.Drop("bad")) }},
		{alert: "IsthmusSourceStale", at: one, breaks: func() { b.must(files.Put("bad", bad)) }, remedy: func() { b.must(files.Drop("bad")) }},
		{alert: "IsthmusProblems", at: one, breaks: func() { b.must(b.at(one, "ip route replace blackhole 10.244.2.0/24")) },
			remedy: func() {}}, // a command of the section
		{alert: "IsthmusVersionsDiffer", at: two, breaks: func() { stop = b.upgrade(two) }, remedy: func() { stop() }},
	}
}

// upgrade starts an agent of another version on a node, and returns a function that takes the upgrade back.
func (b *broken) upgrade(n *cluster.Node) (back func()) {
	b.t.Helper()
	binary := filepath.Join(b.bin, "isthmus-agent")
	b.must(os.Rename(binary, binary+".old")) // the other agent runs it
	back = func() {
		b.must(os.Rename(binary+".old", binary))
		b.restart(n, b.flags[n.Name]...)
	}
	build := exec.Command("go", "build", "-ldflags", "-s -w -X main.version=0.0.9", "-o", binary, "./cmd/isthmus-agent")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		b.t.Fatalf("build isthmus-agent: %v\n%s", err, out)
	}
	b.restart(n, b.flags[n.Name]...)
	return back
}

func (b *broken) policyOfLinux() []breakage {
	one := b.cluster.Nodes[0]
	files := b.cluster.Manifests
	var stop func()
	return []breakage{
		{alert: "IsthmusPodsUnenforced", at: one, breaks: func() {
			down := "ip link set " + b.hostInterface(b.pods["api-linux1"]) + " down"
			stop = b.repeat(50*time.Millisecond, func() error { return b.at(one, down) })
		}, remedy: func() { stop() }},
		{alert: "IsthmusPolicyNotApplied", at: one, breaks: func() {
			b.restart(one, often, "--map-entries=prefixes4=32")
			b.must(files.Put("many", many(70))) // so few that the agent does not close the rule instead
		}, remedy: func() { b.restart(one, often, "--map-entries=prefixes4=76") }},
		{alert: "IsthmusMapNearlyFull", at: one, breaks: func() {}, // the last remedy was a small one
			remedy: func() {
				b.restart(one, often, "--map-entries=prefixes4=1024")
				b.must(files.Drop("many"))
			}},
		{alert: "IsthmusPolicyNotExact", at: one, breaks: func() { b.restart(one, often, "--limit-addresses=2") }, remedy: func() { b.restart(one, often) }},
		{alert: "IsthmusDrift", at: one, breaks: func() { stop = b.repeat(300*time.Millisecond, func() error { return b.corrupt(one) }) }, remedy: func() { stop() }},
	}
}

func (b *broken) podsOfLinux() []breakage {
	one, two := b.cluster.Nodes[0], b.cluster.Nodes[1]
	return []breakage{
		{alert: "IsthmusPodStartsFail", at: one, breaks: func() {
			for range 4 {
				if b.add("reserved", "linux1") == nil {
					b.t.Error("a pod got a reserved host port")
				}
				time.Sleep(time.Second) // increase() needs the value before
			}
		}, remedy: func() { b.must(b.cluster.Manifests.RemovePod(model.PodID{Namespace: "shop", Name: "reserved"})) }},
		{alert: "IsthmusEndpointsBroken", at: one, breaks: func() {
			b.must(b.add("gone", "linux1"))
			b.must(b.pods["gone"].NS.Close())
		}, remedy: func() { b.must(b.cluster.Detach(b.t.Context(), b.pods["gone"])) }},
		{alert: "IsthmusAddressesLow", at: two, breaks: func() {
			b.restart(two, often, "--pod-cidr=10.244.2.0/29")
			for n := range 4 {
				b.must(b.add(fmt.Sprintf("more-%d", n), "linux2"))
			}
		}, remedy: func() { b.restart(two, often) }},
	}
}

func (b *broken) flowsOfLinux() []breakage {
	one := b.cluster.Nodes[0]
	var stop func()
	return []breakage{
		{alert: "IsthmusSpoofedPackets", at: one, breaks: func() {
			stop = b.repeat(20*time.Millisecond, func() error { return spoof(b.pods["web-linux1"], b.pods["db-linux2"]) })
		}, remedy: func() { stop() }},
		{alert: "IsthmusFlowsUntracked", at: one, breaks: func() {
			b.restart(one, often, "--map-entries=conns4=64")
			b.must(b.cluster.ServeAt(b.pods["db-linux2"], cluster.Port{Protocol: model.UDP, Number: 7000}))
			for n := range 8 {
				b.must(b.add(fmt.Sprintf("client-%d", n), "linux1"))
			}
			b.must(b.add("busy-linux1", "linux1"))
			stop = b.repeat(time.Second, func() (err error) {
				for n := range 8 {
					err = errors.Join(err, b.exchange(fmt.Sprintf("client-%d", n), 8))
				}
				return errors.Join(err, b.exchange("busy-linux1", 100))
			})
		}, remedy: func() { b.restart(one, often, "--map-entries=conns4=8192"); stop() }},
		{alert: "IsthmusFlowEventsLost", at: one, breaks: func() {
			b.restart(one, often, "--flow-event-rate=10000", "--flow-event-burst=10000")
			web, api := b.pods["web-linux1"], b.pods["api-linux1"]
			syns, err := traffic.OpenSYNs(web.NS, web.IPs[0], api.IPs[0])
			b.must(err)
			b.t.Cleanup(func() { syns.Close() })
			// After a pause both pods may have a burst of events, more than the ring holds and sooner than the agent reads it.
			stop = b.repeat(time.Second, func() error {
				var err error
				for began := time.Now(); err == nil && time.Since(began) < time.Second/2; {
					err = syns.Send(81)
				}
				return err
			})
		}, remedy: func() { b.restart(one, often, "--flow-event-rate=20"); stop() }},
	}
}

// exchange opens flows from a pod to a server, one after the other, and waits for an answer in each.
func (b *broken) exchange(pod string, flows int) error {
	p, to := b.pods[pod], b.pods["db-linux2"].IPs[0]
	return p.NS.Do(func() error {
		for range flows {
			conn, err := net.DialTimeout("udp", netip.AddrPortFrom(to, 7000).String(), time.Second)
			if err != nil {
				return err
			}
			err = traffic.Exchange(conn, time.Second)
			conn.Close()
			if err != nil && !traffic.Silent(err) { // a restart of the agent may deny one
				return err
			}
		}
		return nil
	})
}

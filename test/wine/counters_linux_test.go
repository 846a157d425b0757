// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/netns"
	"github.com/isthmus-net/isthmus/test/traffic"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// countedPolicy has two rules of UDP; its isolation denies the rest.
const countedPolicy = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: shop}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress:
  - {from: [{ipBlock: {cidr: 10.1.0.0/16}}], ports: [{protocol: UDP, port: 80}]}
  - {from: [{podSelector: {matchLabels: {app: client}}}], ports: [{protocol: UDP, port: 81}]}
`

// TestRuleCounters: isthmus-agent.exe counts packets of the emulated switch by rule of policy,
// through vfpctrl.exe. isthmusctl.exe and the metric have the number of packets that were sent, since the agent
// started.
func TestRuleCounters(t *testing.T) {
	m := machine(t)
	logs(t, m)
	if err := m.StartEmulator(hns.Server2022); err != nil {
		t.Fatal(err)
	}
	dir := newManifests(t, "web", "client", "db")
	start := func() {
		t.Helper()
		if err := m.StartAgent("win1", string(dir), "--rule-counters=10s", "--rule-metrics=100"); err != nil {
			t.Fatal(err)
		}
	}
	start()
	m.awaitStatus(t, "none: this host has no vfpctrl.exe")
	m.installVFPControl(t)

	other := outside(t, m, "10.1.0.9")
	web, client, db := newInside(t, m, "web"), newInside(t, m, "client"), newInside(t, m, "db")
	dir.writePods(t, web, client, db)
	dir.write(t, "policy", countedPolicy)
	decided(t, m, web.Pod, flow{"In", "10.1.0.9", udp, 80, allow}, flow{"In", client.address.String(), udp, 81, allow}, flow{"In", db.address.String(), udp, 80, block})
	m.awaitReading(t)

	near := netip.MustParseAddr("10.1.0.9")
	at := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(web.address, port) }
	for range 3 {
		datagrams(t, other, near, at(80), 4, true)
	}
	datagrams(t, client.ns, netip.Addr{}, at(81), 7, true)
	datagrams(t, db.ns, netip.Addr{}, at(80), 5, false)
	datagrams(t, other, near, at(81), 3, false)
	m.awaitCounts(t, web, "ingress 0: 12 allowed, 0 denied; ingress 1: 7 allowed, 0 denied; ingress isolation: 0 allowed, 8 denied")
	m.awaitStatus(t, "packets, from vfpctrl")

	// Packets that pass without an agent are not counted: numbers begin with it.
	if err := m.KillAgent(); err != nil {
		t.Fatal(err)
	}
	datagrams(t, other, near, at(80), 2, true)
	start()
	m.awaitReading(t)
	datagrams(t, other, near, at(80), 6, true)
	datagrams(t, db.ns, netip.Addr{}, at(80), 1, false)
	m.awaitCounts(t, web, "ingress 0: 6 allowed, 0 denied; ingress 1: 0 allowed, 0 denied; ingress isolation: 0 allowed, 1 denied")
	for _, p := range []*inside{web, client, db} {
		counted(t, "DEL", m.Delete(context.Background(), p.Pod))
	}
	countPackets(t, m)
}

// installVFPControl puts vfpctrl.exe into the system directory for the rest of a test.
func (m *Machine) installVFPControl(t *testing.T) {
	t.Helper()
	program, err := os.ReadFile(filepath.Join(m.bin, "vfpctrl.exe"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(m.Drive(), "windows", "system32", "vfpctrl.exe")
	if err := os.WriteFile(path, program, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(path) })
}

// datagrams sends datagrams of one flow. If they are answered, each waits for the answer to the one before.
func datagrams(t *testing.T, ns *netns.NS, from netip.Addr, to netip.AddrPort, n int, answered bool) {
	t.Helper()
	c, err := traffic.Flow{NS: ns, From: from, To: to, Protocol: model.UDP}.Dial(context.Background(), patience/3)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for i := range n {
		if answered {
			err = traffic.Exchange(c, patience/3)
		} else {
			_, err = io.WriteString(c, "hello")
		}
		if err != nil {
			t.Fatalf("datagram %d to %s: %v", i, to, err)
		}
	}
}

// awaitReading waits until the agent has read the counters of the pod with the policy, from which it counts on.
func (m *Machine) awaitReading(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(200 * time.Millisecond) {
		if metrics, err := m.Get("/metrics"); err == nil && len(packetsOf(t, metrics)) == 3 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the agent has read no counters of policy web within %s", patience)
		}
	}
}

// packetsOf returns the metric of the policy web, by its labels.
func packetsOf(t *testing.T, metrics string) map[string]int {
	t.Helper()
	found := make(map[string]int)
	for line := range strings.Lines(metrics) {
		name, value, ok := strings.Cut(line, "} ")
		if !ok || !strings.HasPrefix(name, "isthmus_rule_packets_total{") || !strings.Contains(name, `policy="web"`) {
			continue
		}
		n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		if err != nil {
			t.Fatal(err)
		}
		found[name] = int(n)
	}
	return found
}

// awaitPass waits for a whole pass over the counters of all pods that begins after now.
func (m *Machine) awaitPass(t *testing.T) {
	t.Helper()
	passes := func() int {
		calls, err := os.ReadFile(m.File("calls.jsonl"))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(calls), `"Args":["/list-vmswitch-port /format 1"]`)
	}
	before := passes()
	for deadline := time.Now().Add(patience); passes() < before+2; time.Sleep(100 * time.Millisecond) { // the second ends the first
		if time.Now().After(deadline) {
			t.Fatalf("no pass of the agent over the counters within %s", patience)
		}
	}
}

// awaitStatus waits until isthmusctl.exe status shows a text about the counters of rules.
func (m *Machine) awaitStatus(t *testing.T, text string) {
	t.Helper()
	m.await(t, "status", func(out string) bool {
		for line := range strings.Lines(out) {
			if _, fact, ok := strings.Cut(strings.ToLower(line), "rule counters:"); ok && strings.TrimSpace(fact) == text {
				return true
			}
		}
		return false
	}, "status")
}

// awaitCounts waits until isthmusctl.exe policies shows numbers for the policy of a pod, and has the same after one
// more pass.
func (m *Machine) awaitCounts(t *testing.T, of *inside, want string) {
	t.Helper()
	shows := func(out string) bool { return strings.Contains(countsOf(out), want) }
	m.await(t, "counts "+want, shows, "policies", "-o", "json")
	m.awaitPass(t)
	m.await(t, "counts, later, "+want, shows, "policies", "-o", "json")
	metrics, err := m.Get("/metrics")
	if err != nil {
		t.Fatal(err)
	}
	var packets int
	for _, n := range packetsOf(t, metrics) {
		packets += n
	}
	var sum int
	for part := range strings.SplitSeq(want, "; ") {
		var allowed, denied int
		if _, err := fmt.Sscanf(part[strings.Index(part, ": "):], ": %d allowed, %d denied", &allowed, &denied); err != nil {
			t.Fatal(err)
		}
		sum += allowed + denied
	}
	if packets != sum {
		t.Errorf("isthmus_rule_packets_total has %d packets of policy web, want %d\n%s", packets, sum, metrics)
	}
	if t.Failed() {
		text, err := m.Control("/counters?id="+of.endpoint(), nil)
		t.Logf("the switch: %v\n%s", err, text)
	}
}

// countsOf renders what isthmusctl policies -o json shows of the policy web.
func countsOf(text string) string {
	var list struct {
		Unit  string
		Items []struct {
			Policy string
			Rules  []struct {
				Direction       string
				Rule            *int
				Allowed, Denied uint64
				Shared          bool
			}
		}
	}
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return err.Error()
	}
	var texts []string
	for _, p := range list.Items {
		for _, r := range p.Rules {
			what := "isolation"
			if r.Rule != nil {
				what = fmt.Sprint(*r.Rule)
			}
			if r.Shared {
				what += " (shared)"
			}
			texts = append(texts, fmt.Sprintf("%s %s: %d allowed, %d denied", r.Direction, what, r.Allowed, r.Denied))
		}
	}
	return strings.Join(texts, "; ")
}

// await runs isthmusctl.exe until its output is as wanted.
func (m *Machine) await(t *testing.T, what string, so func(string) bool, args ...string) {
	t.Helper()
	var out string
	var err error
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
		if out, err = m.Output(m.Command(context.Background(), filepath.Join(m.bin, "isthmusctl.exe"), args...)); err == nil && so(out) {
			return
		}
	}
	t.Fatalf("%s: isthmusctl.exe %s (%v):\n%s", what, strings.Join(args, " "), err, out)
}

// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/windows/hns"
)

const (
	tcp   = 6
	udp   = 17
	allow = string(hns.Allow)
	block = string(hns.Block)
)

// strict are flags of an emulator that is slow, changes ACLs one by one, answers in another order, and replaces all policies in
// an Update.
var strict = []string{"--gradual", "--reorder", "--respell", "--update-replaces-all", "--latency", "0.2"}

// TestCommands runs the whole life of a pod on every version of HNS, and on a strict one, with the released executables.
func TestCommands(t *testing.T) {
	type kind struct {
		name  string
		v     hns.Version
		flags []string
	}
	kinds := []kind{{"strict", hns.Server2022, strict}}
	for _, v := range hns.Profiles() {
		kinds = append(kinds, kind{v.String(), v, nil})
	}
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			m, v := machine(t), k.v
			logs(t, m)
			if err := m.StartEmulator(v, k.flags...); err != nil {
				t.Fatal(err)
			}
			dir := newManifests(t, "web", "db")
			dir.write(t, "policy", policy("web", "10.1.0.0/16", 80))
			if err := m.StartAgent("win1", string(dir)); err != nil {
				t.Fatal(err)
			}
			life(t, m, dir)
			status(t, m, v)
			restarts(t, m, dir, func() error { return m.StartEmulator(v, k.flags...) })
			farewell(t, m)
			shared.mu.Lock()
			defer shared.mu.Unlock()
			shared.executables["isthmus-agent"] = true
			shared.profiles[v.String()] = true
		})
	}
}

// life attaches pods and changes their policy.
func life(t *testing.T, m *Machine, dir manifests) {
	t.Helper()
	ctx := context.Background()
	counted(t, "STATUS", m.Status(ctx))
	web := pod(t, m, "web")
	wrong := web
	wrong.DNS = &DNS{Servers: []string{"x"}}
	_, err := m.Add(ctx, wrong)
	refused(t, "ADD with a DNS server that is not an address", err, `"dns": ["x"] is not valid`)
	web.DNS = &DNS{Servers: []string{"10.96.0.10"}, Searches: []string{"shop.svc.cluster.local", "svc.cluster.local", "cluster.local"}, Options: []string{"ndots:5"}}
	first, err := m.Add(ctx, web)
	counted(t, "ADD", err)
	resolves(t, m)
	if len(first.IPs) != 1 || !strings.HasPrefix(first.IPs[0].Address.String(), "10.244.3.") {
		t.Fatalf("ADD gave addresses %v", first.IPs)
	}
	again, err := m.Add(ctx, web)
	counted(t, "second ADD", err)
	if again.IPs[0].Address.String() != first.IPs[0].Address.String() {
		t.Fatalf("the second ADD gave %s, the first %s", again.IPs[0].Address.String(), first.IPs[0].Address.String())
	}
	counted(t, "CHECK", m.Check(ctx, web))
	decided(t, m, web, flow{"In", "10.1.2.3", tcp, 80, allow}, flow{"In", "10.2.2.3", tcp, 80, block}, flow{"In", "10.1.2.3", tcp, 81, block},
		flow{"In", "192.0.2.13", tcp, 81, allow}, flow{"Out", "203.0.113.1", tcp, 443, allow})
	lost := Pod{Namespace: "shop", Name: "db", Container: "sandbox-lost", NetNS: "5f0b1190-63be-4e0c-b974-bd0f55675a42"}
	_, err = m.Add(ctx, lost)
	refused(t, "ADD into a namespace that is not there", err, "5f0b1190")
	db := pod(t, m, "db")
	_, err = m.Add(ctx, db)
	counted(t, "ADD", err)
	decided(t, m, db, flow{"In", "10.2.2.3", tcp, 5432, allow})
	dir.write(t, "policy", policy("web", "10.2.0.0/16", 80)+"---\n"+policy("db", "10.3.0.0/16", 5432))
	decided(t, m, web, flow{"In", "10.1.2.3", tcp, 80, block}, flow{"In", "10.2.2.3", tcp, 80, allow})
	decided(t, m, db, flow{"In", "10.2.2.3", tcp, 5432, block}, flow{"In", "10.3.2.3", tcp, 5432, allow})
}

// resolves checks that HNS holds the resolver of the pod web.
func resolves(t *testing.T, m *Machine) {
	t.Helper()
	dump, err := m.Control("/dump", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"ServerList":["10.96.0.10"]`, `"Search":["shop.svc.cluster.local","svc.cluster.local","cluster.local"]`, `"Options":["ndots:5"]`} {
		if !strings.Contains(dump, want) {
			t.Errorf("HNS has no %s in\n%s", want, dump)
			continue
		}
		shared.mu.Lock()
		shared.dns++
		shared.mu.Unlock()
	}
}

// status runs isthmusctl status, and the version of each command.
func status(t *testing.T, m *Machine, v hns.Version) {
	t.Helper()
	for args, want := range map[string]string{
		"isthmusctl.exe status":     "HNS " + v.String(),
		"isthmusctl.exe endpoints":  "shop/web",
		"isthmusctl.exe version":    "windows/amd64",
		"isthmus-agent.exe version": "windows/amd64",
	} {
		words := strings.Fields(args)
		out, err := m.Output(m.Command(context.Background(), filepath.Join(m.bin, words[0]), words[1:]...))
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("%s: %v, want %q in\n%s", args, err, want, out)
		}
	}
	shared.mu.Lock()
	defer shared.mu.Unlock()
	shared.executables["isthmusctl"] = !t.Failed()
}

// writes returns the number of calls that have changed endpoints.
func writes(t *testing.T, m *Machine) int {
	t.Helper()
	b, err := os.ReadFile(m.File("calls.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Count(b, []byte(`"Op":"Modify.endpoint"`)) + bytes.Count(b, []byte(`"Op":"Create.endpoint"`))
}

// restarts kills the agent and stops HNS. Policy in force stays, and the next agent reads it and does not write
// it again.
func restarts(t *testing.T, m *Machine, dir manifests, startHNS func() error) {
	t.Helper()
	ctx := context.Background()
	web := Pod{Namespace: "shop", Name: "web", Container: "sandbox-web"}
	before := writes(t, m)
	if err := m.KillAgent(); err != nil {
		t.Fatal(err)
	}
	decided(t, m, web, flow{"In", "10.2.2.3", tcp, 80, allow}, flow{"In", "10.1.2.3", tcp, 80, block})
	if err := m.StartAgent("win1", string(dir)); err != nil {
		t.Fatal(err)
	}
	counted(t, "STATUS after a crash", m.Status(ctx))
	decided(t, m, web, flow{"In", "10.2.2.3", tcp, 80, allow}, flow{"In", "10.1.2.3", tcp, 80, block})
	if n := writes(t, m) - before; n != 0 {
		t.Errorf("the agent that came back wrote endpoints %d times, although nothing had changed", n)
	}
	resolves(t, m)
	if err := m.StopEmulator(); err != nil {
		t.Fatal(err)
	}
	dir.write(t, "policy", policy("web", "10.4.0.0/16", 80))
	if err := startHNS(); err != nil {
		t.Fatal(err)
	}
	decided(t, m, web, flow{"In", "10.4.2.3", tcp, 80, allow}, flow{"In", "10.2.2.3", tcp, 80, block})
}

// farewell removes the pods and stops the agent as Ctrl-C does.
func farewell(t *testing.T, m *Machine) {
	t.Helper()
	ctx := context.Background()
	web := Pod{Namespace: "shop", Name: "web", Container: "sandbox-web"}
	counted(t, "DEL", m.Delete(ctx, web))
	counted(t, "second DEL", m.Delete(ctx, web))
	counted(t, "GC", m.GC(ctx))
	dump, err := m.Control("/dump", nil)
	if err != nil || strings.Contains(dump, "sandbox-") {
		t.Errorf("after DEL and GC: %v\n%s", err, dump)
	}
	// An audit of the agent may be under way.
	var open string
	for range 50 {
		if open, err = m.Control("/handles", nil); err != nil || open == "0" {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if err != nil || open != "0" {
		t.Errorf("%s handles stay open while nothing goes on: %v", open, err)
	}
	if err := m.StopAgent(); err != nil {
		t.Errorf("the agent ended with %v on an interrupt", err)
	}
	b, err := os.ReadFile(m.File("agent.log"))
	if err != nil || !bytes.Contains(b, []byte("agent has stopped")) {
		t.Errorf("the agent did not say that it has stopped: %v", err)
	}
}

// TestManyAtOnce attaches pods concurrently, as a node does after a reboot.
func TestManyAtOnce(t *testing.T) {
	const pods = 20
	m := machine(t)
	logs(t, m)
	if err := m.StartEmulator(hns.Server2022); err != nil {
		t.Fatal(err)
	}
	var names []string
	for i := range pods {
		names = append(names, fmt.Sprintf("web-%d", i))
	}
	if err := m.StartAgent("win1", string(newManifests(t, names...))); err != nil {
		t.Fatal(err)
	}
	var all []Pod
	for _, name := range names {
		all = append(all, pod(t, m, name))
	}
	addresses := make([]string, pods)
	errs := make([]error, pods)
	each := func(f func(i int)) {
		var wg sync.WaitGroup
		for i := range all {
			wg.Go(func() { f(i) })
		}
		wg.Wait()
	}
	each(func(i int) {
		result, err := m.Add(context.Background(), all[i])
		if errs[i] = err; err == nil {
			addresses[i] = result.IPs[0].Address.String()
		}
	})
	seen := make(map[string]bool)
	for i := range all {
		counted(t, "ADD of "+names[i], errs[i])
		if seen[addresses[i]] {
			t.Errorf("%s was given twice", addresses[i])
		}
		seen[addresses[i]] = true
	}
	each(func(i int) { errs[i] = m.Delete(context.Background(), all[i]) })
	for i := range all {
		counted(t, "DEL of "+names[i], errs[i])
	}
	if dump, err := m.Control("/dump", nil); err != nil || strings.Contains(dump, "sandbox-") {
		t.Errorf("after DEL: %v\n%s", err, dump)
	}
}

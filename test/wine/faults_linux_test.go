// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"bytes"
	"context"
	"encoding/json"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/test/hnsemu/fault"
	"github.com/isthmus-net/isthmus/windows"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// TestFaults attaches and removes a pod under every fault in fault.Catalogue. The pod may fail to start, as the
// catalogue describes, but never runs with another policy, and no object of it may stay.
func TestFaults(t *testing.T) {
	m := machine(t)
	logs(t, m)
	if err := m.StartEmulator(hns.Server2022); err != nil {
		t.Fatal(err)
	}
	dir := newManifests(t, "web", "next")
	dir.write(t, "policy", policy("web", "10.1.0.0/16", 80))
	if err := m.StartAgent("win1", string(dir)); err != nil {
		t.Fatal(err)
	}
	for _, row := range fault.Catalogue() {
		for _, way := range row.Ways {
			if way.Mode == string(windows.Overlay) || way.When == fault.BeforeStart || way.When == fault.WhileItRuns {
				continue // TestOverlay, TestRefusesToStart, and below and over the Fake
			}
			t.Run(way.Name, func(t *testing.T) { attachUnder(t, m, way) })
		}
	}
	calls, err := os.ReadFile(m.File("calls.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{`create.loadbalancer"`, `modify.loadbalancer"`, `delete.loadbalancer"`, `.sdnroute"`, `/policylists`} {
		if bytes.Contains(bytes.ToLower(calls), []byte(kind)) {
			t.Errorf("Isthmus has made a call about a %s", kind)
		}
	}
}

// TestRefusesToStart gives the agent an unsuitable HNS: it names the missing feature and changes nothing.
func TestRefusesToStart(t *testing.T) {
	m := machine(t)
	if err := m.StartEmulator(hns.Version{Major: 9, Minor: 1}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	out, err := m.Output(m.Command(ctx, filepath.Join(m.bin, "isthmus-agent.exe"), "--node-name", "win1", "--manifests", Path(string(newManifests(t)))))
	if err == nil || !strings.Contains(out+err.Error(), "version 9.1 is too old") {
		t.Errorf("with HNS 9.1: %v\n%s", err, out)
	}
	if dump, err := m.Control("/dump", nil); err != nil || dump != "" {
		t.Errorf("it has made %s, %v", dump, err)
	}
	shared.mu.Lock()
	shared.faults++
	shared.mu.Unlock()
}

// TestHungWrite delays a write of ACLs until newer policies exist. Other pods start meanwhile. After the write
// the newest policy is in force.
func TestHungWrite(t *testing.T) {
	ctx := context.Background()
	m := machine(t)
	logs(t, m)
	if err := m.StartEmulator(hns.Server2022); err != nil {
		t.Fatal(err)
	}
	dir := newManifests(t, "web", "db")
	dir.write(t, "policy", policy("web", "10.1.0.0/16", 80))
	if err := m.StartAgent("win1", string(dir), "--hns-timeout", hungTimeout.String()); err != nil {
		t.Fatal(err)
	}
	web, db := pod(t, m, "web"), pod(t, m, "db")
	_, err := m.Add(ctx, web)
	counted(t, "ADD", err)
	decided(t, m, web, flow{"In", "10.1.2.3", tcp, 80, allow})
	text, err := json.Marshal(fault.Fault{Op: "Modify.endpoint", Times: 1, Hang: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Post("/fault", string(text)); err != nil {
		t.Fatal(err)
	}
	dir.write(t, "policy", policy("web", "10.1.0.0/16", 81))
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		if hits, err := m.Post("/fault/hits", ""); err == nil && hits != "0" {
			break // its write hangs
		} else if err != nil || time.Now().After(deadline) {
			t.Fatalf("no write hangs: %s, %v", hits, err)
		}
	}
	began := time.Now()
	_, err = m.Add(ctx, db)
	counted(t, "ADD while a write hangs", err)
	if took := time.Since(began); took > hungTimeout+20*time.Second {
		t.Errorf("another pod waited %s for a deadline of %s", took, hungTimeout)
	}
	decided(t, m, db, flow{"In", "10.1.2.3", tcp, 80, allow})
	dir.write(t, "policy", policy("web", "10.1.0.0/16", 82))
	time.Sleep(time.Second)
	decided(t, m, web, flow{"In", "10.1.2.3", tcp, 80, allow}, flow{"In", "10.1.2.3", tcp, 82, block}) // no other write overtakes it
	if _, err := m.Post("/fault/clear", ""); err != nil {
		t.Fatal(err)
	}
	decided(t, m, web, flow{"In", "10.1.2.3", tcp, 82, allow}, flow{"In", "10.1.2.3", tcp, 81, block}, flow{"In", "10.1.2.3", tcp, 80, block})
	for _, p := range []Pod{web, db} {
		counted(t, "DEL", m.Delete(ctx, p))
	}
	left(t, m, "DEL")
	shared.mu.Lock()
	shared.faults++
	shared.mu.Unlock()
}

// hungTimeout is the agent's timeout for a call.
const hungTimeout = 2 * time.Second

func attachUnder(t *testing.T, m *Machine, way fault.Way) {
	ctx := context.Background()
	address := nextAddress(t, m)
	if way.When == fault.BeforeAdd {
		strike(t, m, way, url.Values{"address": {address}})
	}
	web := pod(t, m, "web")
	_, err := m.Add(ctx, web)
	if way.Says == "" || way.When != fault.BeforeAdd {
		counted(t, "ADD", err)
	} else {
		refused(t, "ADD", err, way.Says)
		left(t, m, "a refused ADD")
		calm(t, m)
		_, err = m.Add(ctx, web)
		counted(t, "ADD again", err)
	}
	calm(t, m)
	decided(t, m, web, flow{"In", "10.1.2.3", tcp, 80, allow}, flow{"In", "10.2.2.3", tcp, 80, block}, flow{"Out", "10.2.2.3", tcp, 80, allow})
	if way.When == fault.BeforeDel {
		strike(t, m, way, url.Values{"endpoint": {web.Container + "_eth0_isthmus"}, "namespace": {web.NetNS}})
	}
	counted(t, "DEL", m.Delete(ctx, web))
	left(t, m, "DEL")
	calm(t, m)
	if _, err := m.Control("/namespace/remove", url.Values{"id": {web.NetNS}}); err != nil {
		t.Fatal(err)
	}
	shared.mu.Lock()
	shared.faults++
	shared.mu.Unlock()
}

// nextAddress determines the address of the next pod. Released addresses are in quarantine.
func nextAddress(t *testing.T, m *Machine) string {
	t.Helper()
	ctx := context.Background()
	p := pod(t, m, "next")
	r, err := m.Add(ctx, p)
	counted(t, "ADD", err)
	counted(t, "DEL", m.Delete(ctx, p))
	left(t, m, "DEL")
	if _, err := m.Control("/namespace/remove", url.Values{"id": {p.NetNS}}); err != nil {
		t.Fatal(err)
	}
	a, ok := netip.AddrFromSlice(r.IPs[0].Address.IP)
	if !ok {
		t.Fatalf("ADD gave %s", r.IPs[0])
	}
	return a.Unmap().Next().String()
}

func strike(t *testing.T, m *Machine, way fault.Way, query url.Values) {
	t.Helper()
	query.Set("way", way.Name)
	if _, err := m.Control("/strike", query); err != nil {
		t.Fatal(err)
	}
}

func calm(t *testing.T, m *Machine) {
	t.Helper()
	if _, err := m.Post("/fault/clear", ""); err != nil {
		t.Fatal(err)
	}
}

// left waits until no object of a pod is left.
func left(t *testing.T, m *Machine, after string) {
	t.Helper()
	var dump string
	for deadline := time.Now().Add(patience / 2); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		var err error
		if dump, err = m.Control("/dump", nil); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(dump, "sandbox-") {
			return
		}
	}
	t.Errorf("after %s there is\n%s", after, dump)
}

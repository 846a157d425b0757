// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/test/hnsemu/service"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// TestFaults attaches a pod and takes it away while HNS does what it has been
// seen to do. The pod may fail to start, but never with another policy than its
// own, and nothing of it may stay.
func TestFaults(t *testing.T) {
	m := machine(t)
	logs(t, m)
	if err := m.StartEmulator(hns.Server2022); err != nil {
		t.Fatal(err)
	}
	dir := newManifests(t, "web")
	dir.write(t, "policy", policy("web", "10.1.0.0/16", 80))
	if err := m.StartAgent("win1", string(dir)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		fault service.Fault
		fails string // part of the error that ADD must give; empty if it must succeed
	}{
		{"an endpoint is gone between list and open", service.Fault{Op: "Open.endpoint", Times: 1, Code: hns.CodeNotFound}, ""},
		{"unspecified error", service.Fault{Op: "Create.endpoint", Times: 1, Code: hns.CodeUnspecified}, ""},
		{"the service stops and starts", service.Fault{Op: "Enumerate.network", Times: 2, Code: hns.CodeManagerStopped}, ""},
		{"the acls are late", service.Fault{Op: "Modify.endpoint", Times: 2, Delay: time.Second}, ""},
		{"acls are accepted and not applied", service.Fault{Op: "Modify.endpoint", Times: 1, Lie: true}, "not the same"},
		{"acls are applied and an error is given", service.Fault{Op: "Modify.endpoint", Times: 1, Code: hns.CodeUnspecified, After: true}, ""},
		{"no rights", service.Fault{Op: "Create.endpoint", Times: 1, Code: hns.CodeAccessDenied}, "0x80070005"},
		{"an address is taken by nobody", service.Fault{Op: "Create.endpoint", Times: 1, Code: hns.CodeObjectExists}, ""},
		{"an address is taken by nobody for long", service.Fault{Op: "Create.endpoint", Times: 2, Code: hns.CodeObjectExists}, "0x80071392"},
		{"made and no answer in time", service.Fault{Op: "Create.endpoint", Times: 1, Code: hns.CodeTimeout, After: true}, ""},
		{"the namespace cannot be attached", service.Fault{Op: "Modify.namespace", Times: 1, Code: 0x803B002E}, "0x803b002e"},
		{"attached and an error is given", service.Fault{Op: "Modify.namespace", Times: 1, Code: 0x803B002E, After: true}, "0x803b002e"},
		{"an endpoint cannot be deleted at once", service.Fault{Op: "Delete.endpoint", Times: 1, Code: hns.CodeUnspecified}, ""},
		{"an endpoint is deleted and an error is given", service.Fault{Op: "Delete.endpoint", Times: 1, Code: hns.CodeUnspecified, After: true}, ""},
		{"an endpoint is not in its namespace", service.Fault{Op: "Modify.namespace", Skip: 1, Times: 1, Code: hns.CodeNotFound}, ""},
	} {
		t.Run(c.name, func(t *testing.T) { attachUnder(t, m, c.fault, c.fails) })
	}
}

// TestHungWrite lets a write of ACLs hang until newer policies came. Other pods
// come meanwhile; when the write lands, what is in force is the newest policy.
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
	text, err := json.Marshal(service.Fault{Op: "Modify.endpoint", Times: 1, Hang: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Post("/fault", string(text)); err != nil {
		t.Fatal(err)
	}
	dir.write(t, "policy", policy("web", "10.1.0.0/16", 81)) // its write hangs
	time.Sleep(200 * time.Millisecond)
	began := time.Now()
	_, err = m.Add(ctx, db)
	counted(t, "ADD while a write hangs", err)
	if took := time.Since(began); took > hungTimeout+5*time.Second {
		t.Errorf("another pod waited %s for a deadline of %s", took, hungTimeout)
	}
	decided(t, m, db, flow{"In", "10.1.2.3", tcp, 80, allow})
	dir.write(t, "policy", policy("web", "10.1.0.0/16", 82))
	time.Sleep(time.Second)
	decided(t, m, web, flow{"In", "10.1.2.3", tcp, 80, allow}, flow{"In", "10.1.2.3", tcp, 82, block}) // nothing overtakes it
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

// hungTimeout is how long the agent waits for a call.
const hungTimeout = 2 * time.Second

func attachUnder(t *testing.T, m *Machine, f service.Fault, fails string) {
	ctx := context.Background()
	text, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	web := pod(t, m, "web")
	if _, err := m.Post("/fault", string(text)); err != nil {
		t.Fatal(err)
	}
	_, err = m.Add(ctx, web)
	if fails == "" {
		counted(t, "ADD", err)
	} else {
		refused(t, "ADD", err, fails)
		left(t, m, "a refused ADD")
		_, err = m.Add(ctx, web)
		counted(t, "ADD again", err)
	}
	decided(t, m, web, flow{"In", "10.1.2.3", tcp, 80, allow}, flow{"In", "10.2.2.3", tcp, 80, block}, flow{"Out", "10.2.2.3", tcp, 80, allow})
	counted(t, "DEL", m.Delete(ctx, web))
	left(t, m, "DEL")
	if _, err := m.Post("/fault/clear", ""); err != nil {
		t.Fatal(err)
	}
	shared.mu.Lock()
	shared.faults++
	shared.mu.Unlock()
}

// left waits until nothing of a pod is left.
func left(t *testing.T, m *Machine, after string) {
	t.Helper()
	var dump string
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
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

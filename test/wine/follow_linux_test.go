// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"bytes"
	"context"
	"encoding/json"
	"net/url"
	"os"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/test/hnsemu/fault"
	"github.com/isthmus-net/isthmus/windows"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// TestFollowsSummaries runs the agent in mode policy on an HNS that needs 4 s to list endpoints, so that it does so each 40 s only. It sees in
// a call of schema 1 that the ACLs of a pod are gone, and writes them. While nothing changes it lists nothing.
func TestFollowsSummaries(t *testing.T) {
	const listing = 4 * time.Second
	m := machine(t)
	logs(t, m)
	if err := m.StartEmulator(hns.Server2022, "--management-ip", "192.0.2.13", "--management-mac", "00-15-5D-00-00-01"); err != nil {
		t.Fatal(err)
	}
	dir := newManifests(t, "web")
	if err := m.StartAgent("win1", string(dir)); err != nil { // makes the network
		t.Fatal(err)
	}
	if err := m.KillAgent(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(m.File("prefix/drive_c/ProgramData/isthmus")); err != nil {
		t.Fatal(err)
	}
	if err := m.StartAgent("win1", string(dir), "--mode=policy", "--audit-interval=1h"); err != nil {
		t.Fatal(err)
	}
	r := reference{"win-bridge", windows.L2Bridge, 2}
	dir.write(t, "policy", policy("web", "10.1.0.0/16", 80))
	web := foreigner(t, m, r.chain(t, m, true), "web")
	before, _ := rulesOf(t, m, "sandbox-web_isthmus")
	slow, err := json.Marshal(fault.Fault{Op: "Enumerate.endpoint", Delay: listing})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Post("/fault", string(slow)); err != nil {
		t.Fatal(err)
	}
	listed(t, m) // the next listing without a cause is ten times its duration away
	if _, err := m.Control("/acl", url.Values{"address": {web.address.String()}, "empty": {"true"}}); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	await(t, "the ACLs to be back", func() bool {
		acls, _ := rulesOf(t, m, "sandbox-web_isthmus")
		return len(acls) == len(before) && len(acls) > 0
	})
	if took := time.Since(began); took > 7*listing {
		t.Errorf("the ACLs are back after %s", took)
	}
	summaries, listings := listed(t, m)
	time.Sleep(2 * listing)
	if more, again := calls(t, m); more == summaries || again > listings {
		t.Errorf("it made %d summaries and %d listings while nothing changed", more-summaries, again-listings)
	}
	if _, err := m.Post("/fault/clear", ""); err != nil {
		t.Fatal(err)
	}
	counted(t, "DEL", m.CNI().DelNetworkList(context.Background(), r.chain(t, m, true), web.runtime()))
}

// listed waits until the agent has listed all endpoints and then reads summaries only. Returns the number of both calls.
func listed(t *testing.T, m *Machine) (summaries, listings int) {
	t.Helper()
	summaries, listings = calls(t, m)
	await(t, "the agent to have listed all, and to read summaries only", func() bool {
		now, again := calls(t, m)
		if again > listings {
			summaries, listings = now, again
		}
		return listings > 0 && now > summaries+2
	})
	return calls(t, m)
}

// calls counts the calls of HNS that list all endpoints in schema 1, and those that begin a listing of schema 2.
func calls(t *testing.T, m *Machine) (schema1, schema2 int) {
	t.Helper()
	text, err := os.ReadFile(m.File("calls.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Count(text, []byte(`"/endpoints/"`)), bytes.Count(text, []byte(`"Op":"Enumerate.endpoint"`))
}

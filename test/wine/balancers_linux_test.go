// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"context"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/windows/hns"
)

// TestWithoutDSR checks that the agent finds a kube-proxy that runs without direct server return, by the load balancers
// in HNS, and one that runs with it.
func TestWithoutDSR(t *testing.T) {
	m := machine(t)
	logs(t, m)
	for flag, want := range map[string]string{"false": "kube-proxy balances Services without direct server return (1 load balancers)",
		"true": "1 of 1 of kube-proxy with direct server return"} {
		if err := m.StartEmulator(hns.Server2022); err != nil {
			t.Fatal(err)
		}
		if _, err := m.Control("/balancer", url.Values{"vip": {"10.96.0.1"}, "dsr": {flag}}); err != nil {
			t.Fatal(err)
		}
		if err := m.StartAgent("win1", string(newManifests(t))); err != nil {
			t.Fatal(err)
		}
		var out string
		for deadline := time.Now().Add(patience); time.Now().Before(deadline) && !strings.Contains(out, want); time.Sleep(200 * time.Millisecond) {
			out, _ = m.Output(m.Command(context.Background(), filepath.Join(m.bin, "isthmusctl.exe"), "status", "-o", "wide")) // problems make it fail
		}
		if !strings.Contains(out, want) || flag == "true" && strings.Contains(out, "without direct server return") {
			t.Errorf("DSR %s: no %q in\n%s", flag, want, out)
		}
		if err := m.KillAgent(); err != nil {
			t.Fatal(err)
		}
		if err := m.StopEmulator(); err != nil {
			t.Fatal(err)
		}
		if err := m.Forget(); err != nil {
			t.Fatal(err)
		}
	}
}

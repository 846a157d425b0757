// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/windows/hns"
)

// TestSecondAgentOnTheSameHNS starts an agent with a state directory, socket and HNS network of its own beside another one. It ends,
// as HNS and the routes of the host are for one agent. uninstall ends, too. Both work once the first agent has stopped.
func TestSecondAgentOnTheSameHNS(t *testing.T) {
	m := machine(t)
	if err := m.StartEmulator(hns.Server2022); err != nil {
		t.Fatal(err)
	}
	if err := m.StartAgent("win1", string(newManifests(t))); err != nil {
		t.Fatal(err)
	}
	manifests := string(newManifests(t))
	state := filepath.Join(t.TempDir(), "other")
	own := []string{"--state-dir", Path(state), "--socket", `\\.\pipe\isthmus-other`, "--hns-network", "other"}
	serve := append([]string{"--node-name", "win1", "--manifests", Path(manifests), "--http-address", "127.0.0.1:9471"}, own...)
	const want = administrators + "isthmus-hns: another process has opened the pipe"
	for _, args := range [][]string{serve, append([]string{"uninstall"}, own...)} {
		ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
		out, err := m.Output(m.Command(ctx, filepath.Join(m.bin, "isthmus-agent.exe"), args...))
		cancel()
		if err == nil || !strings.Contains(out, want) {
			t.Errorf("%v: %v, want %q\n%s", args, err, want, out)
		}
	}
	if _, err := m.Get("/readyz"); err != nil {
		t.Errorf("the first agent: %v", err)
	}
	if err := m.StopAgent(); err != nil {
		t.Fatal(err)
	}
	if err := m.StartAgent("win1", manifests, own...); err != nil {
		t.Fatal(err)
	}
	if err := m.StopAgent(); err != nil {
		t.Error(err)
	}
	if out, err := m.Output(m.Command(t.Context(), filepath.Join(m.bin, "isthmus-agent.exe"), append([]string{"uninstall"}, own...)...)); err != nil {
		t.Errorf("uninstall: %v\n%s", err, out)
	}
}

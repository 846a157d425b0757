// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/windows/hns"
)

// TestService lets the service manager start and stop the agent.
func TestService(t *testing.T) {
	m := machine(t)
	logs(t, m)
	if err := m.StartEmulator(hns.Server2022); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	sc := func(args ...string) {
		t.Helper()
		if out, err := m.Output(m.Command(ctx, "sc", args...)); err != nil {
			t.Fatalf("sc %s: %v\n%s", args[0], err, out)
		}
	}
	exe := Path(filepath.Join(m.bin, "isthmus-agent.exe"))
	sc("create", "isthmus-agent", "binPath=", exe+" --windows-service --node-name win1 --http-address "+agentHTTP+" --manifests "+Path(string(newManifests(t, "web"))))
	defer sc("delete", "isthmus-agent")
	// Wine's service manager finds a new service only after a moment.
	await(t, "the service to be known", func() bool {
		_, err := m.Output(m.Command(ctx, "sc", "start", "isthmus-agent"))
		return err == nil
	})
	await(t, "the service to become ready", func() bool { _, err := m.Get("/readyz"); return err == nil })
	web := pod(t, m, "web")
	_, err := m.Add(ctx, web)
	counted(t, "ADD", err)
	counted(t, "DEL", m.Delete(ctx, web))
	sc("stop", "isthmus-agent")
	await(t, "the service to end", func() bool { _, err := m.Get("/healthz"); return err != nil })
	refused(t, "STATUS of an agent that has stopped", m.Status(ctx), "agent")
}

func await(t *testing.T, what string, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience / 3); !so(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

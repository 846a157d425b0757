// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
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
	started(ctx, t, m, "isthmus-agent", exe+" --windows-service --node-name win1 --http-address "+agentHTTP+" --manifests "+Path(string(newManifests(t, "web"))))
	defer sc("delete", "isthmus-agent")
	await(t, "the service to become ready", func() bool { _, err := m.Get("/readyz"); return err == nil })
	web := pod(t, m, "web")
	_, err := m.Add(ctx, web)
	counted(t, "ADD", err)
	counted(t, "DEL", m.Delete(ctx, web))
	sc("stop", "isthmus-agent")
	await(t, "the service to end", func() bool { _, err := m.Get("/healthz"); return err != nil })
	refused(t, "STATUS of an agent that has stopped", m.Status(ctx), "agent")
}

// started creates a service and starts it. Wine's service manager finds a new service only after a moment.
func started(ctx context.Context, t *testing.T, m *Machine, name, binPath string) {
	t.Helper()
	if out, err := m.Output(m.Command(ctx, "sc", "create", name, "binPath=", binPath)); err != nil {
		t.Fatalf("sc create: %v\n%s", err, out)
	}
	await(t, "the service to be known", func() bool {
		_, err := m.Output(m.Command(ctx, "sc", "start", name))
		return err == nil
	})
}

func await(t *testing.T, what string, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience / 3); !so(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// TestServiceFails: a service that ends by an error does not report that it has stopped. The service manager of Windows takes it for
// failed, and starts it again, only then, unless its configuration says otherwise. That of Wine goes on showing it as running.
func TestServiceFails(t *testing.T) {
	m := machine(t)
	logs(t, m)
	if err := m.StartEmulator(hns.Server2022); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	exe := Path(filepath.Join(m.bin, "isthmus-agent.exe"))
	binPath := `"` + exe + `" --windows-service --node-name fails --state-dir C:\ --manifests ` + Path(string(newManifests(t, "web")))
	started(ctx, t, m, "isthmus-fails", binPath)
	await(t, "its process to end", func() bool { return !running(t, "--node-name fails") })
	state, err := m.Output(m.Command(ctx, "sc", "query", "isthmus-fails"))
	if err != nil || !strings.Contains(state, "isthmus-fails") || strings.Contains(state, "1066") { // ERROR_SERVICE_SPECIFIC_ERROR
		t.Errorf("the service has reported its end: %v\n%s", err, state)
	}
}

// running reports whether a process has these arguments.
func running(t *testing.T, arguments string) bool {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil || len(all) == 0 {
		t.Fatalf("list processes: %d, %v", len(all), err)
	}
	return slices.ContainsFunc(all, func(path string) bool {
		text, _ := os.ReadFile(path) // it may have ended
		return strings.Contains(strings.ReplaceAll(string(text), "\x00", " "), arguments)
	})
}

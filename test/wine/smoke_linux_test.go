// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/windows/hns"
)

// TestSmokeProgram runs isthmus-smoke.exe, which a workflow runs on Windows, on each kind of network (make test: on one): every
// step must pass, and no object may be left.
func TestSmokeProgram(t *testing.T) {
	m := machine(t)
	for mode, want := range map[string]string{
		"l2bridge": "steps=19 failed=0 adds=26 deletes=26 calls=288 ",
		"overlay":  "steps=19 failed=0 adds=26 deletes=26 calls=288 ",
		"nat":      "steps=10 failed=0 adds=0 deletes=0 calls=288 ",
	} {
		t.Run(mode, func(t *testing.T) {
			if mode != "l2bridge" && os.Getenv("ISTHMUS_SMOKE") != "all" {
				t.Skip("takes a minute of processor time: make test-windows runs it")
			}
			smoke(t, m, mode, want)
		})
	}
	if code := exitCode(m, "isthmus-smoke.exe", "--mode", "transparent"); code != 2 {
		t.Errorf("exit code %d for a wrong flag, want 2", code)
	}
}

// smoke runs isthmus-smoke.exe on one kind of network.
func smoke(t *testing.T, m *Machine, mode, want string) {
	logs(t, m)
	if err := m.StartEmulator(hns.Server2022); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(m.StopEmulator(), m.Forget()); err != nil {
			t.Error(err)
		}
	}()
	before, err := m.Control("/dump", nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 15*patience)
	defer cancel()
	out := t.TempDir()
	text, err := runSmoke(ctx, t, m, out, mode)
	if err != nil || !strings.Contains(text, "\nsmoke: windows=10.0.") || !strings.Contains(text, " hns=13.3 mode="+mode+" "+want) || !strings.Contains(text, " conformance=0 left=0") {
		agent, _ := os.ReadFile(filepath.Join(out, "agent.log"))
		t.Fatalf("isthmus-smoke.exe: %v\n%s\n%s", err, text, agent)
	}
	t.Logf("%s", text)
	var report struct {
		Steps     []struct{ Name, Error string }
		Latencies []struct{ Concurrency, Pods int }
		Calls     []struct {
			Name              string
			Concurrency, Pods int
		}
	}
	js, err := os.ReadFile(filepath.Join(out, "smoke.json"))
	if err == nil {
		err = json.Unmarshal(js, &report)
	}
	if err != nil || len(report.Calls) != 12 || report.Calls[11].Concurrency != 8 || report.Calls[11].Pods != 24 {
		t.Errorf("smoke.json: %v\n%s", err, js)
	}
	files := []string{"report.json", "report.txt"}
	if mode != "nat" {
		files = append(files, "status.txt", "agent.log")
		if len(report.Latencies) != 3 || report.Latencies[2].Pods != 8 {
			t.Errorf("smoke.json:\n%s", js)
		}
	}
	for _, name := range files {
		if content, err := os.ReadFile(filepath.Join(out, name)); err != nil || len(content) == 0 {
			t.Errorf("%s: %d bytes, %v", name, len(content), err)
		}
	}
	// The table of answers takes no report of Wine for one of Windows.
	if text, err := m.Output(m.Command(ctx, filepath.Join(m.bin, "isthmus-conformance.exe"), "--table", Path(out))); err == nil || !strings.Contains(text, `(Windows "Wine", `) {
		t.Errorf("--table: %v\n%s", err, text)
	}
	if after, err := m.Control("/dump", nil); err != nil || after != before {
		t.Errorf("left behind: %v\n%s\nwas\n%s", err, after, before)
	}
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if !t.Failed() {
		shared.smokes++
	}
}

// runSmoke runs isthmus-smoke.exe and returns what it prints. It runs it again if Wine did not start a program that it calls, as
// launcher does.
func runSmoke(ctx context.Context, t *testing.T, m *Machine, out, mode string) (string, error) {
	t.Helper()
	for again := 0; ; again++ {
		text, err := m.Output(m.Command(ctx, filepath.Join(m.bin, "isthmus-smoke.exe"), "--bin", Path(m.bin), "--out", Path(out), "--mode", mode))
		if again == 2 || !strings.Contains(text, "fork/exec ") {
			return text, err
		}
		t.Logf("run again: %v\n%s", err, text)
	}
}

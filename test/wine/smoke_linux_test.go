// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/windows/hns"
)

// TestSmokeProgram runs isthmus-smoke.exe, which a workflow runs on Windows: every step must pass, and no object
// may be left.
func TestSmokeProgram(t *testing.T) {
	m := machine(t)
	logs(t, m)
	if err := m.StartEmulator(hns.Server2022); err != nil {
		t.Fatal(err)
	}
	before, err := m.Control("/dump", nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 6*patience)
	defer cancel()
	out := t.TempDir()
	text, err := m.Output(m.Command(ctx, filepath.Join(m.bin, "isthmus-smoke.exe"), "--bin", Path(m.bin), "--out", Path(out)))
	if err != nil || !strings.Contains(text, "\nsmoke: windows=10.0.") || !strings.Contains(text, " hns=13.3 mode=l2bridge steps=17 failed=0 adds=26 deletes=26 ") || !strings.Contains(text, " conformance=0 left=0") {
		agent, _ := os.ReadFile(filepath.Join(out, "agent.log"))
		t.Fatalf("isthmus-smoke.exe: %v\n%s\n%s", err, text, agent)
	}
	t.Logf("%s", text)
	var report struct {
		Steps     []struct{ Name, Error string }
		Latencies []struct{ Concurrency, Pods int }
	}
	js, err := os.ReadFile(filepath.Join(out, "smoke.json"))
	if err == nil {
		err = json.Unmarshal(js, &report)
	}
	if err != nil || len(report.Steps) != 17 || len(report.Latencies) != 3 || report.Latencies[2].Pods != 8 {
		t.Errorf("smoke.json: %v\n%s", err, js)
	}
	for _, name := range []string{"report.json", "report.txt", "status.txt", "agent.log"} {
		if content, err := os.ReadFile(filepath.Join(out, name)); err != nil || len(content) == 0 {
			t.Errorf("%s: %d bytes, %v", name, len(content), err)
		}
	}
	if after, err := m.Control("/dump", nil); err != nil || after != before {
		t.Errorf("left behind: %v\n%s\nwas\n%s", err, after, before)
	}
	if code := exitCode(m, "isthmus-smoke.exe", "--mode", "nat"); code != 2 {
		t.Errorf("exit code %d for a wrong flag, want 2", code)
	}
	shared.mu.Lock()
	defer shared.mu.Unlock()
	shared.probes++
}

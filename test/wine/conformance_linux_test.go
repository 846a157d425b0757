// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/windows/hns"
)

// TestConformanceProgram runs isthmus-conformance.exe on the network that the agent has made: it must finish,
// confirm every assumption, and leave no objects. Wine cannot enter compartments, so it runs no checks that need
// packets.
func TestConformanceProgram(t *testing.T) {
	m := machine(t)
	logs(t, m)
	if err := m.StartEmulator(hns.Server2022); err != nil {
		t.Fatal(err)
	}
	if err := m.StartAgent("win1", string(newManifests(t))); err != nil {
		t.Fatal(err)
	}
	if err := m.StopAgent(); err != nil {
		t.Fatal(err)
	}
	before, err := m.Control("/dump", nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	out := t.TempDir()
	began := time.Now()
	text, err := m.Output(m.Command(ctx, filepath.Join(m.bin, "isthmus-conformance.exe"), "--address", "10.244.3.200", "--out", Path(out)))
	if err != nil || !strings.Contains(text, " differ=0 refused=0 ") {
		t.Fatalf("isthmus-conformance.exe: %v\n%s", err, text)
	}
	t.Logf("%s\n%s", time.Since(began), text)
	js, err := os.ReadFile(filepath.Join(out, "report.json"))
	if err != nil {
		t.Fatal(err)
	}
	var report struct {
		HNS    string
		Corpus struct{ Cases, Verdicts int }
	}
	if err := json.Unmarshal(js, &report); err != nil || report.HNS != "13.3" || report.Corpus.Cases == 0 || report.Corpus.Verdicts == 0 {
		t.Errorf("report: %+v, %v", report, err)
	}
	if after, err := m.Control("/dump", nil); err != nil || after != before {
		t.Errorf("left behind: %v\n%s\nwas\n%s", err, after, before)
	}
	if code := exitCode(m, "isthmus-conformance.exe", "--address", "x"); code != 2 {
		t.Errorf("exit code %d for a wrong flag, want 2", code)
	}
	shared.mu.Lock()
	defer shared.mu.Unlock()
	shared.executables["isthmus-conformance"] = !t.Failed()
}

// exitCode runs an executable on the machine.
func exitCode(m *Machine, exe string, args ...string) int {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := m.Command(ctx, filepath.Join(m.bin, exe), args...)
	_, _ = m.Output(cmd) // the exit code has the result
	if cmd.ProcessState == nil {
		return -1
	}
	return cmd.ProcessState.ExitCode()
}

// TestCounterUnit: isthmus-conformance.exe finds what MatchedPackets of vfpctrl.exe counts, by packets from the host to
// a pod, on an emulator that counts either.
func TestCounterUnit(t *testing.T) {
	m := machine(t)
	m.installVFPControl(t)
	for unit, flags := range map[string][]string{"packets": nil, "flows": {"--count-flows"}} {
		t.Run(unit, func(t *testing.T) {
			fresh(t, m)
			logs(t, m)
			if err := m.StartEmulator(hns.Server2022, flags...); err != nil {
				t.Fatal(err)
			}
			dir := newManifests(t, "web", "client")
			if err := m.StartAgent("win1", string(dir)); err != nil {
				t.Fatal(err)
			}
			outside(t, m)
			web, client := newInside(t, m, "web"), newInside(t, m, "client")
			if err := m.StopAgent(); err != nil {
				t.Fatal(err)
			}
			before, err := m.Control("/dump", nil)
			if err != nil {
				t.Fatal(err)
			}
			answers := m.askConformance(t, "--address", "10.244.3.200", "--pods", web.NetNS+","+client.NetNS, "--corpus=false")
			if a := answers["ad"]; a.Answer != unit || a.Wrong || !strings.Contains(a.Detail, "Name of the rule is the Id of the ACL") {
				t.Errorf("question ad: %+v", a)
			}
			if after, err := m.Control("/dump", nil); err != nil || after != before {
				t.Errorf("left behind: %v\n%s\nwas\n%s", err, after, before)
			}
		})
	}
}

// conformanceAnswer is an answer of report.json.
type conformanceAnswer struct {
	ID, Answer, Detail string
	Wrong              bool
}

// askConformance runs isthmus-conformance.exe and returns its answers.
func (m *Machine) askConformance(t *testing.T, args ...string) map[string]conformanceAnswer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	out := t.TempDir()
	began := time.Now()
	text, err := m.Output(m.Command(ctx, filepath.Join(m.bin, "isthmus-conformance.exe"), append(args, "--out", Path(out))...))
	if err != nil {
		t.Fatalf("isthmus-conformance.exe: %v\n%s", err, text)
	}
	t.Logf("%s", time.Since(began))
	js, err := os.ReadFile(filepath.Join(out, "report.json"))
	if err != nil {
		t.Fatal(err)
	}
	var report struct{ Answers []conformanceAnswer }
	if err := json.Unmarshal(js, &report); err != nil {
		t.Fatal(err)
	}
	answers := make(map[string]conformanceAnswer)
	for _, a := range report.Answers {
		answers[a.ID] = a
	}
	return answers
}

// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/windows/hns"
)

// hcnTests is the number of tests that hcsshim v0.15.0 has for the API of HNS.
const hcnTests = 78

// TestHCN runs hcsshim's own tests, which are written for a real HNS, against the emulator.
func TestHCN(t *testing.T) {
	m := machine(t)
	logs(t, m)
	if err := m.StartEmulator(hns.Server2025); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	out, err := m.Output(m.Command(ctx, filepath.Join(m.bin, "hcn.test.exe"), "-test.v"))
	passed := strings.Count(out, "\n--- PASS: ")
	shared.mu.Lock()
	shared.hcn, shared.hcnTotal = passed, hcnTests
	shared.mu.Unlock()
	if err != nil || passed != hcnTests {
		t.Errorf("%d of %d tests pass: %v", passed, hcnTests, err)
		for line := range strings.Lines(out) {
			if strings.Contains(line, "--- FAIL") || strings.Contains(line, "--- SKIP") || strings.Contains(line, "_test.go:") {
				t.Log(strings.TrimSpace(line))
			}
		}
	}
	// Wine closes the connection of a process a moment after its parent sees it end.
	deadline := time.Now().Add(10 * time.Second)
	for {
		open, err := m.Control("/handles", nil)
		if err == nil && open == "0" {
			return
		}
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("%s handles are open after their process has ended: %v", open, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A migration that is not complete has renamed interfaces of running pods, whose records still name the other
// network. A complete one does not stop uninstall.
func TestUninstallDuringMigration(t *testing.T) {
	for name, c := range map[string]struct {
		journal string
		force   bool
		status  int
	}{
		"killed":      {`{"version":1,"done":1,"plan":{"network":{"confDir":"DIR"},"steps":[{"kind":"gateway"},{"kind":"gateway"}]}}`, false, 1},
		"reversing":   {`{"version":1,"back":true,"done":2,"plan":{"network":{"confDir":"DIR"},"steps":[{"kind":"gateway"},{"kind":"gateway"}]}}`, false, 1},
		"not started": {`{"version":1,"plan":{"network":{"confDir":"DIR"},"steps":[{"kind":"gateway"}]}}`, false, 1},
		"damaged":     {`{`, false, 1},
		"by force":    {`{"version":1,"plan":{"network":{"confDir":"DIR"},"steps":[{"kind":"gateway"}]}}`, true, 0},
		"complete":    {`{"version":1,"ran":true,"done":1,"plan":{"network":{"confDir":"DIR"},"steps":[{"kind":"gateway"}]}}`, false, 0},
	} {
		m := newMachine(t, 1)
		state := filepath.Join(m.dir, "state")
		file := filepath.Join(state, "migration.json")
		journal := strings.ReplaceAll(c.journal, "DIR", filepath.ToSlash(m.dir))
		if err := errors.Join(os.MkdirAll(state, 0o700), os.WriteFile(file, []byte(journal), 0o600)); err != nil {
			t.Fatal(err)
		}
		var args []string
		if c.force {
			args = []string{"--force"}
		}
		removed := 0
		status, text := m.uninstallFrom(&removed, args...)
		_, err := os.Stat(file)
		if status != c.status || removed != 1-c.status || (err == nil) != (c.status == 1) {
			t.Errorf("%s: exit status %d, removed %d, journal %v\n%s", name, status, removed, err, text)
		}
		if started := refuseMigration(&options{mode: modeFull, stateDir: state}); c.status == 1 && (started == nil || !strings.Contains(text, started.Error())) {
			t.Errorf("%s: the agent says %v, uninstall %s", name, started, text)
		}
		if c.status == 1 && !strings.Contains(text, file) || name == "killed" && !strings.Contains(text, "isthmusctl migrate rollback") {
			t.Errorf("%s: %s", name, text)
		}
	}
}

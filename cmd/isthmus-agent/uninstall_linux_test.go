// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/link"
	"github.com/isthmus-net/isthmus/test/netns"
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

// With another --state-dir than the agent's no record says that pods are attached. Their interfaces do, and only those of the
// data path: uninstall refuses, names one and the flag, and removes nothing.
func TestUninstallWithAnotherStateDir(t *testing.T) {
	m := newMachine(t, 1)
	ns, err := netns.New(filepath.Join(m.dir, "ns"))
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	id := model.MakeEndpointID("sandbox", "eth0")
	name := link.HostName(id)
	uninstall := func(args ...string) (status, removed int, text string) {
		var out, errs bytes.Buffer
		e := env{stdout: &out, stderr: &errs, backend: func(*options, func(string), *slog.Logger) opener {
			return opener{attached: attached, remove: func(context.Context) error { removed++; return nil }}
		}}
		args = append([]string{"uninstall", "--socket", m.socket(), "--state-dir", filepath.Join(m.dir, "another")}, args...)
		err = ns.Do(func() error { status = e.run(t.Context(), args); return nil })
		return status, removed, errs.String()
	}
	add := func(name, alias string) {
		t.Helper()
		err := ns.Do(func() error {
			pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "peer-" + name[len(name)-4:]}
			if err := netlink.LinkAdd(pair); err != nil {
				return err
			}
			return netlink.LinkSetAlias(pair, alias)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	add("veth0other", "pod of another network")
	if status, removed, text := uninstall(); status != 0 || removed != 1 || err != nil {
		t.Errorf("without pods: exit status %d, removed %d, %v\n%s", status, removed, err, text)
	}
	add(name, link.Alias(id))
	if status, removed, text := uninstall(); status != 1 || removed != 0 || !strings.Contains(text, name) || !strings.Contains(text, "give --state-dir as the agent has it") {
		t.Errorf("exit status %d, removed %d\n%s", status, removed, text)
	}
	if status, removed, text := uninstall("--force"); status != 0 || removed != 1 {
		t.Errorf("by force: exit status %d, removed %d\n%s", status, removed, text)
	}
}

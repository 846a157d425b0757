// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/agent/socket"
)

// uninstallFrom runs uninstall on a machine and returns the exit status and the output. removed
// counts removals of the data path.
func (m *machine) uninstallFrom(removed *int, args ...string) (int, string) {
	m.t.Helper()
	var out, errs bytes.Buffer
	e := env{stdout: &out, stderr: &errs, backend: func(*options, func(string), *slog.Logger) opener {
		return opener{remove: func(context.Context) error { *removed++; return nil }}
	}}
	args = append([]string{"uninstall", "--socket", m.socket(), "--state-dir", filepath.Join(m.dir, "state")}, append(m.cniFlags(), args...)...)
	return e.run(m.t.Context(), args), errs.String()
}

// cniFlags returns flags with the machine's CNI directories and a plugin.
func (m *machine) cniFlags() []string {
	m.t.Helper()
	plugin := filepath.Join(m.dir, "isthmus-cni")
	if err := os.WriteFile(plugin, []byte("plugin"), 0o755); err != nil {
		m.t.Fatal(err)
	}
	return []string{"--cni-bin-dir", filepath.Join(m.dir, "bin"), "--cni-conf-dir", filepath.Join(m.dir, "net.d"), "--cni-plugin", plugin}
}

// cniFiles lists the files in them.
func (m *machine) cniFiles() []string {
	var names []string
	for _, d := range []string{"bin", "net.d"} {
		entries, _ := os.ReadDir(filepath.Join(m.dir, d)) // missing: none
		for _, e := range entries {
			names = append(names, e.Name())
		}
	}
	return names
}

// TestInstallAndUninstall runs an agent that installs the plugin, and uninstalls it when no pod
// needs it.
func TestInstallAndUninstall(t *testing.T) {
	m := newMachine(t, 1)
	// The quarantine of a released address has not ended yet.
	m.extraArgs = append(m.cniFlags(), "--quarantine", "1h")
	m.start(0)
	if _, err := m.add(0); err != nil {
		t.Fatalf("%v\n%s", err, m.log.String())
	}
	for deadline := time.Now().Add(time.Minute); !slices.Equal(m.cniFiles(), []string{"isthmus-cni", "05-isthmus.conflist"}); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("files are %v\n%s", m.cniFiles(), m.log.String())
		}
	}
	removed := 0
	refused := func(want string) {
		t.Helper()
		if status, text := m.uninstallFrom(&removed); status != 1 || !strings.Contains(text, want) || removed != 0 || len(m.cniFiles()) != 2 {
			t.Errorf("exit status %d, %q, want 1 with %q; removed %d, files %v", status, text, want, removed, m.cniFiles())
		}
	}
	refused("another agent listens there")
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	if len(m.cniFiles()) != 2 {
		t.Error("a stop has removed CNI files")
	}
	refused("1 pods are attached, the first is shop/web-0")
	m.start(0)
	if err := m.del(0); err != nil {
		t.Fatal(err)
	}
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		if status, text := m.uninstallFrom(&removed); status != 0 || removed != i+1 || len(m.cniFiles()) != 0 {
			t.Errorf("exit status %d, removed %d, files %v\n%s", status, removed, m.cniFiles(), text)
		}
		if _, err := os.Stat(filepath.Join(m.dir, "state")); !os.IsNotExist(err) {
			t.Errorf("records are left: %v", err)
		}
	}
}

func TestUninstallByForce(t *testing.T) {
	m := newMachine(t, 1)
	m.start(0)
	if _, err := m.add(0); err != nil {
		t.Fatalf("%v\n%s", err, m.log.String())
	}
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	// An agent that was killed leaves its sockets.
	for _, path := range []string{m.socket(), socket.Inspection(m.socket())} {
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		l.(*net.UnixListener).SetUnlinkOnClose(false)
		l.Close()
	}
	removed := 0
	if status, text := m.uninstallFrom(&removed, "--force"); status != 0 || removed != 1 {
		t.Errorf("exit status %d, removed %d\n%s", status, removed, text)
	}
	if left, err := filepath.Glob(m.socket() + "*"); err != nil || len(left) > 0 {
		t.Errorf("sockets %v are left, %v", left, err)
	}
}

// The file of the agent serves uninstall too: it leaves out the settings that only the agent has.
func TestUninstallReadsTheAgentsConfig(t *testing.T) {
	m := newMachine(t, 1)
	file := filepath.Join(m.dir, "agent.yaml")
	for text, want := range map[string]struct {
		status  int
		message string
	}{
		"quarantine: 1h\nlog-format: json\n": {0, `"msg":"Isthmus is removed from this node"`},
		"quarantin: 1h\n":                    {2, "line 1: quarantin: no such setting"},
		"force: true\nwait: false\n":         {0, "Isthmus is removed from this node"},
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		removed := 0
		if status, got := m.uninstallFrom(&removed, "--config", file); status != want.status || !strings.Contains(got, want.message) || removed != 1-want.status/2 {
			t.Errorf("%q: exit status %d, removed %d, want %d, %q\n%s", text, status, removed, want.status, want.message, got)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/isthmus-net/isthmus/windows/hns"
)

// administrators begins the names of pipes that Windows lets only administrators and the system make. Wine lets everyone.
const administrators = `\\.\pipe\ProtectedPrefix\Administrators\`

// TestNamesAreTaken starts the agent while an administrator has one of its names: it ends and says which. Then an ordinary user has what it can
// take on Windows, pipes without the protected prefix and global mutexes: the agent starts, and the plugin and isthmusctl find it.
func TestNamesAreTaken(t *testing.T) {
	m := machine(t)
	logs(t, m)
	if err := m.StartEmulator(hns.Server2022); err != nil {
		t.Fatal(err)
	}
	manifests := newManifests(t, "web")
	for _, name := range []string{administrators + "isthmus", administrators + "isthmus-hns"} {
		t.Run(name, func(t *testing.T) {
			hold(t, m, name)
			err := m.StartAgent("win1", string(manifests))
			if err == nil {
				t.Fatalf("the agent runs: %v", m.StopAgent())
			}
			if !strings.Contains(err.Error(), name+": another process has opened the pipe") {
				t.Errorf("%v", err)
			}
		})
	}
	hold(t, m, `\\.\pipe\isthmus`, `\\.\pipe\isthmus.inspect`, `\\.\pipe\isthmus.hubble`, `\\.\pipe\isthmus-hns`, `Global\isthmus-hns`)
	if err := m.StartAgent("win1", string(manifests)); err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	web := pod(t, m, "web")
	_, err := m.Add(ctx, web)
	counted(t, "ADD", err)
	counted(t, "DEL", m.Delete(ctx, web))
	if out, err := m.Output(m.Command(ctx, filepath.Join(m.bin, "isthmusctl.exe"), "status")); err != nil || !strings.Contains(out, "win1") {
		t.Errorf("isthmusctl status: %v\n%s", err, out)
	}
	if err := m.StopAgent(); err != nil {
		t.Error(err)
	}
}

// hold starts a process that has names, until the end of the test.
func hold(t *testing.T, m *Machine, names ...string) {
	t.Helper()
	log := m.File("holder.log")
	if err := os.RemoveAll(log); err != nil {
		t.Fatal(err)
	}
	cmd := m.Command(context.Background(), filepath.Join(m.bin, "holder.exe"), names...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	p, err := m.start(cmd, "holder.log")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := p.stop(syscall.Signal(0)); err != nil {
			t.Errorf("the holder of %s: %v", names, err)
		}
	})
	if err := m.wait(log, p, func() bool { text, _ := os.ReadFile(log); return strings.Contains(string(text), "held") }); err != nil {
		t.Fatal(err)
	}
}

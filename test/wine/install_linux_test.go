// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/cni/install"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// TestPluginDirectoriesOfOthers checks that status names a directory of plugins or configurations that others than administrators
// can change, or own, and no directory of the agent's own user. Wine keeps owners and access lists as owners and modes of files.
func TestPluginDirectoriesOfOthers(t *testing.T) {
	m := machine(t)
	logs(t, m)
	if err := m.StartEmulator(hns.Server2022); err != nil {
		t.Fatal(err)
	}
	bin, conf := filepath.Join(t.TempDir(), "bin"), filepath.Join(t.TempDir(), "conf")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(conf, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, want string
		change     func() error
	}{
		{"own", "", func() error { return nil }},
		{"written by all", Path(conf) + " can be changed by user or group S-1-1-0", func() error { return os.Chmod(conf, 0o777) }},
		{"of another user", Path(bin) + " can be changed by its owner", func() error { return os.Chown(bin, 1000, 1000) }},
	} {
		if err := c.change(); err != nil {
			t.Fatal(err)
		}
		if err := m.StartAgent("win1", string(newManifests(t)), "--cni-bin-dir", Path(bin), "--cni-conf-dir", Path(conf)); err != nil {
			t.Fatal(err)
		}
		var out string
		installed := func() bool { _, err := os.Stat(filepath.Join(conf, install.ConfName)); return err == nil }
		for deadline := time.Now().Add(patience); time.Now().Before(deadline) && !(installed() && out != "" && strings.Contains(out, c.want)); time.Sleep(200 * time.Millisecond) {
			out, _ = m.Output(m.Command(context.Background(), filepath.Join(m.bin, "isthmusctl.exe"), "status", "-o", "wide")) // problems make it fail
		}
		if !strings.Contains(out, c.want) || c.want == "" && strings.Contains(out, "can be changed by") {
			t.Errorf("%s: no %q in\n%s", c.name, c.want, out)
		}
		if err := m.StopAgent(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestConfigurationKeepsAccess checks that the configuration of another network, to which the agent adds its plugin, keeps its access list. Wine
// keeps it as the mode of the file. The one here is wider than that of new files, as Wine tells no narrower one from it.
func TestConfigurationKeepsAccess(t *testing.T) {
	m := machine(t)
	logs(t, m)
	if err := m.StartEmulator(hns.Server2022); err != nil {
		t.Fatal(err)
	}
	bin, conf := filepath.Join(t.TempDir(), "bin"), filepath.Join(t.TempDir(), "conf")
	for _, dir := range []string{bin, conf} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(conf, "10-other.conflist")
	if err := os.WriteFile(path, []byte(`{"cniVersion": "1.0.0", "name": "other", "plugins": [{"type": "win-bridge"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := m.StartAgent("win1", string(newManifests(t)), "--mode=policy", "--cni-bin-dir", Path(bin), "--cni-conf-dir", Path(conf)); err != nil {
		t.Fatal(err)
	}
	await(t, "the plugin to be in the configuration", func() bool {
		text, err := os.ReadFile(path)
		return err == nil && strings.Contains(string(text), "isthmus-cni")
	})
	if info, err := os.Stat(path); err != nil || info.Mode().Perm()&0o022 != 0o022 {
		t.Errorf("its access list is another one: %v, %v", info.Mode(), err)
	}
	if err := m.StopAgent(); err != nil {
		t.Error(err)
	}
}

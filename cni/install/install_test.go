// SPDX-License-Identifier: Apache-2.0

package install_test

import (
	"bytes"
	"context"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/isthmus-net/isthmus/cni"
	"github.com/isthmus-net/isthmus/cni/install"
)

// node is a plugin and the directories of the runtime.
func node(t *testing.T) install.Config {
	dir := t.TempDir()
	c := install.Config{Plugin: filepath.Join(dir, "image", "isthmus-cni"), BinDir: filepath.Join(dir, "opt", "cni", "bin"),
		ConfDir: filepath.Join(dir, "etc", "cni", "net.d"), Socket: "/run/isthmus/agent.sock"}
	if runtime.GOOS == "windows" {
		c.Socket = `\\.\pipe\isthmus`
	}
	put(t, c.Plugin, "version 1", 0o755)
	return c
}

func put(t *testing.T, path, content string, mode fs.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
}

// files lists everything below the directories of the runtime.
func files(t *testing.T, c install.Config) []string {
	t.Helper()
	var names []string
	for _, dir := range []string{c.BinDir, c.ConfDir} {
		entries, err := os.ReadDir(dir)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		for _, e := range entries {
			names = append(names, e.Name())
		}
	}
	return names
}

func TestInstallAndRemove(t *testing.T) {
	c := node(t)
	put(t, filepath.Join(c.BinDir, "loopback"), "of others", 0o755)
	put(t, filepath.Join(c.ConfDir, "10-other.conf"), "{}", 0o600)
	for _, want := range []bool{true, false} { // the second call must change nothing
		for name, write := range map[string]func() (bool, error){"plugin": c.WritePlugin, "configuration": c.WriteConf} {
			if wrote, err := write(); err != nil || wrote != want {
				t.Errorf("%s: wrote %v, %v, want %v", name, wrote, err, want)
			}
		}
	}
	if got, want := files(t, c), []string{"isthmus-cni", "loopback", "05-isthmus.conflist", "10-other.conf"}; !slices.Equal(got, want) {
		t.Errorf("files %v, want %v", got, want)
	}
	if runtime.GOOS != "windows" {
		for path, want := range map[string]fs.FileMode{filepath.Join(c.BinDir, "isthmus-cni"): 0o755, filepath.Join(c.ConfDir, install.ConfName): 0o644} {
			if info, err := os.Stat(path); err != nil || info.Mode() != want {
				t.Errorf("%s: mode %v, %v, want %v", path, info.Mode(), err, want)
			}
		}
	}
	for range 2 {
		if err := c.Remove(); err != nil {
			t.Error(err)
		}
	}
	if got, want := files(t, c), []string{"loopback", "10-other.conf"}; !slices.Equal(got, want) {
		t.Errorf("files after removal %v, want %v", got, want)
	}
}

// TestConfiguration reads the configuration as runtimes and as the plugin do.
func TestConfiguration(t *testing.T) {
	for _, plugin := range []string{"isthmus-cni", "isthmus-cni.exe"} {
		c := node(t)
		c.Plugin = filepath.Join(filepath.Dir(c.Plugin), plugin)
		if _, err := c.WriteConf(); err != nil {
			t.Fatal(err)
		}
		list, err := libcni.ConfListFromFile(filepath.Join(c.ConfDir, install.ConfName))
		if err != nil || list.Name != "isthmus" || len(list.Plugins) != 1 || list.Plugins[0].Network.Type != "isthmus-cni" {
			t.Fatalf("got %+v, %v", list, err)
		}
		conf, err := cni.ParseConf(list.Plugins[0].Bytes)
		if err != nil || conf.Socket != c.Socket {
			t.Errorf("got %+v, %v", conf, err)
		}
		if !slices.Contains(cni.Versions().SupportedVersions(), list.CNIVersion) {
			t.Errorf("version %s is not one of the plugin's", list.CNIVersion)
		}
	}
}

// TestWholeOrNothing replaces the plugin many times while other processes read it. On Windows a file that others have open
// cannot be replaced: the next attempt writes it, and readers may find no file in between.
func TestWholeOrNothing(t *testing.T) {
	c := node(t)
	versions := []string{strings.Repeat("a", 1<<16), strings.Repeat("b", 1<<17)}
	put(t, c.Plugin, versions[0], 0o755)
	if _, err := c.WritePlugin(); err != nil {
		t.Fatal(err)
	}
	var stop atomic.Bool
	var reads, bad atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !stop.Load() {
			b, err := os.ReadFile(filepath.Join(c.BinDir, "isthmus-cni"))
			if runtime.GOOS == "windows" {
				runtime.Gosched() // lets the writer have the file
				if err != nil {
					continue
				}
			}
			if err != nil || string(b) != versions[0] && string(b) != versions[1] {
				bad.Add(1)
			}
			reads.Add(1)
		}
	}()
	for i := range 50 {
		put(t, c.Plugin, versions[i%2], 0o755)
		for deadline := time.Now().Add(10 * time.Second); ; {
			_, err := c.WritePlugin()
			if err == nil {
				break
			}
			if runtime.GOOS != "windows" || time.Now().After(deadline) {
				t.Error(err)
				break
			}
		}
	}
	stop.Store(true)
	<-done
	if bad.Load() > 0 || reads.Load() == 0 {
		t.Errorf("%d of %d reads saw something else than one whole version", bad.Load(), reads.Load())
	}
}

// TestAfterInterruption starts with the remains of a killed agent, and with wrong files of an
// administrator.
func TestAfterInterruption(t *testing.T) {
	c := node(t)
	put(t, filepath.Join(c.BinDir, "isthmus-cni"), "version 0", 0o600)
	put(t, filepath.Join(c.BinDir, "isthmus-cni.part"), "vers", 0o400)
	put(t, filepath.Join(c.ConfDir, "05-isthmus.conflist.part"), "{", 0o400)
	if names, err := install.Confs(c.ConfDir); err != nil || len(names) != 0 {
		t.Errorf("a part counts as configuration: %v, %v", names, err)
	}
	for _, write := range []func() (bool, error){c.WritePlugin, c.WriteConf} {
		if wrote, err := write(); err != nil || !wrote {
			t.Errorf("wrote %v, %v", wrote, err)
		}
	}
	if got, want := files(t, c), []string{"isthmus-cni", "05-isthmus.conflist"}; !slices.Equal(got, want) {
		t.Errorf("files %v, want %v", got, want)
	}
}

func TestErrors(t *testing.T) {
	if err := (install.Config{Plugin: "x"}).Validate(); err == nil || strings.Count(err.Error(), "\n") != 3 {
		t.Errorf("got %v", err)
	}
	c := node(t)
	put(t, c.BinDir, "a file", 0o644)
	if _, err := c.WritePlugin(); err == nil || !strings.Contains(err.Error(), "create CNI directory") {
		t.Errorf("got %v", err)
	}
	c.Plugin += "-missing"
	if _, err := c.WritePlugin(); err == nil || !strings.Contains(err.Error(), "read CNI plugin") {
		t.Errorf("got %v", err)
	}
}

func TestKeeper(t *testing.T) {
	c := node(t)
	put(t, filepath.Join(c.ConfDir, "00-first.conflist"), "{}", 0o600)
	put(t, filepath.Join(c.ConfDir, "10-later.conflist"), "{}", 0o600)
	var log bytes.Buffer
	k, err := install.NewKeeper(c, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	var ready, asked atomic.Bool
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		ended <- k.Run(ctx, func() bool { asked.Store(true); return ready.Load() })
	}()
	wait(t, "question and plugin", func() bool { return asked.Load() && slices.Contains(files(t, c), "isthmus-cni") })
	if slices.Contains(files(t, c), install.ConfName) {
		t.Error("the configuration is there before the agent is ready")
	}
	ready.Store(true)
	wait(t, "configuration", func() bool { return slices.Contains(files(t, c), install.ConfName) })
	ready.Store(false)
	wait(t, "problem", func() bool { return len(k.Problems()) == 1 })
	if p := k.Problems()[0]; !strings.Contains(p, "remove 00-first.conflist") || strings.Contains(p, "10-later") {
		t.Errorf("problem %q", p)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if got, want := files(t, c), []string{"isthmus-cni", "00-first.conflist", "05-isthmus.conflist", "10-later.conflist"}; !slices.Equal(got, want) {
		t.Errorf("files after the end %v, want %v\n%s", got, want, log.String())
	}
}

func wait(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !f(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no %s", what)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package install_test

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/isthmus-net/isthmus/cni/install"
)

const theirList = `{
  "cniVersion": "0.3.1", "name": "cbr0", "zzz": [1, 2.50],
  "plugins": [
    {"type": "flannel", "delegate": {"isDefaultGateway": true}},
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
`

const theirConf = `{"cniVersion": "0.4.0", "name": "single", "type": "ptp", "ipam": {"type": "host-local"}}`

// chained makes a node whose runtime has configurations of other networks, by name.
func chained(t *testing.T, confs map[string]string) install.Config {
	t.Helper()
	c := node(t)
	c.Chained = true
	for name, text := range confs {
		put(t, filepath.Join(c.ConfDir, name), text, 0o600)
	}
	return c
}

func content(t *testing.T, c install.Config, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(c.ConfDir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// used returns the types of the plugins that a runtime runs for a pod: those of the first file that
// it can load. Runtimes treat a single configuration as a list with one plugin.
func used(t *testing.T, c install.Config) (types []string) {
	t.Helper()
	names, err := libcni.ConfFiles(c.ConfDir, []string{".conf", ".conflist", ".json"})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	for _, n := range names {
		var l *libcni.NetworkConfigList
		if filepath.Ext(n) == ".conflist" {
			l, err = libcni.ConfListFromFile(n)
		} else {
			var conf *libcni.NetworkConfig
			//lint:ignore SA1019 runtimes still call these for single configurations
			if conf, err = libcni.ConfFromFile(n); err == nil {
				//lint:ignore SA1019 as above
				l, err = libcni.ConfListFromConf(conf)
			}
		}
		if err != nil {
			continue
		}
		for _, p := range l.Plugins {
			types = append(types, p.Network.Type)
		}
		return types
	}
	return nil
}

func wantUsed(t *testing.T, c install.Config, want ...string) {
	t.Helper()
	if got := used(t, c); !slices.Equal(got, want) {
		t.Errorf("the runtime uses %v, want %v", got, want)
	}
}

// chain chains twice: the second call must change nothing.
func chain(t *testing.T, c install.Config, wantName string) {
	t.Helper()
	for _, want := range []bool{true, false} {
		if name, wrote, err := c.Chain(); err != nil || wrote != want || name != wantName {
			t.Errorf("chained %q, wrote %v, %v, want %q, %v", name, wrote, err, wantName, want)
		}
	}
}

func remove(t *testing.T, c install.Config) {
	t.Helper()
	for range 2 {
		if err := c.Remove(); err != nil {
			t.Error(err)
		}
	}
}

func TestChainList(t *testing.T) {
	c := chained(t, map[string]string{"10-flannel.conflist": theirList, "20-other.conf": theirConf, "README": "no configuration"})
	chain(t, c, "10-flannel.conflist")
	wantUsed(t, c, "flannel", "portmap", "isthmus-cni")
	path := filepath.Join(c.ConfDir, "10-flannel.conflist")
	if info, err := os.Stat(path); runtime.GOOS != "windows" && (err != nil || info.Mode() != 0o600) {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if err := os.WriteFile(path+".part", []byte("{"), 0o400); err != nil { // from a killed agent
		t.Fatal(err)
	}
	remove(t, c)
	if got := content(t, c, "10-flannel.conflist"); got != theirList {
		t.Errorf("after removal\n%s", got)
	}
	if info, err := os.Stat(path); runtime.GOOS != "windows" && (err != nil || info.Mode() != 0o600) {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if got, want := files(t, c), []string{"10-flannel.conflist", "20-other.conf", "README"}; !slices.Equal(got, want) {
		t.Errorf("files %v, want %v", got, want)
	}
}

// TestChainRewritten checks a file that the other network rewrites before removal. The new text
// stays, and the entry is removed.
func TestChainRewritten(t *testing.T) {
	c := chained(t, map[string]string{"10-flannel.conflist": theirList})
	chain(t, c, "10-flannel.conflist")
	newer := strings.Replace(theirList, "2.50", "3", 1)
	put(t, filepath.Join(c.ConfDir, "10-flannel.conflist"), newer, 0o600)
	wantUsed(t, c, "flannel", "portmap")
	chain(t, c, "10-flannel.conflist")
	wantUsed(t, c, "flannel", "portmap", "isthmus-cni")
	reformatted := strings.ReplaceAll(content(t, c, "10-flannel.conflist"), "\n", "\n\n")
	put(t, filepath.Join(c.ConfDir, "10-flannel.conflist"), reformatted, 0o600)
	remove(t, c)
	if got, want := content(t, c, "10-flannel.conflist"), strings.ReplaceAll(newer, "\n", "\n\n"); got != want {
		t.Errorf("after removal\n%s\nwant\n%s", got, want)
	}
}

// TestRemoveUpgraded checks a list of which the other network raised the version, beyond what can be chained, and
// kept the entry. Removal must not leave an entry without its plugin: no pod could start.
func TestRemoveUpgraded(t *testing.T) {
	c := chained(t, map[string]string{"10-flannel.conflist": theirList})
	chain(t, c, "10-flannel.conflist")
	newer := strings.NewReplacer("0.3.1", "1.2.0")
	put(t, filepath.Join(c.ConfDir, "10-flannel.conflist"), newer.Replace(content(t, c, "10-flannel.conflist")), 0o600)
	if _, _, err := c.Chain(); err == nil || !strings.Contains(err.Error(), `cniVersion "1.2.0"`) {
		t.Errorf("chained: %v", err)
	}
	remove(t, c)
	if got, want := content(t, c, "10-flannel.conflist"), newer.Replace(theirList); got != want {
		t.Errorf("after removal\n%s\nwant\n%s", got, want)
	}
}

func TestChainSingle(t *testing.T) {
	for _, ext := range []string{".conf", ".json"} {
		t.Run(ext, func(t *testing.T) {
			c := chained(t, map[string]string{"10-single" + ext: theirConf, "10-single.later.conflist": theirList})
			chain(t, c, "10-single-isthmus.conflist")
			wantUsed(t, c, "ptp", "isthmus-cni")
			// The list follows changes of the original.
			put(t, filepath.Join(c.ConfDir, "10-single"+ext), strings.Replace(theirConf, "ptp", "bridge", 1), 0o600)
			chain(t, c, "10-single-isthmus.conflist")
			wantUsed(t, c, "bridge", "isthmus-cni")
			if got := content(t, c, "10-single"+ext); got != strings.Replace(theirConf, "ptp", "bridge", 1) {
				t.Errorf("the original is %s", got)
			}
			// Without the original, the next network is used.
			if err := os.Remove(filepath.Join(c.ConfDir, "10-single"+ext)); err != nil {
				t.Fatal(err)
			}
			chain(t, c, "10-single.later.conflist")
			wantUsed(t, c, "flannel", "portmap", "isthmus-cni")
			if got, want := files(t, c), []string{"10-single.later.conflist"}; !slices.Equal(got, want) {
				t.Errorf("files %v, want %v", got, want)
			}
			put(t, filepath.Join(c.ConfDir, "10-single"+ext), theirConf, 0o600)
			chain(t, c, "10-single-isthmus.conflist")
			remove(t, c)
			if got, want := files(t, c), []string{"10-single" + ext, "10-single.later.conflist"}; !slices.Equal(got, want) {
				t.Errorf("files %v, want %v", got, want)
			}
			if content(t, c, "10-single"+ext) != theirConf || content(t, c, "10-single.later.conflist") != theirList {
				t.Error("the files of others changed")
			}
		})
	}
}

// TestChainNothing checks a node without a network to chain to. A list of ours whose original is
// gone is removed, so that no pod starts without policy.
func TestChainNothing(t *testing.T) {
	const loopback = `{"cniVersion": "1.0.0", "name": "lo", "type": "loopback"}`
	for name, confs := range map[string]map[string]string{"none": nil, "loopback": {"99-loopback.conf": loopback}} {
		c := chained(t, confs)
		if _, wrote, err := c.Chain(); wrote || err == nil || !strings.Contains(err.Error(), "configuration of another network is missing in "+c.ConfDir) {
			t.Errorf("%s: wrote %v, %v", name, wrote, err)
		}
		put(t, filepath.Join(c.ConfDir, "10-a.conf"), theirConf, 0o600)
		chain(t, c, "10-a-isthmus.conflist")
		if err := os.Remove(filepath.Join(c.ConfDir, "10-a.conf")); err != nil {
			t.Fatal(err)
		}
		if _, _, err := c.Chain(); err == nil {
			t.Errorf("%s: chained to a network that is gone", name)
		}
		if got := used(t, c); slices.Contains(got, "ptp") {
			t.Errorf("%s: the runtime uses %v", name, got)
		}
	}
}

// TestChainSkips checks that the file after a broken one is chained, and that the broken one is
// reported: containerd stops at it, and CRI-O uses the next.
func TestChainSkips(t *testing.T) {
	c := chained(t, map[string]string{"00-broken.conflist": `{"cniVersion"`, "05-list.conf": theirList, "07-old.conflist": strings.Replace(theirList, "0.3.1", "0.2.0", 1),
		"10-flannel.conflist": theirList})
	for range 2 {
		name, _, err := c.Chain()
		if err == nil || name != "10-flannel.conflist" {
			t.Fatalf("chained %q, %v", name, err)
		}
		for _, want := range []string{"00-broken.conflist in " + c.ConfDir + " cannot be chained: it is not valid JSON", "05-list.conf", "suffix .conflist only: rename it", `07-old.conflist`, `cniVersion "0.2.0"`} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("error %q does not contain %q", err, want)
			}
		}
	}
	remove(t, c)
	if content(t, c, "10-flannel.conflist") != theirList || content(t, c, "00-broken.conflist") != `{"cniVersion"` {
		t.Error("the files of others changed")
	}
}

// TestChainOnlyLoadable checks configurations that runtimes refuse to load. CRI-O then uses the next one, whose
// pods would have no policy.
func TestChainOnlyLoadable(t *testing.T) {
	list := func(members string) string {
		return `{"cniVersion": "1.0.0"` + members + `}`
	}
	for name, text := range map[string]string{
		"00-name.conflist":    list(`, "plugins": [{"type": "ptp"}]`),
		"00-type.conflist":    list(`, "name": "n", "plugins": [{"type": "ptp"}, {}]`),
		"00-ipam.conflist":    list(`, "name": "n", "plugins": [{"type": "ptp", "ipam": 7}]`),
		"00-check.conflist":   list(`, "name": "n", "disableCheck": 1, "plugins": [{"type": "ptp"}]`),
		"00-number.conflist":  list(`, "name": "n", "x": 1e400, "plugins": [{"type": "ptp"}]`),
		"00-version.conflist": list(`, "name": "n", "cniVersions": ["x"], "plugins": [{"type": "ptp"}]`),
		"00-single.conf":      list(`, "name": "n", "type": "ptp", "ipam": 7`),
	} {
		c := chained(t, map[string]string{name: text, "10-flannel.conflist": theirList})
		if used, _, err := c.Chain(); err == nil || !strings.Contains(err.Error(), name+" in "+c.ConfDir+" cannot be chained") || used != "10-flannel.conflist" {
			t.Errorf("chained %q, %v", used, err)
		}
		wantUsed(t, c, "flannel", "portmap", "isthmus-cni")
		if got := content(t, c, name); got != text {
			t.Errorf("%s is %s", name, got)
		}
	}
}

// TestChainDirectory checks a list whose plugins are files of a directory with its name (CNI 1.1). Runtimes use it,
// and an entry cannot be added, so it must be reported.
func TestChainDirectory(t *testing.T) {
	const text = `{"cniVersion": "1.1.0", "name": "split"}`
	c := chained(t, map[string]string{"05-split.conflist": text, "10-flannel.conflist": theirList})
	put(t, filepath.Join(c.ConfDir, "split", "10-ptp.conf"), `{"type": "ptp"}`, 0o600)
	wantUsed(t, c, "ptp")
	name, _, err := c.Chain()
	if want := "05-split.conflist in " + c.ConfDir + " cannot be chained: plugins: it has none: list them"; err == nil || !strings.Contains(err.Error(), want) || name != "10-flannel.conflist" {
		t.Errorf("chained %q, %v, want an error with %q", name, err, want)
	}
	if got := content(t, c, "05-split.conflist"); got != text {
		t.Errorf("the list is %s", got)
	}
}

func TestChainRefuses(t *testing.T) {
	c := chained(t, map[string]string{"10-flannel.conflist": theirList, install.ConfName: "{}"})
	if _, _, err := c.Chain(); err == nil || !strings.Contains(err.Error(), "isthmus-agent uninstall, or use mode full") || content(t, c, "10-flannel.conflist") != theirList {
		t.Errorf("beside a list of mode full: %v", err)
	}
	if runtime.GOOS == "windows" {
		t.Skip("links need a privilege")
	}
	c = chained(t, map[string]string{"target": theirList})
	if err := os.Symlink("target", filepath.Join(c.ConfDir, "10-link.conflist")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.Chain(); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a link: %v", err)
	}
	remove(t, c)
	if info, err := os.Lstat(filepath.Join(c.ConfDir, "10-link.conflist")); err != nil || info.Mode()&fs.ModeSymlink == 0 || content(t, c, "target") != theirList {
		t.Errorf("the link is %v, %v", info, err)
	}
	put(t, filepath.Join(c.ConfDir, "05-large.conflist"), strings.Repeat(" ", 2<<20)+theirList, 0o600)
	if _, _, err := c.Chain(); err == nil || !strings.Contains(err.Error(), "at most 1048576") {
		t.Errorf("a large file: %v", err)
	}
}

// TestRemoveAfterInterruption checks that nothing is left of an agent that was killed while it wrote, also the first time.
func TestRemoveAfterInterruption(t *testing.T) {
	before := map[string]string{"10-single.conf": theirConf, "20-list.conflist": theirList, "30-single.json": theirConf}
	c := chained(t, before)
	want := files(t, c)
	for _, name := range []string{"10-single-isthmus.conflist", "20-list.conflist", "30-single-isthmus.conflist"} {
		put(t, filepath.Join(c.ConfDir, name+".part"), "{", 0o600)
	}
	remove(t, c)
	if got := files(t, c); !slices.Equal(got, want) {
		t.Errorf("files %v, want %v", got, want)
	}
}

// TestRemoveKeepsListsOfOthers checks that lists that an administrator wrote for mode full stay.
func TestRemoveKeepsListsOfOthers(t *testing.T) {
	const own = `{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"isthmus-cni"},{"type":"tuning"}]}`
	c := chained(t, map[string]string{"10-own.conflist": own, "20-alone-isthmus.conflist": `{"plugins":[]}`})
	remove(t, c)
	if got, want := files(t, c), []string{"10-own.conflist", "20-alone-isthmus.conflist"}; !slices.Equal(got, want) || content(t, c, "10-own.conflist") != own {
		t.Errorf("files %v, want %v", got, want)
	}
}

// TestKeeperChains checks that the entry appears when the agent is ready, and again soon after each
// change by the other network, by rename and in place. It stays when the agent stops.
func TestKeeperChains(t *testing.T) {
	c := chained(t, map[string]string{"10-flannel.conflist": theirList})
	k, err := install.NewKeeper(c, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ready := make(chan struct{})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		ended <- k.Run(ctx, func() bool {
			select {
			case <-ready:
				return true
			default:
				return false
			}
		})
	}()
	wait(t, "plugin", func() bool { return slices.Contains(files(t, c), "isthmus-cni") })
	wantUsed(t, c, "flannel", "portmap")
	close(ready)
	path := filepath.Join(c.ConfDir, "10-flannel.conflist")
	for i := range 6 {
		want := strings.Replace(theirList, "2.50", fmt.Sprint(i), 1)
		if i%2 == 0 {
			put(t, path+".tmp", want, 0o600)
			if err := os.Rename(path+".tmp", path); err != nil {
				t.Fatal(err)
			}
		} else {
			put(t, path, want, 0o600)
		}
		began := time.Now()
		wait(t, "entry", func() bool { return slices.Contains(used(t, c), "isthmus-cni") })
		if took := time.Since(began); i > 0 && took > 5*time.Second {
			t.Errorf("the entry was missing for %v", took)
		}
		if got := content(t, c, "10-flannel.conflist"); !strings.Contains(got, fmt.Sprintf("[1, %d]", i)) {
			t.Errorf("change %d is lost:\n%s", i, got)
		}
	}
	wait(t, "end of problems", func() bool { return len(k.Problems()) == 0 })
	put(t, filepath.Join(c.ConfDir, "00-broken.conflist"), "{", 0o600)
	wait(t, "problem", func() bool { return len(k.Problems()) == 1 })
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	wantUsed(t, c, "flannel", "portmap", "isthmus-cni")
}

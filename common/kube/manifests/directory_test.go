// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/kube/kubetest"
	"github.com/isthmus-net/isthmus/common/model"
)

// write replaces a file as an editor or a deployment tool does: by renaming.
func write(t *testing.T, dir, name, text string) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	tmp := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".tmp")
	if err := os.WriteFile(tmp, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	err := os.Rename(tmp, path)
	for deadline := time.Now().Add(10 * time.Second); err != nil && runtime.GOOS == "windows" && time.Now().Before(deadline); err = os.Rename(tmp, path) {
		time.Sleep(5 * time.Millisecond) // Windows replaces no file that the Directory is reading
	}
	if err != nil {
		t.Fatal(err)
	}
}

func testDirectoryConfig(dir string) DirectoryConfig {
	c := DefaultDirectoryConfig(dir)
	c.Debounce = 20 * time.Millisecond
	c.Rescan = time.Hour // changes are found without a rescan
	return c
}

func startDir(t *testing.T, cfg DirectoryConfig) *kubetest.Follower {
	t.Helper()
	d, err := NewDirectory(cfg, kubetest.Quiet())
	if err != nil {
		t.Fatal(err)
	}
	return kubetest.Follow(t, d)
}

func podText(name, ip string) string {
	return fmt.Sprintf("---\n{apiVersion: v1, kind: Pod, metadata: {name: %s, namespace: shop}, status: {podIP: %s}}\n", name, ip)
}

func TestDirectoryFollowsChanges(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "a.yaml", podText("a", "10.0.0.1"))
	write(t, dir, "notes.txt", "kind: nonsense")
	w := startDir(t, testDirectoryConfig(dir))
	first := w.Until("a", kubetest.HasPod("a"))
	w.NoProblems()

	write(t, dir, "b.yml", podText("b", "10.0.0.2"))
	second := w.Until("b", kubetest.HasPod("b"))
	id := model.PodID{Namespace: "shop", Name: "a"}
	was, _ := first.Pods.Get(id)
	if is, _ := second.Pods.Get(id); was != is {
		t.Error("a pod that did not change was replaced")
	}

	write(t, dir, "later/deep/c.json", `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "c", "namespace": "shop"}}`)
	w.Until("c", kubetest.HasPod("c"))
	write(t, dir, "later/deep/d.yaml", podText("d", "10.0.0.4")) // the new directory is watched, too
	w.Until("d", kubetest.HasPod("d"))
	if err := os.RemoveAll(filepath.Join(dir, "later")); err != nil {
		t.Fatal(err)
	}
	w.Until("no c", func(s *model.Snapshot) bool { return !kubetest.HasPod("c")(s) && !kubetest.HasPod("d")(s) })

	// In place, in pieces.
	f, err := os.OpenFile(filepath.Join(dir, "a.yaml"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range strings.SplitAfter(podText("e", "10.0.0.5"), ",") {
		if _, err := f.WriteString(part); err != nil {
			t.Fatal(err)
		}
	}
	f.Close()
	w.Until("e", kubetest.HasPod("e"))

	// Equal content is not published again.
	write(t, dir, "b.yml", "# a remark\n"+podText("b", "10.0.0.2"))
	w.Still(150 * time.Millisecond)
}

func TestDirectoryKeepsTheLastGoodState(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "pods.yaml", podText("a", "10.0.0.1"))
	write(t, dir, "policy.yaml", "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: deny, namespace: shop}, spec: {podSelector: {}}}")
	w := startDir(t, testDirectoryConfig(dir))
	w.Until("a", kubetest.HasPod("a"))
	good, _ := os.ReadFile(filepath.Join(dir, "policy.yaml"))
	for _, bad := range []struct{ text, problem string }{
		{"{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: deny, namespace: shop}, spec: {policyTypes: [In]}}", "spec.policyTypes[0]"},
		{"{apiVersion: networking.k8s.io/v1, kind: Network", "valid YAML"},
		{string(good[:len(good)-1]), "valid YAML"},
	} {
		n := len(w.All())
		write(t, dir, "policy.yaml", bad.text)
		w.Problem("policy.yaml", bad.problem)
		write(t, dir, "more.yaml", podText("more", "10.0.0.9")) // good, but must wait
		w.Still(100 * time.Millisecond)
		if len(w.All()) != n {
			t.Errorf("published in spite of %q", bad.text)
		}
		if err := os.Remove(filepath.Join(dir, "more.yaml")); err != nil {
			t.Fatal(err)
		}
	}
	write(t, dir, "more.yaml", podText("more", "10.0.0.9"))
	write(t, dir, "policy.yaml", string(good))
	s := w.Until("more", kubetest.HasPod("more"))
	if s.Policies.Len() != 1 {
		t.Errorf("%d policies", s.Policies.Len())
	}
	w.NoProblems()
}

func TestDirectoryBadFromTheStart(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "a.yaml", podText("a", "10.0.0.256"))
	w := startDir(t, testDirectoryConfig(dir))
	w.Problem("a.yaml", "document 1 (line 2)", "Pod shop/a", "status.podIP", "10.0.0.256")
	w.Still(50 * time.Millisecond)
	write(t, dir, "a.yaml", podText("a", "10.0.0.25"))
	w.Until("a", kubetest.HasPod("a"))
	w.NoProblems()
}

func TestDirectoryComesAndGoes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "manifests")
	w := startDir(t, testDirectoryConfig(dir))
	w.Problem(dir, "open directory")
	write(t, dir, "a.yaml", podText("a", "10.0.0.1"))
	w.Until("a", kubetest.HasPod("a"))
	w.NoProblems()
	if err := os.Rename(dir, dir+".old"); err != nil {
		t.Fatal(err)
	}
	w.Problem(dir, "open directory")
	if !kubetest.HasPod("a")(w.Last()) {
		t.Error("the last good state did not stay")
	}
	write(t, dir, "b.yaml", podText("b", "10.0.0.2"))
	w.Until("b", func(s *model.Snapshot) bool { return kubetest.HasPod("b")(s) && !kubetest.HasPod("a")(s) })
	w.NoProblems()
}

// swap exchanges the contents of a directory as kubelet does with ConfigMaps:
// files are links through ..data, which is a link that is renamed over.
func swap(t *testing.T, dir, version string, files map[string]string) {
	t.Helper()
	real := filepath.Join(dir, "..v"+version)
	if err := os.MkdirAll(real, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(real, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	tmp := filepath.Join(dir, "..data_tmp")
	if err := os.Symlink("..v"+version, tmp); err != nil {
		t.Fatal(err)
	}
	old, _ := os.Readlink(filepath.Join(dir, "..data"))
	if err := os.Rename(tmp, filepath.Join(dir, "..data")); err != nil {
		t.Fatal(err)
	}
	for name := range files {
		if err := os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name)); err != nil && !os.IsExist(err) {
			t.Fatal(err)
		}
	}
	if old != "" {
		if err := os.RemoveAll(filepath.Join(dir, old)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestDirectoryNeverMixes exchanges all files at once, many times, and wants
// every snapshot to be of one version.
func TestDirectoryNeverMixes(t *testing.T) {
	dir := t.TempDir()
	const files = 40
	version := func(i int) map[string]string {
		text := make(map[string]string)
		for f := range files {
			text[fmt.Sprintf("f%02d.yaml", f)] = podText(fmt.Sprintf("p%d", f), fmt.Sprintf("10.%d.%d.%d", i/200, f, i%200))
		}
		return text
	}
	swap(t, dir, "0", version(0))
	cfg := testDirectoryConfig(dir)
	cfg.Debounce, cfg.MaxDelay = time.Millisecond, 5*time.Millisecond
	w := startDir(t, cfg)
	w.Until("p0", kubetest.HasPod("p0"))
	const swaps = 200
	for i := 1; i <= swaps; i++ {
		swap(t, dir, fmt.Sprint(i), version(i))
		time.Sleep(time.Duration(i%3) * time.Millisecond)
	}
	at := func(s *model.Snapshot, f int) int {
		p, ok := s.Pods.Get(model.PodID{Namespace: "shop", Name: fmt.Sprintf("p%d", f)})
		if !ok {
			return -1
		}
		ip := p.IPs[0].As4()
		return int(ip[1])*200 + int(ip[3])
	}
	w.Until("the last", func(s *model.Snapshot) bool { return at(s, 0) == swaps })
	for n, s := range w.All() {
		for f := range files {
			if at(s, f) != at(s, 0) {
				t.Fatalf("snapshot %d: file 0 is version %d, file %d is version %d", n, at(s, 0), f, at(s, f))
			}
		}
	}
	w.NoProblems()
	t.Logf("swaps=%d snapshots=%d", swaps, len(w.All()))
}

func TestDirectoryIsALink(t *testing.T) {
	base := t.TempDir()
	write(t, base, "one/a.yaml", podText("a", "10.0.0.1"))
	write(t, base, "two/b.yaml", podText("b", "10.0.0.2"))
	link := filepath.Join(base, "current")
	if err := os.Symlink("one", link); err != nil {
		t.Fatal(err)
	}
	w := startDir(t, testDirectoryConfig(link))
	w.Until("a", kubetest.HasPod("a"))
	if err := os.Symlink("two", link+".new"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(link+".new", link); err != nil {
		t.Fatal(err)
	}
	w.Until("b", func(s *model.Snapshot) bool { return kubetest.HasPod("b")(s) && !kubetest.HasPod("a")(s) })
}

func TestDirectoryRescans(t *testing.T) {
	base := t.TempDir()
	write(t, base, "elsewhere/target.yaml", podText("a", "10.0.0.1"))
	dir := filepath.Join(base, "manifests")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(base, "elsewhere", "target.yaml"), filepath.Join(dir, "a.yaml")); err != nil {
		t.Fatal(err)
	}
	cfg := testDirectoryConfig(dir)
	cfg.Rescan = 50 * time.Millisecond
	w := startDir(t, cfg)
	w.Until("a", kubetest.HasPod("a"))
	write(t, base, "elsewhere/target.yaml", podText("b", "10.0.0.1")) // no event in the directory itself
	w.Until("b", kubetest.HasPod("b"))
}

func TestDirectoryConfigErrors(t *testing.T) {
	_, err := NewDirectory(DirectoryConfig{}, kubetest.Quiet())
	for _, want := range []string{"path", "Debounce", "MaxDelay", "Rescan", "FileBytes", "TotalBytes", "Files", "Directories", "Objects", "Pods", "Depth"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no error on %s: %v", want, err)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package kubernetes_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/test/kubernetes"
)

// The programs may be there, but not their sources: the directory of programs is that of all users, the cache of modules is not.
func TestSourceIsFetched(t *testing.T) {
	const module = "k8s.io/klog/v2"
	full, err := exec.Command("go", "env", "GOMODCACHE", "GOPROXY").Output()
	if err != nil {
		t.Fatal(err)
	}
	cache, proxies, _ := strings.Cut(strings.TrimSpace(string(full)), "\n")
	t.Setenv("GOMODCACHE", t.TempDir())
	t.Setenv("GOFLAGS", "-modcacherw") // so that the test can remove it
	t.Setenv("GOPROXY", "file://"+filepath.ToSlash(cache)+"/cache/download,"+proxies)
	dir, err := kubernetes.Source(t.Context(), module)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "go.mod")); err != nil {
		t.Errorf("the sources of %s: %v", module, err)
	}
	if dir, err := kubernetes.Source(t.Context(), "example.com/none"); err == nil {
		t.Errorf("the sources of a module that is not used: %q", dir)
	}
}

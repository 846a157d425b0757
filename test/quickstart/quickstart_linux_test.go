// SPDX-License-Identifier: Apache-2.0

package quickstart

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/test/console"
)

const document = "docs/quickstart.md"

// limit is how long a command may take. The first cluster builds Kubernetes.
const limit = 40 * time.Minute

// A new user's first session works as written, and leaves nothing behind.
func TestQuickStart(t *testing.T) {
	if os.Getenv("ISTHMUS_CLUSTER") == "" {
		t.Skip("runs a cluster for minutes, with root: make test-cluster runs it")
	}
	top, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(top, document))
	if err != nil {
		t.Fatal(err)
	}
	session, err := console.Commands(string(text))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if out, err := run(t, top, "make cluster-stop"); err != nil {
			t.Errorf("remove the cluster: %v\n%s", err, out)
		}
	})
	before := traces(t)
	var exports []string
	for _, c := range session {
		if strings.HasPrefix(c.Text, "export ") {
			exports = append(exports, c.Text)
			continue
		}
		began := time.Now()
		line := strings.ReplaceAll(c.Text, "sudo make", "make") // the test is root already
		out, err := run(t, top, strings.Join(append(exports, line), "\n"))
		if err != nil || !console.Matches(c.Want, out) {
			t.Fatalf("%s:%d: %s: %v\n%s\nwant\n%s", document, c.Line, c.Text, err, out, strings.Join(c.Want, "\n"))
		}
		t.Logf("%s (%s)", c.Text, time.Since(began).Round(100*time.Millisecond))
	}
	if now := traces(t); now != before {
		t.Errorf("after the last command the machine has\n%s\nbefore the first it had\n%s", now, before)
	}
}

func run(t *testing.T, dir, script string) (string, error) {
	t.Helper()
	ctx, stop := context.WithTimeout(context.Background(), limit)
	defer stop()
	cmd := exec.CommandContext(ctx, "bash", "-c", "unset MAKEFLAGS MAKELEVEL\n"+script) // make prints less alone
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// traces lists what a cluster makes on the machine.
func traces(t *testing.T) string {
	t.Helper()
	const look = `ls -d /var/tmp/isthmus-local /sys/fs/cgroup/*/local* /sys/fs/cgroup/local* 2>/dev/null
grep -F /var/tmp/isthmus-local /proc/self/mountinfo
ps -eo comm | grep -E '^(containerd|coredns|etcd|kube)' | sort
ss -Hltn 'sport = :6443'
cat /proc/sys/vm/overcommit_memory /proc/sys/kernel/panic /proc/sys/kernel/panic_on_oops; true`
	out, err := run(t, ".", look)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

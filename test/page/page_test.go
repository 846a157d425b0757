// SPDX-License-Identifier: Apache-2.0

package page

import (
	"bufio"
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/test/world"
)

// TestPages runs pages.mjs. It writes screenshots to build/page, and with ISTHMUS_PAGE_IMAGES=1 to docs/images.
func TestPages(t *testing.T) {
	if os.Getenv("ISTHMUS_PAGE") == "" {
		t.Skip("make test-page runs it: it needs Chromium and npm")
	}
	top, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	work := filepath.Join(top, "build", "page") // keeps the packages of npm between runs
	images := work
	if os.Getenv("ISTHMUS_PAGE_IMAGES") != "" {
		images = filepath.Join(top, "docs", "images")
	}
	for _, dir := range []string{work, images} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"package.json", "package-lock.json", ".npmrc", "pages.mjs"} {
		copyFile(t, name, filepath.Join(work, name))
	}
	command(t, work, 5*time.Minute, "npm", "ci")
	program := filepath.Join(work, "isthmusctl")
	command(t, top, 10*time.Minute, "go", "build", "-o", program, "./cmd/isthmusctl")

	small := serve(t, top, program, "deploy/examples/hospital", serveAgent(t))
	large := serve(t, top, program, largeCluster(t), filepath.Join(t.TempDir(), "no", "agent.sock"))
	live := serveRelay(t, filepath.Join(top, "deploy/examples/hospital"))
	out := command(t, work, 10*time.Minute, "node", "pages.mjs", small, large, live, images)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	t.Log("\n" + out)
	if last := lines[len(lines)-1]; !strings.Contains(last, " 0 failed; axe: 0 violations") {
		t.Errorf("the last line is %q", last)
	}
}

// largeCluster writes manifests of 10,000 pods.
func largeCluster(t *testing.T) string {
	dir := t.TempDir()
	for name, text := range (world.Scale{Pods: 10_000, Policies: 2000, Seed: 1}).Manifests() {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// serve starts isthmusctl ui with the socket of an agent. It ends with the test. serve returns the address of its pages.
func serve(t *testing.T, top, program, manifests, agent string) string {
	t.Helper()
	c := exec.CommandContext(t.Context(), program, "ui", "-q", "-m", manifests, "--socket", agent)
	c.Dir, c.Stderr = top, os.Stderr
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("isthmusctl ui -m %s prints no address: %v", manifests, err)
	}
	return strings.TrimSpace(line)
}

// command runs a program and returns what it prints. Its failure ends the test.
func command(t *testing.T, dir string, limit time.Duration, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	c := exec.CommandContext(ctx, name, args...)
	var out bytes.Buffer
	c.Dir, c.Stdout, c.Stderr, c.WaitDelay = dir, &out, &out, 10*time.Second
	if err := c.Run(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out.String())
	}
	return out.String()
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	text, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

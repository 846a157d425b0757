// SPDX-License-Identifier: Apache-2.0

package dirlock_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/agent/dirlock"
)

// TestMain acts as another process that holds a directory, when a test runs itself again.
func TestMain(m *testing.M) {
	dir := os.Getenv("ISTHMUS_TEST_HOLD")
	if dir == "" {
		os.Exit(m.Run())
	}
	l, err := dirlock.Take(context.Background(), dir, 0, func(string) {})
	fmt.Println(err)
	io.Copy(io.Discard, os.Stdin)
	runtime.KeepAlive(l)
	os.Exit(0)
}

// hold starts a process that holds a directory until end is called.
func hold(t *testing.T, dir string) (cmd *exec.Cmd, end io.Closer) {
	t.Helper()
	cmd = exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "ISTHMUS_TEST_HOLD="+dir)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || line != "<nil>\n" {
		t.Fatalf("the other process says %q, %v", line, err)
	}
	return cmd, stdin
}

func take(t *testing.T, dir string, patience time.Duration) (*dirlock.Lock, []string, error) {
	t.Helper()
	var told []string
	l, err := dirlock.Take(t.Context(), dir, patience, func(holder string) { told = append(told, holder) })
	return l, told, err
}

// holderOf returns the description of a process in messages.
func holderOf(pid int) string {
	switch runtime.GOOS {
	case "linux", "windows":
		return fmt.Sprintf("process %d", pid)
	}
	return "another process"
}

func TestSecondProcess(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state", "endpoints")
	cmd, _ := hold(t, dir)
	l, told, err := take(t, dir, 0)
	want := fmt.Sprintf("lock directory %s: %s", dir, holderOf(cmd.Process.Pid))
	if err == nil || !strings.HasPrefix(err.Error(), want) || !strings.Contains(err.Error(), "stop that agent") || l != nil || len(told) != 0 {
		t.Errorf("got %v, told %q, want %q and a remedy at once", err, told, want)
	}
	l, told, err = take(t, dir, 200*time.Millisecond)
	if err == nil || !strings.HasPrefix(err.Error(), want) || l != nil || len(told) != 1 || !strings.HasPrefix(told[0], holderOf(cmd.Process.Pid)) {
		t.Errorf("got %v, told %q, want %q after a message", err, told, want)
	}
	other, _, err := take(t, filepath.Join(filepath.Dir(dir), "other"), 0)
	if err != nil {
		t.Fatalf("another directory: %v", err)
	}
	other.Release()
}

// TestHolderEnds makes the next process wait for one that ends normally, and for one that is
// killed.
func TestHolderEnds(t *testing.T) {
	dir := t.TempDir()
	for name, end := range map[string]func(*exec.Cmd, io.Closer) error{
		"in good order": func(_ *exec.Cmd, stdin io.Closer) error { return stdin.Close() },
		"is killed":     func(cmd *exec.Cmd, _ io.Closer) error { return cmd.Process.Kill() },
	} {
		cmd, stdin := hold(t, dir)
		time.AfterFunc(150*time.Millisecond, func() {
			if err := end(cmd, stdin); err != nil {
				t.Error(err)
			}
		})
		l, told, err := take(t, dir, time.Minute)
		if err != nil || len(told) != 1 {
			t.Fatalf("%s: %v, told %q", name, err, told)
		}
		if err := l.Release(); err != nil {
			t.Error(err)
		}
	}
}

func TestWaitingEndsWithTheContext(t *testing.T) {
	dir := t.TempDir()
	hold(t, dir)
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := dirlock.Take(ctx, dir, time.Hour, func(string) { cancel() }); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestRelativePath(t *testing.T) {
	if _, err := dirlock.Take(t.Context(), "state", 0, func(string) {}); err == nil || !strings.Contains(err.Error(), "must be absolute") {
		t.Errorf("got %v", err)
	}
}

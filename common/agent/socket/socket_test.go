// SPDX-License-Identifier: Apache-2.0

//go:build unix

package socket_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/agent/socket"
)

func listen(t *testing.T, path string) net.Listener {
	t.Helper()
	l, err := socket.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func TestOnlyTheOwner(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "a.sock")
	listen(t, path)
	for p, want := range map[string]os.FileMode{path: 0o600, filepath.Dir(path): 0o700} {
		if info, err := os.Stat(p); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: mode %o, %v, want %o", p, info.Mode().Perm(), err, want)
		}
	}
}

func TestEcho(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.sock")
	l := listen(t, path)
	go func() {
		c, err := l.Accept()
		if err == nil {
			io.Copy(c, c)
			c.Close()
		}
	}()
	c, err := socket.Dial(context.Background(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 5)
	if _, err := io.ReadFull(c, b); err != nil || string(b) != "hello" {
		t.Errorf("got %q, %v", b, err)
	}
}

func TestStaleSocketIsReplacedAndALiveOneIsNot(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.sock")
	dead, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	dead.(*net.UnixListener).SetUnlinkOnClose(false) // as after a kill
	dead.Close()
	listen(t, path)
	if _, err := socket.Listen(path); err == nil || !strings.Contains(err.Error(), "another agent listens there") {
		t.Errorf("a second listener: %v", err)
	}
	if c, err := socket.Dial(context.Background(), path); err != nil {
		t.Errorf("the first listener lost its socket: %v", err)
	} else {
		c.Close()
	}
}

func TestRefusals(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	open := filepath.Join(dir, "open")
	if err := os.Mkdir(open, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	foreign := filepath.Join(dir, "foreign")
	if err := os.Mkdir(foreign, 0o700); err != nil {
		t.Fatal(err)
	}
	belongs := "" // only root can give it to another user
	if os.Geteuid() == 0 {
		belongs = "belongs to user 65534"
		if err := os.Chown(foreign, 65534, -1); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]string{
		filepath.Join(foreign, "a.sock"):       belongs,
		"relative.sock":                        "absolute path",
		"/" + strings.Repeat("a", 120):         "at most 103 bytes",
		file:                                   "not a socket",
		filepath.Join(open, "a.sock"):          "chmod 0700",
		filepath.Join(file, "under", "a.sock"): "create socket directory",
	} {
		l, err := socket.Listen(path)
		if l != nil {
			l.Close()
		}
		if got := fmt.Sprint(err); (err == nil) != (want == "") || want != "" && !strings.Contains(got, want) {
			t.Errorf("%s: got %s, want %q", path, got, want)
		}
	}
	if _, err := os.Stat(file); err != nil {
		t.Errorf("a file was removed: %v", err)
	}
}

// TestOtherUsersAreRejected runs this test again as another user.
func TestOtherUsersAreRejected(t *testing.T) {
	if path := os.Getenv("ISTHMUS_TEST_SOCKET"); path != "" {
		c, err := socket.Dial(context.Background(), path)
		if err != nil {
			t.Fatalf("dial: %v", err)
		}
		c.SetDeadline(time.Now().Add(5 * time.Second))
		n, err := c.Read(make([]byte, 1))
		t.Logf("read %d bytes, %v", n, err)
		if err == nil {
			t.Fatal("was let in")
		}
		return
	}
	dir := forAnotherUser(t)
	path := filepath.Join(dir, "a.sock")
	l := listen(t, path)
	// The modes are opened, so that only the check of the peer remains.
	for p, mode := range map[string]os.FileMode{dir: 0o755, path: 0o666} {
		if err := os.Chmod(p, mode); err != nil {
			t.Fatal(err)
		}
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Write([]byte("secret"))
			c.Close()
		}
	}()
	out, err := asAnotherUser(t, dir, path).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "read 0 bytes") {
		t.Errorf("another user: %v\n%s", err, out)
	}
}

// forAnotherUser returns a short directory, which no other user can read yet. It skips the test where it cannot become another user.
func forAnotherUser(t *testing.T) string {
	t.Helper()
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		t.Skip("needs root on Linux, to become another user")
	}
	dir, err := os.MkdirTemp("/tmp", "isthmus")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// asAnotherUser returns a command that runs the calling test again as another user, with a socket. The
// directory must be open to that user.
func asAnotherUser(t *testing.T, dir, socket string) *exec.Cmd {
	t.Helper()
	exe := filepath.Join(dir, "other.test")
	b, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(exe, b, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, "-test.run", "^"+t.Name()+"$", "-test.v")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "ISTHMUS_TEST_SOCKET="+socket)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	return cmd
}

// TestAgentOfAnotherUser runs this test again as another user, which listens where the agent should.
func TestAgentOfAnotherUser(t *testing.T) {
	if path := os.Getenv("ISTHMUS_TEST_SOCKET"); path != "" {
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		fmt.Println("listening")
		io.Copy(io.Discard, os.Stdin) // until the other test closes it
		return
	}
	dir := forAnotherUser(t)
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "a.sock")
	cmd := asAnotherUser(t, dir, path)
	end, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() && lines.Text() != "listening" {
	}
	c, err := socket.Dial(t.Context(), path)
	if err == nil || !strings.Contains(err.Error(), "another user listens there") {
		t.Errorf("connected to another user: %v", err)
	}
	if err == nil {
		c.Close()
	}
	end.Close()
	for lines.Scan() {
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// TestOpen opens the two sockets of an agent. It fails, and leaves nothing open, if one of them is in use.
func TestOpen(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.sock")
	both := []string{path, socket.Inspection(path)}
	for _, used := range both {
		other := listen(t, used)
		if s, err := socket.Open(path); err == nil || !strings.Contains(err.Error(), used+": another agent listens there") {
			t.Errorf("open while %s is in use: %v", used, err)
			if s != nil {
				s.Close()
			}
		}
		other.Close()
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("%s was in use: left %v, %v", used, left, err)
		}
	}
	// A crash leaves both files.
	for _, p := range both {
		dead, err := net.Listen("unix", p)
		if err != nil {
			t.Fatal(err)
		}
		dead.(*net.UnixListener).SetUnlinkOnClose(false)
		dead.Close()
	}
	s, err := socket.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range both {
		if info, err := os.Stat(p); err != nil || info.Mode() != os.ModeSocket|0o600 {
			t.Errorf("%s: %v, %v", p, info, err)
		}
		c, err := socket.Dial(context.Background(), p)
		if err != nil {
			t.Errorf("dial %s: %v", p, err)
			continue
		}
		c.Close()
	}
	for range 2 {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

// TestWatch: a socket that is removed, or replaced by that of another process, is noticed.
func TestWatch(t *testing.T) {
	for name, change := range map[string]func(string) error{
		"removed":  os.Remove,
		"replaced": func(path string) error { return errors.Join(os.Remove(path), os.WriteFile(path, nil, 0o600)) },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "a.sock")
			s, err := socket.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			time.AfterFunc(1500*time.Millisecond, func() { // it has looked once by then
				if err := change(socket.Inspection(path)); err != nil {
					t.Error(err)
				}
			})
			if err := s.Watch(ctx); err == nil || !strings.Contains(err.Error(), path+".inspect was removed") {
				t.Error(err)
			}
		})
	}
}

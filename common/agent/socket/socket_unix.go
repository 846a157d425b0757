// SPDX-License-Identifier: Apache-2.0

//go:build unix

package socket

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// Default is the address of the agent's socket.
const Default = "/run/isthmus/agent.sock"

// maxPath is the longest socket path, in bytes, that every Unix accepts.
const maxPath = 103

// Listen opens the socket at a path. It creates the directory with access for its owner only, and replaces
// a socket without a listener. On Linux it closes connections of users other than root and the agent's own
// at once.
func Listen(path string) (net.Listener, error) {
	if !filepath.IsAbs(path) || len(path) > maxPath {
		return nil, fmt.Errorf("listen on %q: use an absolute path of at most %d bytes", path, maxPath)
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create socket directory: %w", err)
	}
	if err := checkDir(dir); err != nil {
		return nil, err
	}
	l, err := net.Listen("unix", path)
	if errors.Is(err, syscall.EADDRINUSE) {
		if err := removeStale(path); err != nil {
			return nil, err
		}
		l, err = net.Listen("unix", path)
	}
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("restrict socket to its owner: %w", err), l.Close())
	}
	made, err := os.Lstat(path)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("check socket: %w", err), l.Close())
	}
	return &listener{l.(*net.UnixListener), path, made}, nil
}

// checkDir returns an error for a directory in which other users could replace the socket.
func checkDir(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("check socket directory: %w", err)
	}
	if !info.IsDir() {
		return fmt.Errorf("check socket directory: %s is not a directory", dir)
	}
	if owner := info.Sys().(*syscall.Stat_t).Uid; owner != 0 && owner != uint32(os.Geteuid()) {
		return fmt.Errorf("socket directory %s belongs to user %d, who could replace the socket: use a separate directory, or chown it", dir, owner)
	}
	if info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("socket directory %s can be written by other users (mode %04o): use a separate directory, or chmod 0700 it", dir, info.Mode().Perm())
	}
	return nil
}

// removeStale removes a socket that a dead process left.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("check old socket: %w", err)
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("listen on %s: the path exists and is not a socket: remove it or use another path", path)
	}
	c, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		c.Close()
		return fmt.Errorf("listen on %s: another agent listens there: stop it first", path)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("listen on %s: check whether another agent listens there: %w", path, err)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove old socket: %w", err)
	}
	return nil
}

// listener accepts connections of the allowed users only.
type listener struct {
	*net.UnixListener
	path string
	made fs.FileInfo
}

// lost returns an error if another process has removed or replaced the file of the socket.
func (l *listener) lost() error {
	now, err := os.Lstat(l.path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(now, l.made) {
		return fmt.Errorf("socket %s was removed by another process, so no program reaches the agent: start it again", l.path)
	}
	return nil
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		if allowed(c) {
			return c, nil
		}
		c.Close()
	}
}

// Dial connects to the agent. On Linux it refuses a socket on which a user other than root and the caller's own
// listens: that user would answer an ADD without any policy. Listen checks the directory of the socket only, and
// not those above it.
func Dial(ctx context.Context, path string) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	if !allowed(c.(*net.UnixConn)) {
		return nil, errors.Join(fmt.Errorf("connect to %s: another user listens there, not the agent: stop that process, and move the socket to a directory of root", path), c.Close())
	}
	return c, nil
}

// Absent reports whether an error of Dial says that no process listens on the socket.
func Absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)
}

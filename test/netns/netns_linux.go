// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// NS is a network namespace.
type NS struct{ path string }

// New makes a namespace and binds it to a file of that name, which must not
// exist.
func New(path string) (*NS, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444)
	if err != nil {
		return nil, fmt.Errorf("create namespace file: %w", err)
	}
	f.Close()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // ends with the goroutine, in the new namespace
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("create network namespace: %w (are you root?)", err)
			return
		}
		if err := unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, ""); err != nil {
			done <- fmt.Errorf("bind network namespace to %s: %w", path, err)
			return
		}
		done <- nil
	}()
	if err := <-done; err != nil {
		return nil, errors.Join(err, os.Remove(path))
	}
	return &NS{path: path}, nil
}

// Prepared makes a namespace whose loopback interface is up and whose interfaces use their addresses immediately.
func Prepared(path string) (*NS, error) {
	ns, err := New(path)
	if err != nil {
		return nil, err
	}
	if err := ns.Do(func() error { return errors.Join(TrustAddresses(), Up("lo")) }); err != nil {
		return nil, errors.Join(err, ns.Close())
	}
	return ns, nil
}

// At returns the namespace that is bound to an existing file.
func At(path string) *NS { return &NS{path: path} }

// Path is the file that the namespace is bound to.
func (n *NS) Path() string { return n.path }

// Close removes the file. The kernel removes the namespace when its last process and socket are gone.
func (n *NS) Close() error {
	if err := unix.Unmount(n.path, unix.MNT_DETACH); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("unmount %s: %w", n.path, err)
	}
	if err := os.Remove(n.path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// Do calls f on a thread that is in the namespace. Sockets opened and processes
// started by f stay in it; goroutines started by f do not.
func (n *NS) Do(f func() error) error {
	file, err := os.Open(n.path)
	if err != nil {
		return fmt.Errorf("open namespace: %w", err)
	}
	defer file.Close()
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		if err := unix.Setns(int(file.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("enter namespace %s: %w", n.path, err)
			return
		}
		done <- f()
	}()
	return <-done
}

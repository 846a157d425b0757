// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/linux"
	"github.com/isthmus-net/isthmus/linux/engines"
	"github.com/isthmus-net/isthmus/linux/netfilter"
)

// inChild is set in the process that TestRemoveWithoutNftables starts.
const inChild = "ISTHMUS_TEST_WITHOUT_NFTABLES"

// TestRemoveWithoutNftables removes the data path where socket(2) answers as a kernel without nfnetlink does. A
// seccomp filter makes it, which a process cannot lift, so it is another process.
func TestRemoveWithoutNftables(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	if os.Getenv(inChild) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestRemoveWithoutNftables$", "-test.v")
		cmd.Env = append(os.Environ(), inChild+"=1")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	runtime.LockOSThread() // of a namespace of its own; the process ends with it
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	withoutNetfilter(t)
	if fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER); err != unix.EPROTONOSUPPORT {
		t.Fatalf("the filter is not in force: socket %d, %v", fd, err)
	}
	if has, err := netfilter.Available(); has || err != nil {
		t.Errorf("available: %t, %v", has, err)
	}
	if _, err := engines.Detect("/"); err != nil {
		t.Error(err)
	}
	cfg := linux.Defaults()
	cfg.BPFFS = filepath.Join(t.TempDir(), "bpffs")
	for range 2 {
		if err := linux.Remove(context.Background(), cfg); err != nil {
			t.Error(err)
		}
	}
}

// withoutNetfilter refuses sockets of NETLINK_NETFILTER to all threads of this process.
func withoutNetfilter(t *testing.T) {
	t.Helper()
	const number, family, protocol = 0, 16, 32 // offsets in struct seccomp_data
	load := func(k uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: k}
	}
	unless := func(k uint32, skip uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: skip, K: k}
	}
	filter := []unix.SockFilter{
		load(number), unless(unix.SYS_SOCKET, 5),
		load(family), unless(unix.AF_NETLINK, 3),
		load(protocol), unless(unix.NETLINK_NETFILTER, 1),
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPROTONOSUPPORT)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&program)))
	runtime.KeepAlive(filter)
	if errno != 0 {
		t.Fatal(errno)
	}
}

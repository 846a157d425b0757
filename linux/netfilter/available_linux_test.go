// SPDX-License-Identifier: Apache-2.0

package netfilter_test

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/linux/netfilter"
)

// Only errors that say that no table can exist may count as absence.
func TestAbsent(t *testing.T) {
	for err, want := range map[error]bool{
		unix.EPROTONOSUPPORT: true, unix.EINVAL: true, unix.EOPNOTSUPP: true, unix.EAFNOSUPPORT: true,
		unix.EPERM: false, unix.EACCES: false, unix.ENOBUFS: false, unix.EINTR: false, unix.ENOMEM: false, unix.EMFILE: false, os.ErrDeadlineExceeded: false,
	} {
		if got := netfilter.Absent(fmt.Errorf("conn.Receive: %w", os.NewSyscallError("recvmsg", err))); got != want {
			t.Errorf("%v: absent %t, want %t", err, got, want)
		}
	}
	if netfilter.Absent(nil) {
		t.Error("success counts as absence")
	}
}

// TestAvailable needs a kernel with nf_tables, as all tests of rules do.
func TestAvailable(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	if has, err := netfilter.Available(); !has || err != nil {
		t.Errorf("%t, %v", has, err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// absent are the errors of a list on a kernel without nf_tables: socket(2) without nfnetlink, a message and a batch
// for a subsystem that is missing (net/netfilter/nfnetlink.c), and a family that is missing.
var absent = []error{unix.EPROTONOSUPPORT, unix.EINVAL, unix.EOPNOTSUPP, unix.EAFNOSUPPORT}

// Absent reports whether listing tables failed because the kernel has no nf_tables. Missing rights are another
// failure: tables may exist.
func Absent(err error) bool {
	return slices.ContainsFunc(absent, func(e error) bool { return errors.Is(err, e) })
}

// Available reports whether the kernel has nf_tables.
func Available() (bool, error) {
	_, err := (&nftables.Conn{}).ListTables()
	if Absent(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("list nftables tables: %w", err)
	}
	return true, nil
}

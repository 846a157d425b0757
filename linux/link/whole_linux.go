// SPDX-License-Identifier: Apache-2.0

package link

import (
	"errors"

	"github.com/vishvananda/netlink"
)

// Whole asks the kernel for a list of rtnetlink until it has one that did not change
// while it was read: others may lack what was there all the time. On a machine
// where that is always so it gives up with the error of the last one.
func Whole[T any](list func() ([]T, error)) ([]T, error) {
	for again := 0; ; again++ {
		all, err := list()
		if again == 20 || !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package link

import (
	"errors"

	"github.com/vishvananda/netlink"
)

// Whole repeats an rtnetlink dump until the kernel did not change the list while it was read.
// Otherwise the list may lack objects that existed all the time. If every dump is interrupted,
// Whole returns the error of the last one.
func Whole[T any](list func() ([]T, error)) ([]T, error) {
	for again := 0; ; again++ {
		all, err := list()
		if again == 20 || !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
		}
	}
}

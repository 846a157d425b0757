// SPDX-License-Identifier: Apache-2.0

package link_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/isthmus-net/isthmus/linux/link"
)

func TestWhole(t *testing.T) {
	interrupted := fmt.Errorf("list: %w", netlink.ErrDumpInterrupted)
	other := errors.New("other")
	for name, c := range map[string]struct {
		answers []error // the last one repeats
		want    error
		calls   int
	}{
		"whole":             {[]error{nil}, nil, 1},
		"whole at last":     {[]error{interrupted, interrupted, nil}, nil, 3},
		"another error":     {[]error{interrupted, other}, other, 2},
		"always in between": {[]error{interrupted}, netlink.ErrDumpInterrupted, 21},
	} {
		calls := 0
		got, err := link.Whole(func() ([]int, error) {
			calls++
			return []int{calls}, c.answers[min(calls, len(c.answers))-1]
		})
		if !errors.Is(err, c.want) || calls != c.calls || got[0] != calls {
			t.Errorf("%s: %v, %v after %d calls", name, got, err, calls)
		}
	}
}

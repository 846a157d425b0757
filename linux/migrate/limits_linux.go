// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/linux/bpfobj"
)

// Limits are the idle timeouts of flows, in jiffies, as the programs use them.
type Limits struct{ Opening, TCP, Other, Closing uint32 }

// Expired is the same as conn_expired in bpf/include/conntrack.h: it reports whether a flow was
// idle for too long.
func (l Limits) Expired(c *bpfobj.PodConn, protocol uint8, now uint32) bool {
	limit := l.Other
	switch {
	case c.State == bpfobj.ConnOpening:
		limit = l.Opening
	case c.State == bpfobj.ConnClosing:
		limit = l.Closing
	case protocol == unix.IPPROTO_TCP:
		limit = l.TCP
	}
	// A packet may have passed after the caller read now, so a negative age counts as zero.
	idle := now - c.Seen
	return idle > limit && idle < 1<<31
}

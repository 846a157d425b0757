// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"encoding/binary"
	"fmt"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/policymap"
)

// flowLimits is how long flows may be idle, in jiffies, as the programs have it.
type flowLimits struct{ opening, tcp, other, closing uint32 }

// expired is conn_expired of bpf/include/conntrack.h.
func (l flowLimits) expired(c *bpfobj.PodConn, protocol uint8, now uint32) bool {
	limit := l.other
	switch {
	case c.State == bpfobj.ConnOpening:
		limit = l.opening
	case c.State == bpfobj.ConnClosing:
		limit = l.closing
	case protocol == unix.IPPROTO_TCP:
		limit = l.tcp
	}
	// A packet may have come since now was asked for: that is no age.
	idle := now - c.Seen
	return idle > limit && idle < 1<<31
}

// readLimits returns what the programs go by.
func (d *DataPath) readLimits() (l flowLimits, err error) {
	v := &d.objects.PodVariables
	for _, x := range []struct {
		from *ebpf.Variable
		to   *uint32
	}{{v.TimeoutOpening, &l.opening}, {v.TimeoutTcp, &l.tcp}, {v.TimeoutOther, &l.other}, {v.TimeoutClosing, &l.closing}} {
		if err := x.from.Get(x.to); err != nil {
			return l, fmt.Errorf("read the timeouts of flows: %w", err)
		}
	}
	return l, nil
}

// FlowShares returns how many entries of the flow table were made for the pod of a
// slot, by family; those that have expired and were not needed yet are among them.
func (d *DataPath) FlowShares() ([bpfobj.Slots][2]int32, error) {
	var all [bpfobj.Slots][2]int32
	var buf [bpfobj.Slots * 8]byte
	if _, err := d.shares.ReadAt(buf[:], 0); err != nil {
		return all, fmt.Errorf("read the shares of the flow table: %w", err)
	}
	for slot := range all {
		for v6 := range all[slot] {
			all[slot][v6] = int32(binary.NativeEndian.Uint32(buf[slot*8+v6*4:]))
		}
	}
	return all, nil
}

// FlowUsage returns how full conns4 and conns6 are.
func (d *DataPath) FlowUsage() (map[string]policymap.Usage, error) {
	shares, err := d.FlowShares()
	if err != nil {
		return nil, err
	}
	var sum [2]int
	for _, share := range shares {
		for v6, flows := range share {
			sum[v6] += int(max(flows, 0))
		}
	}
	return map[string]policymap.Usage{
		"conns4": {Entries: sum[0], Capacity: int(d.objects.Conns4.MaxEntries())},
		"conns6": {Entries: sum[1], Capacity: int(d.objects.Conns6.MaxEntries())},
	}, nil
}

// CountFlows counts the entries of the flow table of a family.
func (d *DataPath) CountFlows(v6 bool) (n int, err error) {
	if v6 {
		err = eachAlone(d.objects.Conns6, func(bpfobj.PodConnKey6, bpfobj.PodConn) { n++ })
	} else {
		err = eachAlone(d.objects.Conns4, func(bpfobj.PodConnKey4, bpfobj.PodConn) { n++ })
	}
	return n, err
}

// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"encoding/binary"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/flowtable"
	"github.com/isthmus-net/isthmus/linux/migrate"
	"github.com/isthmus-net/isthmus/linux/policymap"
)

// readLimits returns the timeouts that the programs use.
func (d *DataPath) readLimits() (l migrate.Limits, err error) {
	v := &d.objects.PodVariables
	for _, x := range []struct {
		from *ebpf.Variable
		to   *uint32
	}{{v.TimeoutOpening, &l.Opening}, {v.TimeoutTcp, &l.TCP}, {v.TimeoutOther, &l.Other}, {v.TimeoutClosing, &l.Closing}} {
		if err := x.from.Get(x.to); err != nil {
			return l, fmt.Errorf("read the timeouts of flows: %w", err)
		}
	}
	return l, nil
}

// FlowShares returns the number of entries in the flow table for each slot and IP version.
// Expired entries that no new flow has replaced yet are included.
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

// FlowUsage returns the usage of conns4 and conns6.
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

// CountFlows counts the entries in the flow table of one IP version.
func (d *DataPath) CountFlows(v6 bool) (n int, err error) {
	if v6 {
		err = flowtable.Read6(d.objects.Conns6, func(uint32, *bpfobj.PodConnEntry6) error { n++; return nil })
	} else {
		err = flowtable.Read4(d.objects.Conns4, func(uint32, *bpfobj.PodConnEntry4) error { n++; return nil })
	}
	return n, err
}

// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"github.com/cilium/ebpf"

	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/clock"
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

// sampled is the number of entries that FlowUsage reads of a table.
const sampled = 4096

// FlowUsage returns the usage of conns4 and conns6. Entries are flows that have not expired; all others make room for new
// flows. For tables with more than 4,096 entries it is an estimate from a sample, within about 2 % of the capacity.
func (d *DataPath) FlowUsage() (map[string]policymap.Usage, error) {
	limits, err := d.readLimits()
	if err != nil {
		return nil, err
	}
	jiffies, err := clock.Open()
	if err != nil {
		return nil, err
	}
	defer jiffies.Close()
	now, err := jiffies.Jiffies()
	if err != nil {
		return nil, err
	}
	var e4 bpfobj.PodConnEntry4
	var e6 bpfobj.PodConnEntry6
	live4, err := sample(d.objects.Conns4, &e4, func() bool {
		return flowtable.Live(e4.Conn.Version) && !limits.Expired(&e4.Conn, e4.Key.Protocol, now)
	})
	if err != nil {
		return nil, err
	}
	live6, err := sample(d.objects.Conns6, &e6, func() bool {
		return flowtable.Live(e6.Conn.Version) && !limits.Expired(&e6.Conn, e6.Key.Protocol, now)
	})
	if err != nil {
		return nil, err
	}
	return map[string]policymap.Usage{
		"conns4": {Entries: live4, Capacity: int(d.objects.Conns4.MaxEntries())},
		"conns6": {Entries: live6, Capacity: int(d.objects.Conns6.MaxEntries())},
	}, nil
}

// sample reads entries of an array into entry, and estimates for how many of all is is true. It reads all entries of a small
// array, and random ones of a large array.
func sample(m *ebpf.Map, entry any, is func() bool) (int, error) {
	size := int(m.MaxEntries())
	n, found := min(size, sampled), 0
	for i := range n {
		if n < size {
			i = rand.IntN(size)
		}
		if err := m.Lookup(uint32(i), entry); err != nil {
			return 0, fmt.Errorf("read map %s: %w", m, err)
		}
		if is() {
			found++
		}
	}
	return found * size / n, nil
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

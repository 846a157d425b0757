// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/policymap"
)

// sweep is how far a walk through conns4 and conns6 has come. The maps make
// room by themselves when they are full, for the flows that were idle longest
// as far as the kernel knows; the walk takes out what has expired before that
// is needed, and counts what has not.
type sweep struct {
	clock  *ebpf.Program // nil until the first walk
	limits flowLimits
	walk   func(until time.Time) (done bool, err error) // nil between walks
	usage  map[string]policymap.Usage                   // of the last complete walk
}

// flowLimits is how long flows may be idle, in jiffies, as the programs have it.
type flowLimits struct{ opening, tcp, other, closing uint32 }

// sweepBatch is how many flows are looked at between looks at the clock: 0.2 ms,
// and up to 1 ms more if all of them have expired.
const sweepBatch = 256

// The states of a flow (bpf/include/types.h).
const (
	connOpening = 0
	connClosing = 2
)

// expired is conn_expired of bpf/include/conntrack.h.
func (l flowLimits) expired(c *bpfobj.PodConn, protocol uint8, now uint32) bool {
	limit := l.other
	switch {
	case c.State == connOpening:
		limit = l.opening
	case c.State == connClosing:
		limit = l.closing
	case protocol == unix.IPPROTO_TCP:
		limit = l.tcp
	}
	// A packet may have come since now was asked for: that is no age.
	idle := now - c.Seen
	return idle > limit && idle < 1<<31
}

// SweepFlows goes on with the walk, or begins one, and reports whether it has
// come to the end. It works no longer than the budget and a millisecond.
func (d *DataPath) SweepFlows(budget time.Duration) (done bool, err error) {
	until := time.Now().Add(budget)
	s := &d.sweep
	if s.clock == nil {
		if err := d.prepareSweep(); err != nil {
			return false, err
		}
	}
	if s.walk == nil {
		s.walk = d.newWalk()
	}
	done, err = s.walk(until)
	if done || err != nil {
		s.walk = nil
	}
	if errors.Is(err, ebpf.ErrNotSupported) {
		return true, nil // without batches flows are left to the kernel
	}
	return done, err
}

// prepareSweep finds out what the programs go by.
func (d *DataPath) prepareSweep() error {
	s := &d.sweep
	v := &d.objects.PodVariables
	for _, x := range []struct {
		from *ebpf.Variable
		to   *uint32
	}{{v.TimeoutOpening, &s.limits.opening}, {v.TimeoutTcp, &s.limits.tcp}, {v.TimeoutOther, &s.limits.other}, {v.TimeoutClosing, &s.limits.closing}} {
		if err := x.from.Get(x.to); err != nil {
			return fmt.Errorf("read the timeouts of flows: %w", err)
		}
	}
	clock, err := newClock()
	if err != nil {
		return fmt.Errorf("load the clock of flows: %w", err)
	}
	s.clock = clock
	return nil
}

func (s *sweep) close() error {
	if s.clock == nil {
		return nil
	}
	return s.clock.Close()
}

// newWalk goes through both maps.
func (d *DataPath) newWalk() func(time.Time) (bool, error) {
	four := flowWalk[bpfobj.PodConnKey4]{m: d.objects.Conns4, size: sweepBatch, protocol: func(k *bpfobj.PodConnKey4) uint8 { return k.Protocol }}
	six := flowWalk[bpfobj.PodConnKey6]{m: d.objects.Conns6, size: sweepBatch, protocol: func(k *bpfobj.PodConnKey6) uint8 { return k.Protocol }}
	return func(until time.Time) (bool, error) {
		if err := four.on(&d.sweep, until); err != nil || !four.done {
			return false, err
		}
		if err := six.on(&d.sweep, until); err != nil || !six.done {
			return false, err
		}
		d.sweep.usage = map[string]policymap.Usage{
			"conns4": {Entries: four.alive, Capacity: int(four.m.MaxEntries())},
			"conns6": {Entries: six.alive, Capacity: int(six.m.MaxEntries())},
		}
		return true, nil
	}
}

// flowWalk is a walk through one map.
type flowWalk[K comparable] struct {
	m        *ebpf.Map
	protocol func(*K) uint8
	cursor   ebpf.MapBatchCursor
	size     int // of a batch: more than there are in one bucket of the hash
	alive    int
	done     bool
}

// on goes on until the map ends or time is up.
func (w *flowWalk[K]) on(s *sweep, until time.Time) error {
	for !w.done && time.Now().Before(until) {
		now, err := jiffies(s.clock)
		if err != nil {
			return fmt.Errorf("read the clock of flows: %w", err)
		}
		keys, conns := make([]K, w.size), make([]bpfobj.PodConn, w.size)
		n, err := w.m.BatchLookup(&w.cursor, keys, conns, nil)
		switch {
		case errors.Is(err, unix.ENOSPC) && w.size < 1<<16:
			w.size *= 2
			continue
		case errors.Is(err, ebpf.ErrKeyNotExist):
			w.done = true
		case err != nil:
			return fmt.Errorf("look through flows: %w", err)
		}
		for i := range n {
			if !s.limits.expired(&conns[i], w.protocol(&keys[i]), now) {
				w.alive++
			} else if err := w.remove(s.limits, &keys[i], now); err != nil {
				return err
			}
		}
	}
	return nil
}

// remove takes a flow out if it is still idle. A packet may begin the flow anew
// at any moment: what was taken out is looked at, and put back if it is alive,
// which takes a few microseconds, less than an answer needs to come. Should the
// programs have made a new entry meanwhile, that one stays.
func (w *flowWalk[K]) remove(l flowLimits, key *K, now uint32) error {
	var c bpfobj.PodConn
	err := w.m.Lookup(key, &c)
	if err == nil && !l.expired(&c, w.protocol(key), now) {
		w.alive++
		return nil
	}
	if err == nil {
		err = w.m.LookupAndDelete(key, &c)
	}
	if err == nil && !l.expired(&c, w.protocol(key), now) {
		w.alive++
		if err = w.m.Update(key, &c, ebpf.UpdateNoExist); errors.Is(err, ebpf.ErrKeyExist) {
			err = nil
		}
	}
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("remove an idle flow: %w", err)
	}
	return nil
}

// FlowUsage tells how many flows there were at the end of the last complete
// walk; nothing before the first.
func (d *DataPath) FlowUsage() map[string]policymap.Usage { return maps.Clone(d.sweep.usage) }

// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/policymap"
)

// VerdictCounts returns the verdicts on new flows of the pod in a slot, by direction and verdict,
// summed over all CPUs.
func (d *DataPath) VerdictCounts(slot uint32) (flows [2][2]uint64, err error) {
	var cpus []bpfobj.PodVerdictCount
	if err := d.objects.VerdictCounts.Lookup(slot, &cpus); err != nil {
		return flows, fmt.Errorf("read the verdicts of slot %d: %w", slot, err)
	}
	for _, c := range cpus {
		for id, n := range c.Flows {
			flows[id/2][id%2] += n
		}
		for dir, n := range c.Limited {
			flows[dir][model.Deny] += n
		}
	}
	return flows, nil
}

// ResetVerdictCounts sets the counts of a slot to zero. Call it before another pod gets the slot.
func (d *DataPath) ResetVerdictCounts(slot uint32) error {
	d.limiting.Lock()
	defer d.limiting.Unlock()
	limited, err := d.limitedIn(slot)
	if err == nil && limited > 0 {
		err = d.addFormer(limited)
	}
	if err == nil {
		err = d.objects.VerdictCounts.Put(slot, make([]bpfobj.PodVerdictCount, ebpf.MustPossibleCPU()))
	}
	if err != nil {
		return fmt.Errorf("reset the verdicts of slot %d: %w", slot, err)
	}
	return nil
}

// limitedIn returns the number of denied flows of a slot whose events were over the budget.
func (d *DataPath) limitedIn(slot uint32) (n uint64, err error) {
	var cpus []bpfobj.PodVerdictCount
	if err := d.objects.VerdictCounts.Lookup(slot, &cpus); err != nil {
		return 0, err
	}
	for _, c := range cpus {
		n += c.Limited[model.Ingress] + c.Limited[model.Egress]
	}
	return n, nil
}

// addFormer keeps a number of discarded events whose slot is reset.
func (d *DataPath) addFormer(n uint64) error {
	var cpus []bpfobj.PodEventCount
	if err := d.objects.EventLosses.Lookup(bpfobj.EventsFormer, &cpus); err != nil {
		return err
	}
	cpus[0].Events += n
	return d.objects.EventLosses.Put(bpfobj.EventsFormer, cpus)
}

// findSlots finds the slots that an earlier process used.
func (d *DataPath) findSlots() error {
	words := make([]byte, 8*bpfobj.Slots)
	if _, err := d.slots.ReadAt(words, 0); err != nil {
		return fmt.Errorf("read map slots: %w", err)
	}
	for slot := range bpfobj.Slots {
		n, err := d.limitedIn(slot)
		if err != nil {
			return fmt.Errorf("read the verdicts of slot %d: %w", slot, err)
		}
		if n > 0 || binary.NativeEndian.Uint64(words[8*slot:]) != 0 {
			d.useSlot(slot)
		}
	}
	return nil
}

// useSlot makes LostEvents read the counts of a slot.
func (d *DataPath) useSlot(slot uint32) {
	d.limiting.Lock()
	defer d.limiting.Unlock()
	d.slotsUsed = max(d.slotsUsed, slot+1)
}

// Counters returns the number of packets by counter, summed over all CPUs. Verdicts are the sum over their causes.
func (d *DataPath) Counters() ([bpfobj.Counters]uint64, error) {
	d.counting.Lock()
	defer d.counting.Unlock()
	var totals [bpfobj.Counters]uint64
	for n, id := range d.verdictOf {
		flows, err := d.causeCount(n)
		if err != nil {
			return totals, err
		}
		totals[id] += flows
	}
	for id := range totals {
		var cpus []bpfobj.PodCounter
		if err := d.objects.PodMaps.Counters.Lookup(uint32(id), &cpus); err != nil {
			return totals, fmt.Errorf("read counter %d: %w", id, err)
		}
		for _, c := range cpus {
			totals[id] += c.Packets
		}
	}
	return totals, nil
}

// executeCauses writes what the numbers of causes stand for. A number that gets another meaning counts from 0 on.
func (d *DataPath) executeCauses(w *policymap.Writes) error {
	o := &d.objects
	var keys []bpfobj.PodCauseKey
	var causes []policymap.Cause
	for _, c := range w.Causes {
		if c.Fresh {
			if err := d.renewCount(c.Number, verdictID(c.Cause)); err != nil {
				return fmt.Errorf("reset the counter of cause %d: %w", c.Number, err)
			}
		}
		keys, causes = append(keys, bpfobj.PodCauseKey{Cause: c.Number}), append(causes, c.Cause)
	}
	if e := putAll(d, o.PodMaps.Causes, keys, causes); e != nil {
		return fmt.Errorf("write cause %d: %w", keys[e.at].Cause, e.err)
	}
	indices, blocks := make([]uint32, len(w.Blocks)), make([]bpfobj.PodCauseBlock, len(w.Blocks))
	for i, b := range w.Blocks {
		indices[i], blocks[i].Cause = b.Index, b.Block
	}
	if e := putAll(d, o.CauseBlocks, indices, blocks); e != nil {
		return fmt.Errorf("write block %d of causes: %w", indices[e.at], e.err)
	}
	return nil
}

// verdictID returns the counter of the verdict of a cause.
func verdictID(c policymap.Cause) int { return int(c.Direction&1)*2 + int(c.Verdict&1) }

// renewCount lets a number count for another cause, from 0 on. What it has counted stays in the verdicts of the node.
func (d *DataPath) renewCount(n uint32, id int) error {
	d.counting.Lock()
	defer d.counting.Unlock()
	o := &d.objects
	flows, err := d.causeCount(n)
	if err != nil {
		return err
	}
	if was, known := d.verdictOf[n]; known && flows > 0 {
		var cpus []bpfobj.PodCounter
		if err := o.PodMaps.Counters.Lookup(uint32(was), &cpus); err != nil {
			return err
		}
		cpus[0].Packets += flows
		if err := o.PodMaps.Counters.Put(uint32(was), cpus); err != nil {
			return err
		}
	}
	if flows > 0 {
		if err := o.CauseCounts.Put(n, make([]bpfobj.PodCauseCount, ebpf.MustPossibleCPU())); err != nil {
			return err
		}
	}
	d.verdictOf[n] = id
	return nil
}

// knowCauses reads to which verdict each number belongs.
func (d *DataPath) knowCauses() error {
	d.verdictOf = make(map[uint32]int)
	for id := range bpfobj.CountEgressAllow + 1 {
		d.verdictOf[bpfobj.CauseOther+uint32(id)] = id
	}
	for n := bpfobj.CauseSelf; n < bpfobj.CauseFirst; n++ {
		c := policymap.FixedCause(n)
		d.verdictOf[n] = int(c.Cause.Direction)*2 + int(c.Verdict)
	}
	return ReadMap(d.objects.PodMaps.Causes, func(k bpfobj.PodCauseKey, c policymap.Cause) {
		if k.Cause >= bpfobj.CauseFirst && k.Cause < bpfobj.Causes {
			d.verdictOf[k.Cause] = verdictID(c)
		}
	})
}

// executeDefaults writes the causes of verdicts by default.
func (d *DataPath) executeDefaults(w *policymap.Writes) error {
	places := keysOf(w.Defaults, func(c bpfobj.PodTableCause) uint32 { return policymap.PlaceOfTable(c.Table) })
	if e := putAll(d, d.objects.TableCauses, places, w.Defaults); e != nil {
		return fmt.Errorf("write the causes of table %d: %w", w.Defaults[e.at].Table, e.err)
	}
	return nil
}

func (d *DataPath) dropCauses(w *policymap.Writes) error {
	keys := keysOf(w.DropCauses, func(n uint32) bpfobj.PodCauseKey { return bpfobj.PodCauseKey{Cause: n} })
	if e := dropAll(d, d.objects.PodMaps.Causes, keys); e != nil {
		return fmt.Errorf("remove cause %d: %w", w.DropCauses[e.at], e.err)
	}
	return nil
}

// readCauses reads the maps by which flows are counted for their causes, without the counters.
func (d *DataPath) readCauses(e *policymap.Entries) error {
	o := &d.objects
	return errors.Join(
		ReadMap(o.PodMaps.Causes, func(k bpfobj.PodCauseKey, c policymap.Cause) { e.Causes[k.Cause] = c }),
		ReadMap(o.CauseBlocks, func(n uint32, b bpfobj.PodCauseBlock) {
			if b.Cause != (policymap.CauseBlock{}) {
				e.Blocks[n] = b.Cause
			}
		}),
		ReadMap(o.TableCauses, func(n uint32, c bpfobj.PodTableCause) {
			if c != (bpfobj.PodTableCause{}) {
				e.Defaults[n] = c
			}
		}))
}

// CauseCounts returns the number of new flows that each of these numbers of causes has counted. It may run beside all
// other methods but Close.
func (d *DataPath) CauseCounts(numbers []uint32) (map[uint32]uint64, error) {
	flows := make(map[uint32]uint64, len(numbers))
	for _, n := range numbers {
		var err error
		if flows[n], err = d.causeCount(n); err != nil {
			return nil, err
		}
	}
	return flows, nil
}

func (d *DataPath) causeCount(n uint32) (flows uint64, err error) {
	var cpus []bpfobj.PodCauseCount
	if err := d.objects.CauseCounts.Lookup(n, &cpus); err != nil {
		return 0, fmt.Errorf("read the counter of cause %d: %w", n, err)
	}
	for _, c := range cpus {
		flows += c.Flows
	}
	return flows, nil
}

// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/cilium/ebpf/ringbuf"

	"github.com/isthmus-net/isthmus/linux/bpfobj"
)

// lookAtEvents is the interval between reads of the ring: the programs do not wake the reader.
const lookAtEvents = 200 * time.Millisecond

// ReadEvents calls f with all unread events and then with new ones, until the context is done
// and the ring is empty. Each call gets a batch, which f must not keep. Only one reader may
// run. Other methods of the DataPath may run meanwhile, except Close.
func (d *DataPath) ReadEvents(ctx context.Context, f func(records [][]byte)) error {
	ring, err := ringbuf.NewReader(d.objects.Events)
	if err != nil {
		return fmt.Errorf("open the event ring: %w", err)
	}
	defer ring.Close()
	var batch [][]byte
	for ctx.Err() == nil {
		if batch, err = readBatch(ring, batch[:0]); err != nil {
			return fmt.Errorf("read the event ring: %w", err)
		}
		if len(batch) > 0 {
			f(batch)
		}
		if len(batch) < eventBatch { // the ring is empty
			select {
			case <-ctx.Done():
			case <-time.After(lookAtEvents):
			}
		}
	}
	// Read only what is there now: during a flood the ring may never be empty.
	for rest := ring.AvailableBytes(); rest > 0; {
		if batch, err = readBatch(ring, batch[:0]); err != nil {
			return fmt.Errorf("read the event ring: %w", err)
		}
		if len(batch) == 0 {
			return nil
		}
		f(batch)
		for _, raw := range batch {
			rest -= len(raw) + eventHeader
		}
	}
	return nil
}

// eventHeader is the size of the kernel's header of each record in the ring, in bytes.
const eventHeader = 8

// eventBatch is the maximum number of events in one call of f.
const eventBatch = 256

func readBatch(ring *ringbuf.Reader, batch [][]byte) ([][]byte, error) {
	ring.SetDeadline(time.Unix(1, 0)) // do not wait
	for len(batch) < eventBatch {
		r, err := ring.Read()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if err != nil {
			return batch, err
		}
		batch = append(batch, r.RawSample)
	}
	return batch, nil
}

// LostEvents returns the number of events that the programs have discarded since they were
// first loaded. limited counts those over the budget of their pod, lost those that found the
// ring full.
func (d *DataPath) LostEvents() (limited, lost uint64, err error) {
	d.limiting.Lock()
	defer d.limiting.Unlock()
	for id, total := range map[uint32]*uint64{bpfobj.EventsLimited: &limited, bpfobj.EventsFormer: &limited, bpfobj.EventsLost: &lost} {
		var cpus []bpfobj.PodEventCount
		if err := d.objects.EventLosses.Lookup(id, &cpus); err != nil {
			return 0, 0, fmt.Errorf("read counter %d of lost events: %w", id, err)
		}
		for _, c := range cpus {
			*total += c.Events
		}
	}
	for slot := range d.slotsUsed {
		n, err := d.limitedIn(slot)
		if err != nil {
			return 0, 0, fmt.Errorf("read the verdicts of slot %d: %w", slot, err)
		}
		limited += n
	}
	return limited, lost, nil
}

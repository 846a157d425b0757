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

// lookAtEvents is how often the ring is looked at: the programs wake nobody up.
const lookAtEvents = 200 * time.Millisecond

// ReadEvents calls f with every event that the programs wrote and nobody has read,
// then with those that come, to the last before the context is done. Each call has
// what came at once; f must not keep it. There must be one reader only; the DataPath's other
// methods may be called meanwhile, but for Close.
func (d *DataPath) ReadEvents(ctx context.Context, f func(records [][]byte)) error {
	ring, err := ringbuf.NewReader(d.objects.Events)
	if err != nil {
		return fmt.Errorf("open the ring of events: %w", err)
	}
	defer ring.Close()
	var batch [][]byte
	for ctx.Err() == nil {
		if batch, err = readBatch(ring, batch[:0]); err != nil {
			return fmt.Errorf("read the ring of events: %w", err)
		}
		if len(batch) > 0 {
			f(batch)
		}
		if len(batch) < eventBatch { // that was all of it
			select {
			case <-ctx.Done():
			case <-time.After(lookAtEvents):
			}
		}
	}
	// No more than is there now: there may be a flood.
	for rest := ring.AvailableBytes(); rest > 0; {
		if batch, err = readBatch(ring, batch[:0]); err != nil {
			return fmt.Errorf("read the ring of events: %w", err)
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

// eventHeader is what the kernel puts before each record in the ring.
const eventHeader = 8

// eventBatch bounds what is handed over at once.
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

// LostEvents are how many events were not written since the programs were first
// loaded: beyond the budget of their pod, and because nobody had read the ring.
func (d *DataPath) LostEvents() (limited, lost uint64, err error) {
	for id, total := range map[uint32]*uint64{bpfobj.EventsLimited: &limited, bpfobj.EventsLost: &lost} {
		var cpus []bpfobj.PodEventCount
		if err := d.objects.EventLosses.Lookup(id, &cpus); err != nil {
			return 0, 0, fmt.Errorf("read counter %d of events: %w", id, err)
		}
		for _, c := range cpus {
			*total += c.Events
		}
	}
	return limited, lost, nil
}

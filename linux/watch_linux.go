// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/events"
)

// Watch implements dataplane.Watcher.
func (b *Backend) Watch(ctx context.Context, f func([]model.FlowEvent)) error {
	return b.path.ReadEvents(ctx, func(records [][]byte) {
		now, clock := time.Now(), monotonic()
		list := make([]model.FlowEvent, 0, len(records))
		for _, raw := range records {
			r, err := events.Decode(raw)
			if err != nil {
				b.log.Warn("read flow event", "error", err)
				continue
			}
			list = append(list, b.history.Resolve(r, now.Add(r.Time-clock)))
		}
		f(list)
	})
}

// recordVersion records for Watch the policy that the maps will hold.
func (b *Backend) recordVersion() {
	slots := make(map[uint32]events.Slot)
	for n, id := range b.layout.Holders() {
		word := b.layout.Slots[n]
		slots[n] = events.Slot{Endpoint: id, Pod: b.pods[id], Table: word.Table, Epoch: word.Epoch}
	}
	b.history.Add(events.Version{From: monotonic(), Slots: slots, State: b.layout.State()})
}

// monotonic returns the time of the clock that the programs use.
func monotonic() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) != nil {
		return 0 // clock_gettime does not fail for this clock
	}
	return time.Duration(t.Nano())
}

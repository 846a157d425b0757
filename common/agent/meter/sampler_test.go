// SPDX-License-Identifier: Apache-2.0

package meter_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-net/isthmus/common/agent/meter"
	"github.com/isthmus-net/isthmus/common/dataplane"
)

// slow is a data path whose counters take some time to read.
type slow struct {
	takes   time.Duration
	err     error
	reads   atomic.Int32
	at      atomic.Int32
	highest atomic.Int32
}

func (s *slow) read(ctx context.Context) (dataplane.Counters, error) {
	n := s.reads.Add(1)
	s.highest.Store(max(s.highest.Load(), s.at.Add(1)))
	defer s.at.Add(-1)
	select {
	case <-time.After(s.takes):
	case <-ctx.Done():
		return dataplane.Counters{}, ctx.Err()
	}
	return dataplane.Counters{Repairs: uint64(n)}, s.err
}

// TestSamplerFresh checks that cheap counters are read for every caller.
func TestSamplerFresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s meter.Sampler[dataplane.Counters]
		path := &slow{takes: time.Millisecond}
		for n := uint64(1); n <= 3; n++ {
			if got := s.Sample(time.Second, path.read); got.Counters.Repairs != n || got.Err != nil || !got.At.Equal(time.Now()) {
				t.Errorf("call %d: %d repairs at %s, %v", n, got.Counters.Repairs, got.At, got.Err)
			}
		}
	})
}

// TestSamplerSlow checks a read that takes 5 seconds. It delays no caller for longer than the
// caller's limit, does not run twice at a time, and takes at most a twentieth of the time. Its last
// result stays available.
func TestSamplerSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s meter.Sampler[dataplane.Counters]
		path := &slow{takes: 5 * time.Second}
		first := s.Sample(time.Second, path.read)
		if first.Err == nil || !first.At.IsZero() {
			t.Errorf("before the first read: %+v", first)
		}
		time.Sleep(10 * time.Second)
		for range 1000 {
			began := time.Now()
			got := s.Sample(time.Second, path.read)
			if got.Err != nil || got.Counters.Repairs == 0 || time.Since(got.At) > 115*time.Second {
				t.Fatalf("%d repairs, %s old, %v", got.Counters.Repairs, time.Since(got.At), got.Err)
			}
			if waited := time.Since(began); waited > time.Second {
				t.Fatalf("waited %s", waited)
			}
			time.Sleep(time.Second)
		}
		if n := path.reads.Load(); n < 8 || n > 12 || path.highest.Load() != 1 {
			t.Errorf("%d reads in 1,000 seconds, %d at a time", n, path.highest.Load())
		}
		time.Sleep(time.Minute) // for the read that is under way
	})
}

// TestSamplerError checks that the counters of an earlier read stay beside the error of the last
// one, and that a hanging read ends.
func TestSamplerError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s meter.Sampler[dataplane.Counters]
		path := &slow{}
		s.Sample(time.Second, path.read)
		path.err = errors.New("broken")
		if got := s.Sample(time.Second, path.read); !errors.Is(got.Err, path.err) || got.Counters.Repairs != 1 || got.At.IsZero() {
			t.Errorf("after an error: %+v", got)
		}
		path.err, path.takes = nil, time.Hour
		s.Sample(time.Second, path.read)
		time.Sleep(time.Minute)
		if got := s.Sample(time.Second, path.read); !errors.Is(got.Err, context.DeadlineExceeded) || got.Counters.Repairs != 1 {
			t.Errorf("after a read that hangs: %+v", got)
		}
		path.takes = 0
		time.Sleep(time.Hour)
		if got := s.Sample(time.Second, path.read); got.Err != nil || got.Counters.Repairs == 1 {
			t.Errorf("after the repair: %+v", got)
		}
	})
}

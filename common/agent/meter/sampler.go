// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"context"
	"fmt"
	"sync"
	"time"
)

const (
	// readTimeout bounds one read. HNS answers one call per pod, one after the other.
	readTimeout = 30 * time.Second
	// cheap is the maximum duration of a read without a pause after it. After a longer one the Sampler
	// pauses for share times its duration.
	cheap = 100 * time.Millisecond
	share = 20
)

// Sample is what a data path counted at a time.
type Sample[T any] struct {
	Counters T
	// At is zero if the counters were never read.
	At time.Time
	// Err is the error of the last read. The counters are then those of an earlier one.
	Err error
}

// Sampler reads the counters of a data path, at most once at a time. A caller that does not want to wait
// for a slow read gets the counters of the last one. It is safe for concurrent use.
type Sampler[T any] struct {
	mutex   sync.Mutex
	last    Sample[T]
	next    time.Time     // no read begins before
	reading chan struct{} // closed at the end of the read that is under way; nil if there is none
}

// Sample returns the counters that read returns, or those of the last read: if another one is not due, or
// does not end within wait.
func (s *Sampler[T]) Sample(wait time.Duration, read func(context.Context) (T, error)) Sample[T] {
	s.mutex.Lock()
	done := s.reading
	if done == nil && !time.Now().Before(s.next) {
		done = make(chan struct{})
		s.reading = done
		go s.read(read, done)
	}
	s.mutex.Unlock()
	if done != nil {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-done:
		case <-timer.C:
		}
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.last.At.IsZero() && s.last.Err == nil {
		return Sample[T]{Err: fmt.Errorf("the first read has not ended within %s", wait)}
	}
	return s.last
}

func (s *Sampler[T]) read(read func(context.Context) (T, error), done chan struct{}) {
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	began := time.Now()
	c, err := read(ctx)
	now := time.Now()
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if err == nil {
		s.last = Sample[T]{Counters: c, At: now}
	} else {
		s.last.Err = err
	}
	s.next = time.Time{}
	if took := now.Sub(began); took > cheap {
		s.next = now.Add(share * took)
	}
	s.reading = nil
	close(done)
}

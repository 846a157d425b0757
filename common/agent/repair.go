// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"time"

	"github.com/isthmus-net/isthmus/common/endpoint"
)

// repairs is work that did not succeed and is tried again, and the tombstones
// that go when their time has come.
type repairs struct {
	at    time.Time // of the next attempt; zero if there is nothing to repair
	delay time.Duration
	purge time.Time // of the next tombstone; zero if there is none
	// unknown are the errors about attachments without a record.
	unknown []error
}

// later plans an attempt, each time after a longer delay.
func (r *repairs) later(c Config) {
	if !r.at.IsZero() {
		return
	}
	r.delay = min(max(2*r.delay, c.RetryMin), c.RetryMax)
	r.at = time.Now().Add(r.delay)
}

// purgeAt plans the removal of a tombstone.
func (r *repairs) purgeAt(t time.Time) {
	if r.purge.IsZero() || t.Before(r.purge) {
		r.purge = t
	}
}

// repair tries what failed before: to remove endpoints, to make attachments
// complete, to remove attachments without a record.
func (l *loop) repair() {
	r := &l.repairs
	if r.at.IsZero() || time.Now().Before(r.at) {
		return
	}
	r.at = time.Time{}
	for _, e := range l.sorted() {
		switch {
		case e.leaving:
			l.rollBack(e)
		case e.State == endpoint.Ready && e.problem != nil:
			l.adopt(e)
		}
	}
	if len(r.unknown) > 0 {
		l.removeUnknown()
	}
	if r.at.IsZero() {
		r.delay = 0
	}
}

// purge removes the tombstones whose quarantine is over.
func (l *loop) purge() {
	now := time.Now()
	if l.repairs.purge.IsZero() || now.Before(l.repairs.purge) {
		return
	}
	l.repairs.purge = time.Time{}
	for id, e := range l.entries {
		if e.State != endpoint.Released {
			continue
		}
		if end := e.ReleasedAt.Add(l.cfg.Quarantine); now.Before(end) {
			l.repairs.purgeAt(end)
			continue
		}
		l.step("purge")
		if err := l.store.Remove(id); err != nil {
			e.problem = err
			l.log.Error("purge endpoint record", "endpoint", id, "error", err)
			l.repairs.purgeAt(now.Add(l.cfg.RetryMax))
			continue
		}
		delete(l.entries, id)
	}
}

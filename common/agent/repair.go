// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"time"

	"github.com/isthmus-net/isthmus/common/endpoint"
)

// repairs schedules retries of failed work and the removal of tombstones.
type repairs struct {
	at    time.Time // time of the next attempt; zero if nothing needs repair
	delay time.Duration
	purge time.Time // time when the next tombstone expires; zero if none exists
	// unknown holds the errors about attachments without a record.
	unknown []error
}

// later schedules a retry with exponential back-off.
func (r *repairs) later(c Config) {
	if !r.at.IsZero() {
		return
	}
	r.delay = min(max(2*r.delay, c.RetryMin), c.RetryMax)
	r.at = time.Now().Add(r.delay)
}

// purgeAt schedules the removal of a tombstone.
func (r *repairs) purgeAt(t time.Time) {
	if r.purge.IsZero() || t.Before(r.purge) {
		r.purge = t
	}
}

// repair retries failed work: removing endpoints, completing attachments, and removing attachments without
// a record.
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

// SPDX-License-Identifier: Apache-2.0

package agent

import "time"

// idleness schedules background work of the Backend.
type idleness struct {
	busy time.Time // when the last request or snapshot arrived
	next time.Time // do not run before
}

// idle lets the Backend do background work when the loop has been idle for a while. One call is short, so
// that requests do not wait long.
func (l *loop) idle() {
	now := time.Now()
	if l.backend == nil || l.enforced.inForce == nil || now.Sub(l.idleness.busy) < tick || now.Before(l.idleness.next) {
		return
	}
	l.agent.heartbeat()
	l.audit()
	ctx, cancel := l.opContext()
	defer cancel()
	more, err := l.backend.Idle(ctx)
	switch {
	case err != nil:
		l.log.Warn("run background work of the data path; retrying", "error", err)
		l.idleness.next = now.Add(l.cfg.RetryMax)
	case more:
		l.idleness.next = now
	default:
		l.idleness.next = now.Add(tick)
		l.notePressure()
	}
}

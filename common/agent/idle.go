// SPDX-License-Identifier: Apache-2.0

package agent

import "time"

// idleness is when the Backend may do work that can wait.
type idleness struct {
	busy time.Time // when something last came in
	next time.Time // not before
}

// idle lets the Backend work if nothing has come in for a while. One call is
// short, so that whatever comes in does not wait long.
func (l *loop) idle() {
	now := time.Now()
	if l.backend == nil || l.enforced.inForce == nil || now.Sub(l.idleness.busy) < tick || now.Before(l.idleness.next) {
		return
	}
	l.agent.heartbeat()
	ctx, cancel := l.opContext()
	defer cancel()
	more, err := l.backend.Idle(ctx)
	switch {
	case err != nil:
		l.log.Warn("work of the data path that can wait; it is tried again", "error", err)
		l.idleness.next = now.Add(l.cfg.RetryMax)
	case more:
		l.idleness.next = now
	default:
		l.idleness.next = now.Add(tick)
		l.notePressure()
	}
}

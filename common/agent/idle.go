// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
)

// idleness schedules background work of the Backend.
type idleness struct {
	busy time.Time // when the last request arrived
	next time.Time // do not run before
}

// idle lets the Backend do background work once per tick, also while requests arrive. One call is short, so that
// requests do not wait long. Work that can wait for them does: the pool, and what is left after a call.
func (l *loop) idle() {
	now := time.Now()
	if l.enforced.inForce == nil || now.Before(l.idleness.next) {
		return
	}
	l.agent.heartbeat()
	quiet := now.Sub(l.idleness.busy) >= tick
	if quiet {
		l.pool.Idle()
	}
	ctx, cancel := l.opContext()
	defer cancel()
	more, err := l.backend.Idle(ctx)
	if d, ok := l.backend.(dataplane.Dependent); ok && l.enforced.at.IsZero() && d.Outdated() {
		l.enforced.changed(now, l.cfg)
	}
	switch {
	case err != nil:
		l.log.Warn("run background work of the data path; retrying", "error", err)
		l.idleness.next = now.Add(l.cfg.RetryMax)
	case more && quiet:
		l.idleness.next = now
	default:
		l.idleness.next = now.Add(tick)
		l.notePressure()
	}
}

// replaceEvery is the interval in which the Backend follows interfaces of another CNI plugin: documents promise half a
// second. An error does not make it longer, because a new interface has no policy before.
const replaceEvery = 400 * time.Millisecond

// replacing schedules Follow of the Backend.
type replacing struct {
	next   time.Time // zero before the first call
	failed string    // the last error; "" if there was none
	since  time.Time // since when calls fail
}

// replaceGrace is how long calls of Follow may fail before that is a problem: the next attempt follows at once.
const replaceGrace = 2 * time.Second

// problems says that new interfaces may have no policy.
func (r *replacing) problems() []string {
	if r.failed == "" || time.Since(r.since) < replaceGrace {
		return nil
	}
	return []string{"interfaces that the other CNI plugin makes again may have no policy: " + strings.ReplaceAll(r.failed, "\n", "; ") + "; the agent retries twice a second"}
}

// follow lets the Backend follow interfaces that another CNI plugin makes again, also while requests arrive.
func (l *loop) follow() {
	now := time.Now()
	f, ok := l.backend.(dataplane.Follower)
	if !ok || !l.cfg.PolicyOnly || now.Before(l.replacing.next) {
		return
	}
	l.replacing.next = now.Add(replaceEvery)
	l.agent.heartbeat()
	ctx, cancel := l.opContext()
	defer cancel()
	text := ""
	if err := f.Follow(ctx); err != nil {
		text = err.Error()
	}
	if l.replacing.failed == "" {
		l.replacing.since = now
	}
	if text != "" && text != l.replacing.failed {
		l.log.Warn("follow the interfaces of another CNI plugin; retrying", "error", text)
	}
	l.replacing.failed = text
}

// pressed is the usage of a map, in percent, from which the agent reports it.
const pressed = 90

// pressureWait is how long the loop waits for the counters. Where they take longer it uses those of the last read.
const pressureWait = 50 * time.Millisecond

// notePressure reports maps of the data path that are nearly full, before a change fails for lack of room.
func (l *loop) notePressure() {
	n := l.agent.sampler.Sample(pressureWait, l.backend.Counters)
	if n.Err != nil {
		l.log.Warn("read the usage of maps", "error", n.Err)
		return
	}
	found := pressure(n.Counters.Maps)
	for _, p := range found {
		if !slices.Contains(l.pressure, p) {
			l.log.Warn("a map of the data path is nearly full", "problem", p)
		}
	}
	l.pressure = found
}

func pressure(all map[string]dataplane.MapUsage) []string {
	var found []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if u := all[name]; u.Capacity > 0 && u.Entries*100 >= u.Capacity*pressed {
			// The text has no counts, so that it stays the same while the problem lasts.
			found = append(found, fmt.Sprintf("map %s has reached %d %% of its %d entries: increase it with --map-entries before it is full",
				name, pressed, u.Capacity))
		}
	}
	return found
}

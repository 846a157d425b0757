// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"slices"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/endpoint"
	"github.com/isthmus-net/isthmus/common/model"
)

// maxLogged bounds the lines that one audit logs.
const maxLogged = 20

// audit compares what the system holds with what it should, once in
// Config.AuditEvery while nothing else is to be done, and puts right what
// differs: somebody else wrote, the service restarted, a write landed late.
func (l *loop) audit() {
	now := time.Now()
	if l.cfg.AuditEvery == 0 || now.Sub(l.audited) < l.cfg.AuditEvery || l.enforced.failed != nil || !l.enforced.at.IsZero() {
		return // work that failed is repeated anyway
	}
	l.audited = now
	found, broken, unknown, err := l.compare()

	if err != nil {
		l.agent.metrics.audits.WithLabelValues("error").Inc()
		l.log.Warn("audit; it is tried again", "error", err)
		return
	}
	due := l.contested.note(found, now, l.cfg.AuditEvery)
	if len(found) == 0 {
		l.agent.metrics.audits.WithLabelValues("clean").Inc()
		return
	}
	l.agent.metrics.audits.WithLabelValues("drift").Inc()
	for i, d := range found {
		l.agent.metrics.drifts.WithLabelValues(d.Object).Inc()
		if i < maxLogged {
			l.log.Warn("what is installed is not what was intended; it is repaired", "object", d.Object, "endpoint", d.Endpoint, "detail", d.Detail)
		}
	}
	if !due {
		l.log.Warn("another process keeps changing what was found different; the repair waits", "differences", len(found))
		return
	}
	for _, e := range broken {
		l.adopt(e)
	}
	if unknown {
		_, err = l.removeUnknown() // logs
	}
	if failed := l.enforce(nil); failed == nil && err == nil && !l.anyProblem(broken) {
		l.agent.metrics.repaired.Add(float64(len(found)))
	}
}

// Things that audits find different again and again are contested: another process
// changes them back. After contestedAfter repairs they are a problem, and are repaired
// after pauses that double, up to longestTruce intervals of audits.
const (
	contestedAfter = 3
	longestTruce   = 8
	// settledAfter is after how many intervals without a difference a thing is no
	// longer contested.
	settledAfter = 10
)

// contest is what is known of the things that audits found different.
type contest map[contestedThing]*contested

type contestedThing struct {
	object   string
	endpoint model.EndpointID
}

// contested is how often a thing was found different and repaired since it was last
// settled.
type contested struct {
	repairs int
	repair  time.Time // not before
	settle  time.Time // if it is not found different until then
	detail  string
}

// note counts what an audit has found, and reports whether something of it is to be
// repaired now.
func (c contest) note(found []dataplane.Drift, now time.Time, every time.Duration) (due bool) {
	for thing, was := range c {
		if now.After(was.settle) {
			delete(c, thing)
		}
	}
	seen := make(map[contestedThing]bool)
	for _, d := range found {
		thing := contestedThing{d.Object, d.Endpoint}
		if seen[thing] {
			continue // several entries of one object
		}
		seen[thing] = true
		is := c[thing]
		if is == nil {
			is = &contested{}
			c[thing] = is
		}
		is.detail, is.settle = d.Detail, now.Add(settledAfter*every)
		if now.Before(is.repair) {
			continue
		}
		due = true
		is.repairs++
		if over := is.repairs - contestedAfter; over > 0 {
			pause := longestTruce * every
			if over < 3 {
				pause = every << over
			}
			is.repair = now.Add(pause - every/2) // audits are not on the dot
			is.settle = is.repair.Add(settledAfter * every)
		}
	}
	return due
}

// problems name what is contested.
func (c contest) problems() (all []string) {
	for thing, is := range c {
		if is.repairs <= contestedAfter {
			continue
		}
		of := ""
		if thing.endpoint != "" {
			of = fmt.Sprintf(" of endpoint %s", thing.endpoint)
		}
		all = append(all, fmt.Sprintf("audit: another process keeps changing %s%s: it was repaired %d times, last because of: %s; find that process and stop it",
			thing.object, of, is.repairs, is.detail))
	}
	slices.Sort(all)
	return all
}

// compare finds what differs: in the decisions, in attachments, which are
// returned too, and attachments that no record knows.
func (l *loop) compare() (found []dataplane.Drift, broken []*entry, unknown bool, err error) {
	ctx, cancel := l.opContext()
	defer cancel()
	l.step("audit")
	installed, err := l.backend.Endpoints(ctx)
	if err != nil {
		return nil, nil, false, fmt.Errorf("list attachments: %w", err)
	}
	problems := make(map[model.EndpointID][]string, len(installed))
	for _, i := range installed {
		problems[i.ID] = append(problems[i.ID], i.Problems...)
		if e := l.entries[i.ID]; e == nil || e.State == endpoint.Released {
			unknown = true
			found = append(found, dataplane.Drift{Object: "endpoint", Endpoint: i.ID, Detail: "no record knows it"})
		}
	}
	for _, e := range l.sorted() {
		if e.State != endpoint.Ready || !e.attached || e.leaving || e.problem != nil {
			continue // repair looks after those
		}
		list, there := problems[e.ID()]
		if !there {
			list = []string{"it is gone"}
		}
		for _, p := range list {
			found = append(found, dataplane.Drift{Object: "endpoint", Endpoint: e.ID(), Detail: p})
		}
		if len(list) > 0 {
			broken = append(broken, e)
		}
	}
	if a, ok := l.backend.(dataplane.Auditor); ok {
		more, err := a.Audit(ctx, l.enforced.inForce)
		if err != nil {
			return nil, nil, false, err
		}
		found = append(found, more...)
	}
	return found, broken, unknown, nil
}

func (l *loop) anyProblem(entries []*entry) bool {
	for _, e := range entries {
		if e.problem != nil {
			return true
		}
	}
	return false
}

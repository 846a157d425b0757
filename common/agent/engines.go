// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"slices"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/common/endpoint"
)

// engines are the policy engines of other projects on this node. The agent does not begin to enforce policy beside one.
// If it has endpoints it continues: it was there first, and the names by which engines are recognised are no proof.
type engines struct {
	due   time.Time
	found []string // one line each, with the remedy
}

// The intervals of looking for other engines, before and after the data path is open.
const (
	enginesRefused = 5 * time.Second
	enginesEvery   = time.Minute
)

// checkEngines looks for other policy engines when that is due.
func (l *loop) checkEngines() {
	now := time.Now()
	if l.cfg.OtherEngines == nil || now.Before(l.engines.due) {
		return
	}
	found, err := l.cfg.OtherEngines()
	if err != nil {
		found = []string{oneLine(err)}
	}
	if !slices.Equal(found, l.engines.found) {
		l.log.Warn("the policy engines of other projects on this node changed", "are", strings.Join(found, "; "))
	}
	l.engines.found, l.engines.due = found, now.Add(enginesEvery)
	if l.refused() != "" {
		l.engines.due = now.Add(enginesRefused)
	}
}

// refused returns the other engines beside which the agent does not open the data path, "" if it may.
func (l *loop) refused() string {
	if l.backend != nil {
		return ""
	}
	for _, e := range l.entries {
		if e.State != endpoint.Released {
			return ""
		}
	}
	return strings.Join(l.engines.found, "; ")
}

// whyNotOpen is the problem of a data path that is not open, and the remedy.
func (l *loop) whyNotOpen() (problem, remedy string) {
	if other := l.refused(); other != "" {
		return "no policy is enforced: " + other, "see isthmusctl status"
	}
	return "the addresses and pod ranges of node " + l.cfg.NodeName + " are not known yet", "wait until its Node object has addresses and podCIDRs"
}

// errNotOpen is the error while the data path is not open.
func (l *loop) errNotOpen() error {
	problem, remedy := l.whyNotOpen()
	return refuse(CodeTryAgain, remedy, "the data path is not open yet: %s", problem)
}

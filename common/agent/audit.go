// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
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

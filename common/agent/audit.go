// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/endpoint"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/report"
)

// driftEndpoint is the kind of the differences of attachments.
const driftEndpoint = "endpoint"

// maxLogged bounds the lines that one audit logs.
const maxLogged = 20

// inPod is an endpoint whose pod's network namespace differs from what the attachment wrote there. Nothing repairs it.
type inPod struct {
	entry  *entry
	detail string
}

// audit compares installed with intended state and repairs differences, once per Config.AuditEvery, also while
// requests arrive. Differences come from other processes, a restart of the network service, or a late write. While Apply
// fails for single endpoints it compares attachments only, and does not count as an audit: Apply compares decisions again anyway, or
// cannot. One endpoint must not keep the differences of all others.
func (l *loop) audit() {
	now := time.Now()
	f := &l.enforced
	if l.cfg.AuditEvery == 0 || f.inForce == nil || now.Sub(l.audited) < l.cfg.AuditEvery || dataplane.Concerns(f.failed, "") || !f.since.IsZero() {
		return // a failed Apply is retried anyway
	}
	l.audited = now
	l.restoreRecords()
	was := l.unrepaired
	found, broken, unknown, err := l.compare(f.failed == nil)
	if f.failed == nil || err != nil {
		l.agent.meter.Audited(now, len(found), err)
	}
	l.auditFailed = err
	if err != nil {
		l.log.Warn("audit the data path; retrying at the next interval", "error", err)
		return
	}
	changed := slices.DeleteFunc(slices.Clone(found), func(d dataplane.Drift) bool { return d.Object == driftEndpoint && has(was, d.Endpoint) })
	due := l.contested.note(changed, now, l.cfg.AuditEvery) || len(changed) < len(found) // nothing had repaired the others
	if len(found) == 0 {
		return
	}
	for i, d := range found {
		l.agent.meter.Drift(d.Object)
		if i < maxLogged {
			l.log.Warn("installed state differs from intended state; repairing", "object", d.Object, "endpoint", d.Endpoint, "detail", d.Detail)
		}
	}
	defer l.rememberAll(found)
	if !due {
		l.log.Warn("another process keeps changing installed state; repair is delayed", "differences", len(found))
		return
	}
	for _, e := range broken {
		l.adopt(e)
	}
	if unknown {
		_, err = l.removeUnknown() // logs the error
	}
	failed := l.enforce(nil)
	l.recheck()
	concerned := slices.ContainsFunc(found, func(d dataplane.Drift) bool {
		return dataplane.Concerns(failed, d.Endpoint) || has(l.unrepaired, d.Endpoint)
	})
	if !concerned && err == nil && !l.anyProblem(broken) {
		l.agent.meter.Repaired(len(found))
	}
}

// restoreRecords writes the records again that another process removed: the next agent would remove their attachments.
func (l *loop) restoreRecords() {
	for _, e := range l.sorted() {
		if e.State != endpoint.Ready || e.leaving {
			continue // the others end soon
		}
		wrote, err := l.store.Restore(e.Record)
		switch {
		case err != nil:
			l.log.Error("the record of a pod is missing, and cannot be written again: the next agent would remove its interface", "endpoint", e.ID(), "pod", e.Pod(), "error", err)
		case wrote:
			l.log.Warn("another process removed the record of a pod; it is written again", "endpoint", e.ID(), "pod", e.Pod())
		}
	}
}

// recheck finds which of the endpoints without policy are so after a repair.
func (l *loop) recheck() {
	if len(l.unrepaired) == 0 {
		return
	}
	ctx, cancel := l.opContext()
	defer cancel()
	if installed, err := l.backend.Endpoints(ctx); err == nil { // else the last findings stay, and the next audit reports the error
		l.unrepaired = l.bypassed(installed)
	}
}

// bypassed returns the endpoints whose packets may pass without a decision, or cannot pass at all.
func (l *loop) bypassed(installed []dataplane.Installed) (all []unenforced) {
	for _, i := range installed {
		if e := l.entries[i.ID]; i.Unenforced && e != nil && e.State == endpoint.Ready && !e.leaving && !has(all, i.ID) {
			all = append(all, unenforced{e, strings.Join(i.Problems, "; ")})
		}
	}
	return all
}

func has(all []unenforced, id model.EndpointID) bool {
	return slices.ContainsFunc(all, func(u unenforced) bool { return u.entry.ID() == id })
}

// rememberAll adds the first differences to those that status shows as repaired, unless they stayed.
func (l *loop) rememberAll(found []dataplane.Drift) {
	for _, d := range found[:min(len(found), maxLogged)] {
		if !has(l.unrepaired, d.Endpoint) {
			l.remember(d)
		}
	}
}

// remember adds a difference to those that status shows.
func (l *loop) remember(d dataplane.Drift) {
	what := d.Object + ": " + d.Detail
	if e := l.entries[d.Endpoint]; e != nil {
		what = fmt.Sprintf("%s of pod %s: %s", d.Object, e.Pod(), d.Detail)
	}
	l.agent.drifted.Add(what, time.Now())
}

// An object that audits find different again and again is contested: another process changes it back. After
// contestedAfter repairs the agent reports a problem. From then on it repairs after pauses that double, up
// to maxPause audit intervals. What lets packets pass that the State denies is repaired without pauses.
const (
	contestedAfter = 3
	maxPause       = 8
	// uncontestedAfter is the number of intervals without a difference after which an object is no longer
	// contested.
	uncontestedAfter = 10
)

// contest maps each object that audits found different to its history.
type contest map[contestedThing]*contested

type contestedThing struct {
	object   string
	endpoint model.EndpointID
}

// contested counts how often an object was found different and repaired.
type contested struct {
	repairs int
	repair  time.Time // do not repair before
	forget  time.Time // forget the object at this time unless an audit finds it different again
	detail  string
}

// note records the differences of one audit. It reports whether a repair is due now.
func (c contest) note(found []dataplane.Drift, now time.Time, every time.Duration) (due bool) {
	for thing, was := range c {
		if now.After(was.forget) {
			delete(c, thing)
		}
	}
	seen := make(map[contestedThing]bool)
	for _, d := range found {
		due = due || d.Open
		thing := contestedThing{d.Object, d.Endpoint}
		if seen[thing] {
			continue // one object may have several differences
		}
		seen[thing] = true
		is := c[thing]
		if is == nil {
			is = &contested{}
			c[thing] = is
		}
		is.detail, is.forget = d.Detail, now.Add(uncontestedAfter*every)
		if now.Before(is.repair) && !d.Open {
			continue
		}
		due = true
		is.repairs++
		if over := is.repairs - contestedAfter; over > 0 {
			pause := maxPause * every
			if over < 3 {
				pause = every << over
			}
			is.repair = now.Add(pause - every/2) // audits do not run exactly on time
			is.forget = is.repair.Add(uncontestedAfter * every)
		}
	}
	return due
}

// problems returns one line per contested object, sorted.
func (c contest) problems() (all []string) {
	for thing, is := range c {
		if is.repairs <= contestedAfter {
			continue
		}
		of := ""
		if thing.endpoint != "" {
			of = fmt.Sprintf(" of endpoint %s", thing.endpoint)
		}
		all = append(all, fmt.Sprintf("audit: another process keeps changing %s%s: repaired %d times, last difference: %s; find that process and stop it",
			thing.object, of, is.repairs, is.detail))
	}
	slices.Sort(all)
	return all
}

// compare returns all differences in attachments and, if that is wanted, in decisions. It also returns the entries whose
// attachments differ, and whether attachments without a record exist.
func (l *loop) compare(decisions bool) (found []dataplane.Drift, broken []*entry, unknown bool, err error) {
	ctx, cancel := l.opContext()
	defer cancel()
	l.step("audit")
	installed, err := l.backend.Endpoints(ctx)
	if err != nil {
		return nil, nil, false, fmt.Errorf("list attachments: %w", err)
	}
	l.unrepaired = l.bypassed(installed)
	problems, open := make(map[model.EndpointID][]string, len(installed)), make(map[model.EndpointID]bool)
	l.inPod = nil
	for _, i := range installed {
		problems[i.ID], open[i.ID] = append(problems[i.ID], i.Problems...), open[i.ID] || i.Unenforced
		if e := l.entries[i.ID]; e == nil || e.State == endpoint.Released {
			unknown = true
			found = append(found, dataplane.Drift{Object: driftEndpoint, Endpoint: i.ID, Open: i.Unenforced, Detail: "no endpoint record exists for it"})
			continue
		}
		for _, p := range i.InPod {
			l.inPod = append(l.inPod, inPod{l.entries[i.ID], p})
		}
	}
	for _, e := range l.sorted() {
		if e.State != endpoint.Ready || !e.attached || e.leaving || e.problem != nil {
			continue // repair handles these
		}
		list, there := problems[e.ID()]
		if !there {
			list = []string{"it does not exist"}
		}
		for _, p := range list {
			found = append(found, dataplane.Drift{Object: driftEndpoint, Endpoint: e.ID(), Open: open[e.ID()], Detail: p})
		}
		if len(list) > 0 {
			broken = append(broken, e)
		}
	}
	if a, ok := l.backend.(dataplane.Auditor); ok && decisions {
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

// checks finds pods that are not under policy, and repairs them before the next audit.
type checks struct {
	at time.Time // time of the last check
	// failed is the error of the last check, nil if it could look.
	failed error
	// broken are the endpoints that the last check found.
	broken []unenforced
	// contested counts repairs. A check repairs without pauses, because a pod must not stay without policy.
	contested contest
}

// unenforced is an endpoint whose packets may pass without a decision, or cannot pass at all.
type unenforced struct {
	entry  *entry
	detail string
}

// checkPolicy runs a check once per Config.CheckEvery, also while the loop is busy. Its findings remain problems
// until a later check does not find them.
func (l *loop) checkPolicy() {
	now := time.Now()
	c, ok := l.backend.(dataplane.Checker)
	if !ok || l.cfg.CheckEvery == 0 || now.Sub(l.checks.at) < l.cfg.CheckEvery {
		return
	}
	l.checks.at = now
	ctx, cancel := l.opContext()
	defer cancel()
	found, err := c.Check(ctx)
	if l.checks.failed = err; err != nil {
		l.log.Warn("check that all pods are under policy; retrying at the next interval", "error", err)
		return
	}
	before := len(l.checks.broken)
	l.checks.broken, l.unrepaired = nil, nil // this check is later than the last audit
	var broken []unenforced
	var drifts []dataplane.Drift
	for _, i := range found {
		e := l.entries[i.ID]
		if e == nil || e.State != endpoint.Ready || e.leaving {
			continue // audit and repair handle these
		}
		u := unenforced{e, strings.Join(i.Problems, "; ")}
		l.checks.broken = append(l.checks.broken, u)
		if e.attached && e.problem == nil { // repair retries the others
			broken = append(broken, u)
			drifts = append(drifts, dataplane.Drift{Object: driftEndpoint, Endpoint: i.ID, Detail: u.detail})
		}
	}
	logged := len(l.checks.broken) > before
	if l.cfg.AuditEvery > 0 {
		logged = l.checks.contested.note(drifts, now, l.cfg.CheckEvery)
	}
	l.repairBroken(broken, drifts, logged)
}

// repairBroken repairs what a check has found, with the differences in the same order. logged is false if the log had the same
// a short time ago.
func (l *loop) repairBroken(broken []unenforced, drifts []dataplane.Drift, logged bool) {
	if len(drifts) == 0 {
		return
	}
	for i, d := range drifts {
		l.agent.meter.Drift(d.Object)
		if i < maxLogged {
			l.remember(d)
		}
		if logged && i < maxLogged {
			l.log.Error("policy is not enforced on a pod", "endpoint", d.Endpoint, "pod", broken[i].entry.Pod(), "detail", d.Detail)
		}
	}
	if l.cfg.AuditEvery == 0 {
		return
	}
	failed := false
	for _, u := range broken {
		l.adopt(u.entry)
		failed = failed || u.entry.problem != nil
	}
	if l.enforced.failed == nil { // a failed Apply is retried anyway
		failed = l.enforce(nil) != nil || failed
	}
	if !failed && l.enforced.failed == nil {
		l.agent.meter.Repaired(len(drifts))
	}
}

// unenforced returns the findings of the last check and the last audit whose endpoints still exist, and the endpoints of pods with
// further interfaces.
func (l *loop) unenforced() []unenforced {
	all := slices.Clone(l.checks.broken)
	for _, u := range l.unrepaired {
		if !has(all, u.entry.ID()) {
			all = append(all, u)
		}
	}
	all = slices.DeleteFunc(all, func(u unenforced) bool {
		return l.entries[u.entry.ID()] != u.entry || u.entry.State != endpoint.Ready
	})
	for _, e := range l.sorted() {
		if e.others != "" && e.State == endpoint.Ready {
			all = append(all, unenforced{e, e.bypass()})
		}
	}
	return all
}

// bypass is the problem of a pod with further interfaces.
func (e *entry) bypass() string {
	return fmt.Sprintf("its further interfaces %s are not under policy: restart the pod without them", e.others)
}

func (l *loop) reportUnenforced() (all []report.Unenforced) {
	for _, u := range l.unenforced() {
		all = append(all, report.Unenforced{Pod: u.entry.Pod(), Detail: u.detail})
	}
	for _, u := range l.unpoliced() {
		all = append(all, report.Unenforced{Pod: u.Pod, Detail: u.Why})
	}
	return all
}

// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"slices"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/endpoint"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy/compile"
)

// enforcement is what is in force and when it is worked out anew.
type enforcement struct {
	// at is when the next Apply is due; zero if nothing changed.
	at time.Time
	// since is when the first change came that at waits for.
	since time.Time
	// compiler remembers the last State that was compiled, in force or not: its
	// numbers must not be used for anything else.
	compiler *compile.Compiler
	// found is what was in force when the agent started, or nil.
	found *model.State
	// inForce is the last State that Apply accepted, and covered the endpoints
	// that are under its decisions or, where it failed, under earlier ones.
	inForce   *model.State
	covered   map[model.EndpointID]bool
	appliedAt time.Time
	// failed is the error of the last Apply. It may concern single endpoints.
	failed error
	delay  time.Duration // before the next attempt
	// cost is how long the last compilation and Apply took.
	cost time.Duration
	// unsupported is what compile.Once and the data path over-block.
	unsupported []model.Unsupported
}

// maxRest bounds how long the loop rests after costly work.
const maxRest = time.Second

// changed notes a change that may wait for others to come. When the work takes
// long the loop rests as long: it must have time for requests while snapshots
// keep coming.
func (f *enforcement) changed(now time.Time, c Config) {
	if f.since.IsZero() {
		f.since = now
	}
	rest := min(f.cost, maxRest)
	at := now.Add(max(c.Settle, rest))
	if latest := f.since.Add(max(c.MaxSettle, rest)); at.After(latest) {
		at = latest
	}
	f.at = at
}

// now notes a change that should not wait.
func (f *enforcement) now() {
	if f.since.IsZero() {
		f.since = time.Now()
	}
	f.at = time.Now()
}

func (f *enforcement) due(now time.Time) bool { return !f.at.IsZero() && !now.Before(f.at) }

// enforce compiles for the endpoints that are ready and for those that join,
// and applies. The error is that of Apply.
func (l *loop) enforce(joining []*entry) error {
	f := &l.enforced
	if l.snapshot == nil {
		f.at, f.since = time.Time{}, time.Time{}
		return nil // what is in force stays
	}
	f.at, f.since = time.Time{}, time.Time{}
	began := time.Now()
	defer func() { f.cost = time.Since(began) }()
	state, unsupported := f.compiler.Compile(compile.Input{Snapshot: l.snapshot, Node: l.cfg.NodeName,
		Endpoints: l.endpoints(joining), Previous: f.found, Limits: l.cfg.Limits})
	f.found = nil // the compiler knows better now
	l.agent.metrics.compileSeconds.Observe(time.Since(began).Seconds())

	ctx, cancel := l.opContext()
	defer cancel()
	l.step("apply")
	applying := time.Now()
	more, err := l.backend.Apply(ctx, state)
	l.agent.metrics.applySeconds.Observe(time.Since(applying).Seconds())
	l.agent.heartbeat()
	if err != nil {
		l.agent.metrics.applyErrors.Inc()
		l.log.Error("apply policy", "error", err, "endpoints", len(state.Endpoints))
		f.delay = min(max(2*f.delay, l.cfg.RetryMin), l.cfg.RetryMax)
		f.at = time.Now().Add(f.delay)
	} else {
		f.delay = 0
	}
	f.failed = err
	if !dataplane.Concerns(err, "") { // no error, or some of single endpoints
		f.accept(state, err)
		l.report(append(slices.Clip(unsupported), more...))
	}
	return err
}

// accept notes that a State is in force, except for the endpoints that the
// error concerns.
func (f *enforcement) accept(s *model.State, err error) {
	covered := make(map[model.EndpointID]bool, len(s.Endpoints))
	for id := range s.Endpoints {
		if f.covered[id] || !dataplane.Concerns(err, id) {
			covered[id] = true
		}
	}
	f.inForce, f.covered, f.appliedAt = s, covered, time.Now()
}

// report keeps what cannot be enforced as asked, and logs it when it changes.
func (l *loop) report(all []model.Unsupported) {
	for i := range all {
		if all[i].OS == "" { // found by the compiler, which knows no OS
			all[i].OS, all[i].Platform = l.features.OS, l.features.Platform
		}
	}
	slices.SortFunc(all, func(a, b model.Unsupported) int { return strings.Compare(a.String(), b.String()) })
	if slices.Equal(all, l.enforced.unsupported) {
		return
	}
	for _, u := range all {
		if !slices.Contains(l.enforced.unsupported, u) {
			l.log.Warn("policy cannot be enforced as asked", "policy", u.Policy.String(), "construct", u.Construct,
				"effect", u.Effect.String(), "reason", u.Reason)
		}
	}
	l.enforced.unsupported = all
}

// endpoints lists what a State should name. What it does not name is denied
// everything by the data path.
func (l *loop) endpoints(joining []*entry) map[model.EndpointID]compile.Endpoint {
	newest := make(map[model.PodID]*entry)
	for _, e := range l.sorted() {
		if e.attached && !e.leaving && (e.State == endpoint.Ready || slices.Contains(joining, e)) && !l.outlived(e) {
			// The kubelet may make a new sandbox before the old one is gone. A
			// pod has one set of addresses: those of the newest.
			newest[e.Pod()] = e
		}
	}
	named := make(map[model.EndpointID]compile.Endpoint, len(newest))
	for pod, e := range newest {
		named[e.ID()] = compile.Endpoint{Pod: pod, IPs: e.IPs}
	}
	return named
}

// outlived reports whether the pod that the snapshot has under the endpoint's
// name is not the endpoint's own: its successor, perhaps on another node. A pod
// that the snapshot does not have is left to the compiler, which denies all.
func (l *loop) outlived(e *entry) bool {
	pod, ok := l.snapshot.Pods.Get(e.Pod())
	return ok && (!samePod(e.UID, pod.UID) || pod.Node != "" && pod.Node != l.cfg.NodeName || !pod.Policed())
}

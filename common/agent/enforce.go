// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/endpoint"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy/compile"
)

// enforcement is the State in force and the schedule of the next Apply.
type enforcement struct {
	// at is when the next Apply is due; zero if nothing changed.
	at time.Time
	// since is when the first change arrived that the next Apply covers.
	since time.Time
	// arrived is when the oldest change of the cluster arrived that is not in force; zero if none waits.
	arrived time.Time
	// compiler remembers the last compiled State, in force or not: its numbers must not be reused for
	// anything else.
	compiler *compile.Compiler
	// found is the State that was in force when the agent started, or nil.
	found *model.State
	// inForce is the last State that Apply accepted. covered holds the endpoints that are under its
	// decisions or, where Apply failed for them, under earlier ones.
	inForce   *model.State
	covered   map[model.EndpointID]bool
	appliedAt time.Time
	// failed is the error of the last Apply. It may concern single endpoints only.
	failed error
	delay  time.Duration // before the next attempt
	// cost is how long the last compilation and Apply took.
	cost time.Duration
	// unsupported lists what compile.Once and the data path over-block or refuse.
	unsupported []model.Unsupported
	narrowing
}

// maxRest bounds the pause after a costly compilation and Apply.
const maxRest = time.Second

// changed schedules an Apply for a change that may wait for further changes. After a costly Apply the loop
// pauses as long as that took. This leaves time for requests while snapshots keep arriving.
func (f *enforcement) changed(now time.Time, c Config) {
	if f.since.IsZero() {
		f.since = now
	}
	rest := min(f.cost, maxRest)
	at := now.Add(max(c.Debounce, rest))
	if latest := f.since.Add(max(c.MaxDebounce, rest)); at.After(latest) {
		at = latest
	}
	f.at = at
}

// now schedules an Apply at once.
func (f *enforcement) now() {
	if f.since.IsZero() {
		f.since = time.Now()
	}
	f.at = time.Now()
}

func (f *enforcement) due(now time.Time) bool {
	return !f.at.IsZero() && !now.Before(f.at) || !f.widenAt.IsZero() && !now.Before(f.widenAt)
}

// enforce compiles for the ready and the joining endpoints, and applies the State. It returns the error of
// Apply.
func (l *loop) enforce(joining []*entry) error {
	f := &l.enforced
	if l.snapshot == nil {
		f.at, f.since = time.Time{}, time.Time{}
		return nil // what is in force stays
	}
	f.at, f.since = time.Time{}, time.Time{}
	began := time.Now()
	defer func() { f.cost = time.Since(began) }()
	f.widen(began, l.cfg.Limits.PeerClasses)
	state, unsupported, err := l.compileAndApply(joining)
	for errors.Is(err, dataplane.ErrTooManyPeers) && f.narrow(state, err, time.Now()) {
		l.log.Warn("the largest policies are not enforced as written", "error", err, "peer classes", f.peers)
		state, unsupported, err = l.compileAndApply(joining)
	}
	if err != nil {
		l.log.Error("apply policy", "error", err, "endpoints", len(state.Policy.Endpoints))
		f.delay = min(max(2*f.delay, l.cfg.RetryMin), l.cfg.RetryMax)
		f.at = time.Now().Add(f.delay)
	} else {
		f.delay, f.fullSince = 0, time.Time{}
		l.agent.meter.Enforced(f.arrived)
		f.arrived = time.Time{}
	}
	f.failed = err
	if !dataplane.Concerns(err, "") { // no error, or errors of single endpoints
		f.accept(state, err)
		l.report(unsupported)
	}
	return err
}

// compileAndApply compiles for the ready and the joining endpoints, and applies the State. It returns what is not enforced
// as written, and the error of Apply.
func (l *loop) compileAndApply(joining []*entry) (*model.State, []model.Unsupported, error) {
	f, began := &l.enforced, time.Now()
	limits := l.cfg.Limits
	if f.peers > 0 {
		limits.PeerClasses = f.peers
	}
	state, unsupported := f.compiler.Compile(compile.Input{Snapshot: l.snapshot, Node: l.cfg.NodeName,
		Endpoints: l.endpoints(joining), Previous: f.found, Limits: limits, Observe: l.cfg.Observe})
	f.found = nil // the compiler now has the newer State
	l.agent.meter.Compiled(began)

	ctx, cancel := l.opContext()
	defer cancel()
	l.step("apply")
	applying := time.Now()
	more, err := l.backend.Apply(ctx, state)
	l.agent.meter.Applied(applying, err)
	l.agent.heartbeat()
	return state, append(slices.Clip(unsupported), more...), err
}

// accept records that a State is in force, except for the endpoints that the error concerns.
func (f *enforcement) accept(s *model.State, err error) {
	covered := make(map[model.EndpointID]bool, len(s.Policy.Endpoints))
	for id := range s.Policy.Endpoints {
		if f.covered[id] || !dataplane.Concerns(err, id) {
			covered[id] = true
		}
	}
	f.inForce, f.covered, f.appliedAt = s, covered, time.Now()
}

// report stores the constructs that cannot be enforced as written, and logs new ones.
func (l *loop) report(all []model.Unsupported) {
	for i := range all {
		if all[i].OS == "" { // from the compiler, which knows no OS
			all[i].OS, all[i].Platform = l.features.OS, l.features.Platform
		}
	}
	slices.SortFunc(all, func(a, b model.Unsupported) int { return strings.Compare(a.String(), b.String()) })
	if slices.Equal(all, l.enforced.unsupported) {
		return
	}
	for _, u := range all {
		if !slices.Contains(l.enforced.unsupported, u) {
			l.log.Warn("policy cannot be enforced as written", "policy", u.Policy.String(), "construct", u.Construct,
				"effect", u.Effect.String(), "reason", u.Reason)
		}
	}
	l.enforced.unsupported = all
}

// narrowing bounds the peer classes while more of them do not fit into the data path. The compiler then denies what the
// rules of the largest policies distinguish. Otherwise the author of one large policy would keep every change of policy
// from the pods of this node, and new pods from starting.
type narrowing struct {
	// fullSince is when a State first did not fit; zero after one that did.
	fullSince time.Time
	// peers is the bound; 0 without one. The fields below are zero then.
	peers int
	// why is the error of the State that did not fit, and widenAt when a larger bound is tried.
	why     error
	widenAt time.Time
}

const (
	// narrowAfter is the time until a State is narrowed. What an earlier State occupied becomes free meanwhile.
	narrowAfter = 5 * time.Second
	// fewestPeers is the least bound. With fewer classes, small policies would lose rules, too.
	fewestPeers = 64
	// widenAfter is the time until a larger bound is tried.
	widenAfter = 5 * time.Minute
)

// narrow lowers the bound after a State that did not fit. It reports false if it is too early, or cannot help.
func (n *narrowing) narrow(s *model.State, err error, now time.Time) bool {
	if n.fullSince.IsZero() {
		n.fullSince = now
	}
	next := len(s.Policy.PeerClasses) * 3 / 4
	if next < fewestPeers || n.peers == 0 && now.Sub(n.fullSince) < narrowAfter {
		return false
	}
	n.peers, n.why, n.widenAt = next, err, now.Add(widenAfter)
	return true
}

// widen raises the bound when it is time. limit is the configured one; 0 stands for the default.
func (n *narrowing) widen(now time.Time, limit int) {
	if n.peers == 0 || now.Before(n.widenAt) {
		return
	}
	if limit <= 0 {
		limit = compile.DefaultLimits().PeerClasses
	}
	n.peers, n.widenAt = 2*n.peers, now.Add(widenAfter)
	if n.peers >= limit {
		*n = narrowing{}
	}
}

// endpoints returns the endpoints that a State contains. The data path denies all traffic of endpoints that
// the State does not contain.
func (l *loop) endpoints(joining []*entry) map[model.EndpointID]compile.Endpoint {
	newest := make(map[model.PodID]*entry)
	for _, e := range l.sorted() {
		if e.attached && !e.leaving && (e.State == endpoint.Ready || slices.Contains(joining, e)) && !l.outlived(e) {
			// The kubelet may create a new sandbox before it removes the old one. A pod has one set of
			// addresses: those of the newest sandbox.
			newest[e.Pod()] = e
		}
	}
	named := make(map[model.EndpointID]compile.Endpoint, len(newest))
	l.readFurther()
	for pod, e := range newest {
		named[e.ID()] = compile.Endpoint{Pod: pod, IPs: e.IPs, Further: l.trusted(e)}
	}
	return named
}

// outlived reports whether the snapshot has another pod under the endpoint's pod name. Such a pod is a
// successor, perhaps on another node. If the snapshot has no pod of that name, the compiler denies all
// traffic.
func (l *loop) outlived(e *entry) bool {
	pod, ok := l.snapshot.Pods.Get(e.Pod())
	return ok && (!samePod(e.UID, pod.UID) || pod.Node != "" && pod.Node != l.cfg.NodeName || !pod.Policed())
}

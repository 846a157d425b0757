// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/isthmus-net/isthmus/common/agent/adoption"
	"github.com/isthmus-net/isthmus/common/agent/further"
	"github.com/isthmus-net/isthmus/common/agent/pool"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/endpoint"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy/compile"
)

// tick is the interval of heartbeats of an idle loop.
const tick = time.Second

// loop owns all mutable state. Only its goroutine touches it.
type loop struct {
	agent *Agent
	cfg   Config
	log   *slog.Logger

	store *endpoint.Store
	// entries are the records, with what this process knows about them.
	entries map[model.EndpointID]*entry
	// brokenRecords are the problems found in the records at start.
	brokenRecords []string

	backend  dataplane.Backend // nil until opened
	features model.Features
	openedAs model.Node // the node that Open received

	snapshot *model.Snapshot // nil until the first one
	// snapshotAt is when the loop took it.
	snapshotAt time.Time
	pending    []*addition    // ADDs that wait for their pod, or for others to be attached
	starts     int            // attachments that the data path makes concurrently with the loop
	started    []*attachedAdd // those that it has made since the last turn
	removals   []removal      // DELs since the last turn
	stopping   bool

	addresses addresses
	further   further.Owners
	// unusable are the further addresses that the last State did not leave to their pod.
	unusable  []inPod
	pool      *pool.Pool // nil if the data path prepares no endpoints
	enforced  enforcement
	repairs   repairs
	idleness  idleness
	replacing replacing
	pressure  []string  // maps that are nearly full
	audited   time.Time // time of the last audit
	// auditFailed is the error of the last audit, nil if it could compare everything.
	auditFailed error
	contested   contest // objects that another process keeps changing
	// unrepaired are the endpoints that the last audit found without policy, and that its repair left so.
	unrepaired []unenforced
	inPod      []inPod // what the last audit found inside of pods
	checks     checks
	watching   watching
	adoptions  adoptions
	engines    engines
}

// entry is an endpoint's record and what this process knows about it.
type entry struct {
	endpoint.Record
	// attached is true if the data path has the attachment, so that a State may contain it.
	attached   bool
	attachment dataplane.Attachment
	// exposed is true if other pods may have seen its addresses in use.
	exposed bool
	// leaving is true while its removal has not succeeded.
	leaving bool
	// start is not nil while the data path makes the attachment concurrently with the loop. Nothing else then changes
	// the endpoint.
	start *start
	// others are further interfaces of the pod, which is or was observed: policy does not see their packets. A new agent
	// does not know them.
	others string
	// problem is the error of the last attempt to repair or remove it.
	problem error
}

// newLoop loads the records. Apart from broken records it changes nothing outside the process.
func newLoop(a *Agent) (*loop, error) {
	l := &loop{agent: a, cfg: a.cfg, log: a.log, entries: make(map[model.EndpointID]*entry), contested: make(contest),
		checks: checks{contested: make(contest)}}
	l.enforced.compiler = compile.New()
	l.adoptions.claims = adoption.New(a.cfg.NodeName)
	store, err := endpoint.Open(a.cfg.RecordDir)
	if err != nil {
		return nil, err
	}
	records, problems, err := store.Load()
	if err != nil {
		return nil, err
	}
	l.store = store
	for _, p := range problems {
		l.log.Error("endpoint record is damaged", "error", p)
		l.brokenRecords = append(l.brokenRecords, p.Error())
	}
	now := timeNow()
	l.repairs.purgeAt(now)
	for _, r := range records {
		if r.Kind != l.kind() && r.State != endpoint.Released && (r.Kind != endpoint.Migrated || l.cfg.PolicyOnly) {
			return nil, fmt.Errorf("pod %s was attached by an agent in another mode: drain the node before you change --mode, or keep the mode; isthmusctl migrate changes it for pods behind a bridge", r.Pod())
		}
		if r.ReleasedAt.After(now) { // the clock was set back
			r.ReleasedAt = now
		}
		l.entries[r.ID()] = &entry{Record: r, exposed: true}
	}
	return l, nil
}

// run is the loop.
func (l *loop) run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		if err := l.turn(ctx); err != nil {
			return errors.Join(err, l.close())
		}
		timer.Reset(max(0, time.Until(l.next())))
		select {
		case <-ctx.Done():
			return l.close()
		case <-l.agent.wake:
		case f := <-l.agent.requests:
			f(l)
			l.drain()
			l.idleness.busy = time.Now()
		case <-timer.C:
		}
	}
}

// drain executes the requests that already wait, so that one Apply serves them all.
func (l *loop) drain() {
	for {
		select {
		case f := <-l.agent.requests:
			f(l)
		default:
			return
		}
	}
}

// turn does all work that is due.
func (l *loop) turn(ctx context.Context) error {
	l.agent.heartbeat()
	l.takeSnapshot()
	l.checkEngines()
	if l.backend == nil && l.canOpen() {
		if err := l.open(ctx); err != nil {
			return err
		}
	}
	if l.backend != nil {
		l.processDels()
		l.processAdds()
		l.adoptPods()
		if l.enforced.due(time.Now()) {
			l.enforce(nil)
		}
		l.repair()
		l.follow()
		l.checkPolicy()
		l.audit()
		l.idle()
		l.purge()
		l.watch()
	}
	l.expire()
	l.publish()
	return nil
}

// next returns when the next work is due, if nothing arrives before.
func (l *loop) next() time.Time {
	at := time.Now().Add(tick)
	sooner := func(t time.Time) {
		if !t.IsZero() && t.Before(at) {
			at = t
		}
	}
	if l.backend != nil {
		sooner(l.enforced.at)
		sooner(l.enforced.widenAt)
		sooner(l.repairs.at)
		sooner(l.repairs.purge)
		sooner(l.adoptions.due)
		sooner(l.replacing.next)
	}
	if l.backend != nil && l.enforced.inForce != nil {
		sooner(l.idleness.next)
	}
	for _, a := range l.pending {
		if !a.queued {
			sooner(a.deadline)
		}
	}
	return at
}

// close answers all waiting requests and closes the Backend.
func (l *loop) close() error {
	l.stop()
	l.publish()
	if l.backend == nil {
		return nil
	}
	l.unwatch()
	if err := l.backend.Close(); err != nil {
		return fmt.Errorf("close data path: %w", err)
	}
	return nil
}

// stop answers every waiting ADD and rejects later ones.
func (l *loop) stop() {
	l.stopping = true
	for _, a := range l.pending {
		a.fail(errStopped)
	}
	l.pending = nil
	for _, e := range l.entries {
		if e.start != nil {
			e.start.giveUp(errStopped)
		}
	}
}

// step calls Config.Step before a step with an external effect.
func (l *loop) step(name string) {
	l.agent.heartbeat()
	if l.cfg.Step != nil {
		l.cfg.Step(name)
	}
}

// opContext bounds one call of the Backend. It does not end with the agent: the loop finishes a call that
// has begun.
func (l *loop) opContext() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), l.cfg.OpTimeout)
}

// takeSnapshot takes the latest snapshot.
func (l *loop) takeSnapshot() {
	s := l.agent.latest.Load()
	if s == nil || s == l.snapshot {
		return
	}
	old := l.snapshot
	l.snapshot = s
	l.snapshotAt = time.Now()
	if came := l.agent.arrived.Swap(nil); came != nil && l.enforced.arrived.IsZero() {
		l.enforced.arrived = *came
	}
	l.enforced.changed(time.Now(), l.cfg)
	if old == nil || nodesChanged(old, s) {
		l.updateRanges()
	}
}

func nodesChanged(old, s *model.Snapshot) bool {
	for range s.Nodes.Changes(old.Nodes) {
		return true
	}
	return false
}

// node returns this node, as far as it is known.
func (l *loop) node() model.Node {
	n := model.Node{Name: l.cfg.NodeName}
	if l.snapshot != nil {
		if known, ok := l.snapshot.Nodes.Get(l.cfg.NodeName); ok {
			n = *known
		}
	}
	if len(l.cfg.PodCIDRs) > 0 {
		n.PodCIDRs = l.cfg.PodCIDRs
	}
	return n
}

// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/common/agent/adoption"
	"github.com/isthmus-net/isthmus/common/agent/pool"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/endpoint"
	"github.com/isthmus-net/isthmus/common/model"
)

// canOpen reports whether everything that Open needs is known, and no other policy engine forbids it.
func (l *loop) canOpen() bool {
	if l.refused() != "" {
		return false
	}
	if !l.cfg.OpenNeedsNode {
		return true
	}
	n := l.node()
	return len(n.Addresses) > 0 && (l.cfg.PolicyOnly || len(n.PodCIDRs) > 0) // another plugin may have ranges of its own
}

// open opens the data path and cleans up after an earlier agent. Decisions in force do not change before
// the first snapshot.
func (l *loop) open(ctx context.Context) error {
	node := l.node()
	l.step("open")
	backend, err := l.cfg.Open(ctx, node)
	if err != nil {
		return fmt.Errorf("open data path: %w", err)
	}
	l.backend = backend
	l.features = backend.Features()
	l.noteReports()
	kinds := []string{driftEndpoint}
	if a, ok := backend.(dataplane.ObjectLister); ok {
		kinds = append(kinds, a.AuditedObjects()...)
	}
	l.agent.meter.Objects(kinds)
	l.openedAs = node
	l.watching.opened = time.Now()
	l.audited = time.Now() // the steps below inspect every attachment
	l.log.Info("data path is open", "os", l.features.OS, "platform", l.features.Platform)
	l.updateRanges()
	l.readInForce()
	for _, e := range l.sorted() {
		if e.State == endpoint.Adding {
			l.log.Info("rolling back an unfinished attachment", "endpoint", e.ID(), "pod", e.Pod())
			l.rollBack(e)
		}
	}
	l.removeUnknown()
	for _, e := range l.sorted() {
		if e.State == endpoint.Ready {
			l.adopt(e)
		}
	}
	l.openPool()
	return nil
}

// openPool begins to keep prepared endpoints if the data path can. The records contain the DNS settings of
// pods.
func (l *loop) openPool() {
	b, ok := l.backend.(dataplane.Preparer)
	if !ok {
		return
	}
	l.pool = pool.New(pool.Config{Size: l.cfg.EndpointPool, Backend: b, Log: l.log, Context: l.opContext, Step: l.step,
		Busy: func() bool { return l.stopping || l.starts+len(l.pending) > 0 },
		Post: func(f func()) {
			select {
			case l.agent.requests <- func(*loop) { f() }:
			case <-l.agent.done:
			}
		}})
	for _, e := range l.sorted() {
		l.pool.Note(e.spec().DNS, e.Created)
	}
	if a := l.addresses.allocator; a != nil {
		l.pool.Use(a)
	}
}

// readInForce reads the State in force, whose class numbers the compiler continues.
func (l *loop) readInForce() {
	ctx, cancel := l.opContext()
	defer cancel()
	state, err := l.backend.InForce(ctx)
	if err != nil {
		// Without it classes get new numbers; Plan hides that from packets.
		l.log.Warn("read the state in force", "error", err)
		return
	}
	l.enforced.found = state
}

// adopt completes the attachment of an earlier agent, or repairs one of this agent. It removes the endpoint of a pod that
// is gone.
func (l *loop) adopt(e *entry) {
	ctx, cancel := l.opContext()
	defer cancel()
	l.step("adopt")
	attachment, err := l.backend.AddEndpoint(ctx, l.spec(e))
	if err == nil {
		if e.problem != nil || !e.attached {
			l.enforced.now()
		}
		e.attached, e.attachment, e.problem = true, attachment, nil
		return
	}
	if errors.Is(err, dataplane.ErrNoNetNS) && l.ended(e) {
		l.log.Info("the network namespace of a pod is gone", "pod", e.Pod(), "endpoint", e.ID())
		l.adoptions.claims.Ended(e.claimant())
		l.rollBack(e)
		return
	}
	if e.problem == nil || e.problem.Error() != err.Error() {
		l.log.Error("adopt endpoint", "endpoint", e.ID(), "pod", e.Pod(), "error", err)
	}
	e.problem = err
	// An incomplete attachment keeps its decisions: dropping it from the State would cut its flows.
	e.attached = l.mayBeAttached(e)
	l.repairs.later(l.cfg)
}

// ended reports whether the pod of an endpoint is gone whose network namespace was not found. No DEL may follow: that of mode
// policy succeeds without an agent, and a runtime may lose its state when the node restarts. In mode full the agent
// may not see the path of the namespace, so the data path must not have the attachment either.
func (l *loop) ended(e *entry) bool {
	if e.Kind == endpoint.Foreign {
		return !e.adopted()
	}
	return !l.mayBeAttached(e)
}

// mayBeAttached reports whether the data path has the attachment of an endpoint, or cannot say.
func (l *loop) mayBeAttached(e *entry) bool {
	found, _, err := l.inspect(e.ID())
	return found || err != nil
}

// removeUnknown removes attachments without a record. It returns the ids of the removed attachments, and
// the errors of the others.
func (l *loop) removeUnknown() (removed []model.EndpointID, err error) {
	ctx, cancel := l.opContext()
	defer cancel()
	l.repairs.unknown = nil
	installed, err := l.backend.Endpoints(ctx)
	if err != nil {
		err = fmt.Errorf("list attachments: %w", err)
		l.repairs.unknown = append(l.repairs.unknown, err)
	}
	var errs []error
	for _, i := range installed {
		if e := l.entries[i.ID]; e != nil && e.State != endpoint.Released {
			continue
		}
		l.log.Warn("remove attachment without a record", "endpoint", i.ID)
		l.step("unknown.detach")
		if err := l.detach(i.ID); err != nil {
			errs = append(errs, fmt.Errorf("remove unknown attachment %s: %w", i.ID, err))
			continue
		}
		removed = append(removed, i.ID)
	}
	l.repairs.unknown = append(l.repairs.unknown, errs...)
	if len(l.repairs.unknown) > 0 {
		l.log.Error("remove attachments without a record", "error", errors.Join(l.repairs.unknown...))
		l.repairs.later(l.cfg)
	}
	return removed, errors.Join(l.repairs.unknown...)
}

// detach removes an attachment from the data path.
func (l *loop) detach(id model.EndpointID) error {
	ctx, cancel := l.opContext()
	defer cancel()
	return l.backend.DeleteEndpoint(ctx, id)
}

// detachAll removes attachments, in one batch if the data path supports that.
func (l *loop) detachAll(ids []model.EndpointID) []error {
	if b, ok := l.backend.(dataplane.BatchDeleter); ok && len(ids) > 1 {
		ctx, cancel := l.opContext()
		defer cancel()
		return b.DeleteEndpoints(ctx, ids)
	}
	var errs []error
	for _, id := range ids {
		errs = append(errs, l.detach(id))
	}
	return errs
}

// sorted lists the entries by time of creation.
func (l *loop) sorted() []*entry {
	all := make([]*entry, 0, len(l.entries))
	for _, e := range l.entries {
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b *entry) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID(), b.ID()))
	})
	return all
}

// spec returns the attachment that the data path should have now.
func (l *loop) spec(e *entry) dataplane.EndpointSpec {
	s := e.spec()
	s.Observed = l.observes(e.Namespace)
	return s
}

// observes reports whether pods of a namespace are observed.
func (l *loop) observes(namespace string) bool {
	if l.snapshot == nil {
		return false
	}
	ns, _ := l.snapshot.Namespaces.Get(namespace)
	return l.cfg.Observe.Observes(ns)
}

// spec returns the attachment without what the cluster decides.
func (e *entry) spec() dataplane.EndpointSpec {
	dns, _ := e.DNS.Usable()
	return dataplane.EndpointSpec{ID: e.ID(), ContainerID: e.ContainerID, IfName: e.IfName, Pod: e.Pod(), NetNS: e.NetNS, NetNSID: e.NetNSID, IPs: e.IPs,
		HostPorts: e.HostPorts, Bandwidth: e.Bandwidth, DNS: dns, Migrated: e.Kind == endpoint.Migrated}
}

// adoptions are the pods that no ADD named.
type adoptions struct {
	claims *adoption.Claims
	// taken is the snapshot that claims has read.
	taken *model.Snapshot
	due   time.Time // time of the next comparison; zero if only a change of the cluster causes one
	// failed is the error of the last attempt to list the interfaces.
	failed error
}

// The intervals of comparisons while pods have no policy, and while adopted pods exist. A pod that has just
// appeared is compared at once.
const (
	searchEvery = 250 * time.Millisecond
	followEvery = time.Second
)

// adoptPods enforces policy on pods whose interface another CNI plugin made without an ADD, and releases those
// whose interface is gone. In mode full, where no other plugin may attach pods, it only finds these.
func (l *loop) adoptPods() {
	finder, ok := l.backend.(dataplane.Finder)
	a := &l.adoptions
	if l.cfg.PolicyOnly && !ok || l.snapshot == nil || l.stopping {
		a.due = time.Time{}
		return
	}
	now, first := time.Now(), a.taken == nil
	if a.taken != l.snapshot {
		a.claims.Take(a.taken, l.snapshot, now)
		a.taken = l.snapshot
	}
	if !first && !a.claims.Due() && (a.due.IsZero() || now.Before(a.due)) {
		return
	}
	if !l.cfg.PolicyOnly {
		l.findUnattached(now, first)
		return
	}
	a.due = now.Add(searchEvery)
	ctx, cancel := l.opContext()
	defer cancel()
	l.step("adoption.find")
	interfaces, err := finder.Interfaces(ctx)
	if a.failed = err; err != nil {
		l.log.Warn("list the interfaces of pods; retrying", "error", err)
		a.due = now.Add(followEvery)
		return
	}
	known := l.attachedPods()
	r := a.claims.Compare(known, interfaces, l.adding, l.observes)
	for _, c := range r.Close {
		l.log.Warn("close an interface: its address is that of a pod whose interface was another", "interface", c.Interface.Name, "claim", c.Claim)
		l.step("adoption.close")
		if err := finder.CloseInterface(ctx, c.Interface.Handle, c.Claim); err != nil {
			l.log.Error("close an interface", "interface", c.Interface.Name, "error", err)
			a.claims.Failed(c.Pod, fmt.Sprintf("interface %s has its address and cannot be closed, so packets pass without a verdict: %s; the agent retries", c.Interface.Name, oneLine(err)))
		}
	}
	for _, id := range r.Gone {
		l.log.Info("the interface of an adopted pod is gone", "pod", l.entries[id].Pod(), "endpoint", id)
		l.rollBack(l.entries[id])
	}
	l.adoptAll(r.Adopt)
	switch {
	case a.claims.Pending() > 0:
	case slices.ContainsFunc(l.attachedPods(), func(p adoption.Attached) bool { return p.Handle != "" }):
		a.due = now.Add(followEvery)
	default:
		a.due = time.Time{}
	}
}

// findUnattached finds the pods that Isthmus did not attach. It changes nothing on the node.
func (l *loop) findUnattached(now time.Time, first bool) {
	a := &l.adoptions
	if first { // the API may show pods for a while that an earlier agent detached
		for _, e := range l.entries {
			if e.State == endpoint.Released {
				a.claims.Ended(e.claimant())
			}
		}
	}
	a.claims.CheckAttached(l.attachedPods(), l.adding)
	a.due = time.Time{}
	if a.claims.Pending() > 0 {
		a.due = now.Add(followEvery)
	}
}

// adding reports whether an ADD of a pod waits.
func (l *loop) adding(p model.PodID) bool {
	return slices.ContainsFunc(l.pending, func(add *addition) bool { return add.pod() == p })
}

// attachedPods describes the endpoints.
func (l *loop) attachedPods() (all []adoption.Attached) {
	for _, e := range l.entries {
		if e.State != endpoint.Released {
			all = append(all, e.claimant())
		}
	}
	return all
}

// claimant describes the endpoint.
func (e *entry) claimant() adoption.Attached {
	a := adoption.Attached{ID: e.ID(), Pod: e.Pod(), UID: e.UID, IPs: slices.Concat(e.IPs, e.Further)}
	if e.adopted() {
		a.Handle = e.NetNS
	}
	return a
}

// adopted reports whether no ADD named the endpoint.
func (e *entry) adopted() bool { return strings.HasPrefix(e.NetNS, dataplane.HandlePrefix) }

// adoptAll attaches pods and puts their policy in force by one Apply. They ran without policy, so their packets pass
// until then: default deny would interrupt connections. The data path must know the pods of the cluster first, or it
// takes flows between pods for flows to the outside.
func (l *loop) adoptAll(matches []adoption.Match) {
	if len(matches) == 0 {
		return
	}
	passing := l.enforced.inForce != nil && l.enforced.since.IsZero() || l.enforce(nil) == nil
	var batch []*attachedAdd
	since := make(map[*entry]time.Time)
	for _, m := range matches {
		e, err := l.adoptPod(m, passing)
		if err != nil {
			l.log.Error("adopt pod", "pod", m.Pod.PodID, "interface", m.Interface.Name, "error", err)
			l.adoptions.claims.Failed(m.Pod.PodID, oneLine(err))
			continue
		}
		batch, since[e] = append(batch, &attachedAdd{entry: e}), m.Since
	}
	l.finishAdds(batch)
	for _, j := range batch {
		if e := l.entries[j.ID()]; e != j.entry || e.State != endpoint.Ready {
			l.adoptions.claims.Failed(j.Pod(), "its policy could not be applied; retrying")
			continue
		}
		l.adoptions.claims.Failed(j.Pod(), "")
		l.agent.meter.Unpoliced(since[j.entry])
		l.log.Info("pod is adopted", "pod", j.Pod(), "interface", j.attachment.HostIfName, "seconds without policy", time.Since(since[j.entry]).Seconds())
	}
}

// adoptPod attaches a pod to its interface, under default deny unless passing is set. A closed interface stays closed.
// After an error nothing remains.
func (l *loop) adoptPod(m adoption.Match, passing bool) (*entry, error) {
	ips := slices.SortedFunc(slices.Values(m.Pod.IPs), netip.Addr.Compare)
	e := &entry{Record: endpoint.Record{State: endpoint.Adding, Kind: endpoint.Foreign, IfName: m.Interface.IfName, NetNS: m.Interface.Handle,
		ContainerID: "adopted" + strings.ReplaceAll(strings.TrimPrefix(m.Interface.Handle, dataplane.HandlePrefix), ":", "-") + "." + m.Pod.UID,
		Namespace:   m.Pod.Namespace, Name: m.Pod.Name, UID: m.Pod.UID, IPs: ips, Created: timeNow()}}
	if err := l.evict(e.ID(), e.Pod(), ips); err != nil {
		return nil, err
	}
	l.step("adoption.intent")
	if err := l.store.Put(e.Record); err != nil {
		return nil, blame(CodeIO, err, "record pod %s", e.Pod())
	}
	l.entries[e.ID()] = e
	ctx, cancel := l.opContext()
	defer cancel()
	l.step("adoption.attach")
	var err error
	spec := l.spec(e)
	spec.Observed = spec.Observed || passing && !m.Interface.Closed
	if e.attachment, err = l.backend.AddEndpoint(ctx, spec); err != nil {
		l.rollBack(e)
		return nil, dataPathError(err, "attach pod %s", e.Pod())
	}
	e.attached = true
	return e, nil
}

// unpoliced returns the pods of this node without an endpoint and thus without policy.
func (l *loop) unpoliced() []adoption.Unpoliced { return l.adoptions.claims.Unpoliced(time.Now()) }

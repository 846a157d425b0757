// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/endpoint"
	"github.com/isthmus-net/isthmus/common/inspect"
	"github.com/isthmus-net/isthmus/common/model"
)

// NodeStatus describes an agent and its node.
type NodeStatus struct {
	Name, Version string
	// Mode is full, policy or observe.
	Mode     string
	Features model.Features
	// Ready is true when a State of this agent is in force.
	Ready bool
	// Problems describe one problem each, with its remedy.
	Problems []string
	PodCIDRs []netip.Prefix
	// Endpoints counts the attached pods, Pods and Policies those of the cluster that are known.
	Endpoints, Pods, Policies int
	// Tables, PeerClasses and PortClasses are the size of the State in force.
	Tables, PeerClasses, PortClasses int
	// AppliedAt is the time of the last State in force; zero if there is none.
	AppliedAt   time.Time
	Unsupported []model.Unsupported
	// Repairs are the last changes by other processes, one per entry, each with its time.
	Repairs []string
	// Counters are those of the last read. They are zero if the data path is not open or was never read.
	Counters dataplane.Counters
}

// Node returns the current description. It does not need the loop, so it answers when the loop hangs.
func (a *Agent) Node(context.Context) NodeStatus {
	v := a.view.Load()
	n := NodeStatus{Repairs: a.repairs(nil), Name: a.cfg.NodeName, Version: a.cfg.Version, Mode: a.mode(), Features: v.features, Ready: v.ready,
		Problems: a.allProblems(v).texts(), PodCIDRs: v.ranges,
		Endpoints: v.endpoints, Pods: v.pods, Policies: v.policies, Tables: v.tables, PeerClasses: v.peerClasses, PortClasses: v.portClasses,
		AppliedAt: v.appliedAt, Unsupported: v.unsupported}
	if v.backend == nil {
		return n
	}
	counters := a.sampler.Sample(statusWait, v.backend.Counters)
	if counters.Err != nil {
		n.Problems = append(n.Problems, "cannot read counters: "+oneLine(counters.Err))
	}
	n.Counters = counters.Counters
	n.Repairs = a.repairs(counters.Counters.Repaired)
	n.Problems = append(n.Problems, counters.Counters.Deny.Problems...)
	return n
}

// mode returns the mode of the agent.
func (a *Agent) mode() string {
	switch {
	case !a.cfg.PolicyOnly:
		return "full"
	case a.cfg.Observe == model.ObserveAll:
		return "observe"
	}
	return "policy"
}

// repairFor is how long status shows a repair.
const repairFor = time.Hour

// repairs describes what was repaired in the last hour: by audits, and by the data path itself.
func (a *Agent) repairs(more []dataplane.Repair) (all []string) {
	list := append(a.drifted.Last(), more...)
	slices.SortFunc(list, func(x, y dataplane.Repair) int { return x.At.Compare(y.At) })
	for _, r := range list {
		if time.Since(r.At) > repairFor {
			continue
		}
		times := ""
		if r.Times > 1 {
			times = fmt.Sprintf(" (%d times)", r.Times)
		}
		all = append(all, fmt.Sprintf("%s %s%s: another process changed it; if it comes back, find that process", r.At.UTC().Format(time.RFC3339), r.What, times))
	}
	return all
}

// EndpointStatus describes an attachment.
type EndpointStatus struct {
	ID model.EndpointID
	// Pod is zero if the attachment has no record.
	Pod       model.PodID
	Addresses []netip.Addr
	// Further are those of Addresses that another CNI plugin gave the pod besides the ones that the API shows.
	Further    []netip.Addr
	HostIfName string
	// Attached is how: isthmus, migrated, chained or adopted; empty without a record. It is "no" for a pod of this node that has no
	// policy, because no agent attached it; then there is no ID.
	Attached string
	// Table is the identity of the table in force; empty while default deny is in force.
	Table string
	// Policies are those that select the pod, in order of evaluation.
	Policies []model.Origin
	Problems []string
	// Unenforced is true if packets of the pod may pass without a decision, or cannot pass at all.
	Unenforced bool
	// Observed is true if packets of the pod pass, and events report what policy would drop.
	Observed bool
	// Bandwidth is zero if the interface has no limits.
	Bandwidth model.Bandwidth
	// Verdicts counts the decisions on new flows since the attachment, by Direction and Verdict; nil if not
	// counted by pod.
	Verdicts *[2][2]uint64
}

// Endpoints describes the endpoints in order of creation, then the attachments without a record, then the pods that no agent
// attached. It reads their problems from the data path. The error is an *Error or a context error.
func (a *Agent) Endpoints(ctx context.Context) (list []EndpointStatus, err error) {
	if err := a.do(ctx, func(l *loop) { list = append(l.list(), l.unattached()...) }); err != nil {
		return nil, err
	}
	return list, nil
}

func (l *loop) list() []EndpointStatus {
	installed := make(map[model.EndpointID]dataplane.Installed)
	var unread error
	if l.backend != nil {
		ctx, cancel := l.opContext()
		defer cancel()
		all, err := l.backend.Endpoints(ctx)
		unread = err
		for _, i := range all {
			installed[i.ID] = i
		}
	}
	var list []EndpointStatus
	for _, e := range l.sorted() {
		if e.State == endpoint.Released {
			continue
		}
		list = append(list, l.describe(e, installed, unread))
		delete(installed, e.ID())
	}
	for id, i := range installed {
		list = append(list, EndpointStatus{ID: id, Problems: append([]string{"no endpoint record: the next GC removes it"}, i.Problems...), Unenforced: i.Unenforced})
	}
	return list
}

// unattached describes the pods of this node without policy.
func (l *loop) unattached() (list []EndpointStatus) {
	for _, u := range l.unpoliced() {
		d := EndpointStatus{Pod: u.Pod, Problems: []string{u.Why}, Unenforced: true, Attached: "no"}
		if pod, ok := l.snapshot.Pods.Get(u.Pod); ok {
			d.Addresses, d.Policies = slices.Clone(pod.IPs), selecting(l.snapshot.SortedPolicies(), l.snapshot.Namespace(pod.Namespace), pod)
		}
		list = append(list, d)
	}
	return list
}

func (l *loop) describe(e *entry, installed map[model.EndpointID]dataplane.Installed, unread error) EndpointStatus {
	d := EndpointStatus{ID: e.ID(), Pod: e.Pod(), HostIfName: e.attachment.HostIfName, Addresses: slices.Clone(e.IPs), Bandwidth: e.Bandwidth, Attached: e.how()}
	id := e.ID()
	if l.enforced.covered[id] {
		in := l.enforced.inForce.Policy.Endpoints[id]
		d.Table, d.Observed, d.Addresses, d.Further = in.Table.String(), in.Observed, append(d.Addresses, in.Further...), in.Further
	}
	if e.problem != nil {
		d.Problems = append(d.Problems, oneLine(e.problem))
	}
	if e.start != nil { // its parts change meanwhile
		d.Problems = append(d.Problems, "is being attached")
		return d
	}
	if e.State == endpoint.Adding {
		d.Problems = append(d.Problems, "is attached only in part")
	}
	i, ok := installed[id]
	switch {
	case l.backend == nil:
		d.Problems = append(d.Problems, "the data path is not open")
	case unread != nil:
		d.Problems = append(d.Problems, "cannot read the data path: "+oneLine(unread))
	case !ok:
		d.Problems, d.Unenforced = append(d.Problems, "is not attached"), true
	default:
		d.Problems, d.Unenforced, d.Verdicts = slices.Concat(d.Problems, i.Problems, i.InPod), i.Unenforced, i.Verdicts
	}
	d.Problems = append(d.Problems, l.refusedOf(e)...)
	if e.others != "" {
		d.Problems, d.Unenforced = append(d.Problems, e.bypass()), true
	}
	if l.snapshot == nil {
		return d
	}
	pod, ok := l.snapshot.Pods.Get(e.Pod())
	switch {
	case !ok:
		d.Problems = append(d.Problems, fmt.Sprintf("pod %s is not known: all traffic is denied", e.Pod()))
		return d
	case l.outlived(e):
		d.Problems = append(d.Problems, fmt.Sprintf("another pod now has the name %s: all traffic is denied", e.Pod()))
		return d
	}
	d.Policies = selecting(l.snapshot.SortedPolicies(), l.snapshot.Namespace(pod.Namespace), pod)
	return d
}

// how says how the pod was attached.
func (e *entry) how() string {
	switch {
	case e.Kind == endpoint.Migrated:
		return "migrated"
	case e.adopted():
		return "adopted"
	case e.Kind == endpoint.Foreign:
		return "chained"
	}
	return "isthmus"
}

// selecting returns the policies that select a pod, in their order.
func selecting(policies []*model.Policy, ns *model.Namespace, pod *model.Pod) (all []model.Origin) {
	for _, p := range policies {
		if p.Subject.MatchesNamespace(ns) && p.Subject.Pods.Matches(pod.Labels) {
			all = append(all, p.Origin)
		}
	}
	return all
}

// Dump returns a Bundle of this node, without Files. The loop reads the data path and audits it. The error
// is an *Error or a context error.
func (a *Agent) Dump(ctx context.Context) (b *inspect.Bundle, err error) {
	b = &inspect.Bundle{About: a.about(ctx)}
	if err := a.do(ctx, func(l *loop) { l.dump(b) }); err != nil {
		return nil, err
	}
	return b, nil
}

func (a *Agent) about(ctx context.Context) inspect.About {
	n := a.Node(ctx)
	about := inspect.About{Format: inspect.Format, Node: n.Name, Version: n.Version, OS: n.Features.OS, Platform: n.Features.Platform,
		Created: timeNow(), Ready: n.Ready, Applied: n.AppliedAt, Problems: n.Problems, Unsupported: n.Unsupported,
		Facts: n.Counters.Facts, Repairs: n.Repairs, Settings: a.cfg.Settings}
	for _, m := range n.Counters.PathModes {
		about.Modes = append(about.Modes, inspect.ModeText(m.Part, m.Mode, m.Count))
	}
	return about
}

// briefWait bounds how long Brief waits for the loop.
const briefWait = 2 * time.Second

// Brief returns the cheap parts of a Bundle, for frequent readers. These are the node, the names of its pods, the policies that
// select each of them, and the numbers of rules. It reads no decisions back. If the loop is busy, the Bundle describes the node
// only, and a note says so.
func (a *Agent) Brief(ctx context.Context) *inspect.Bundle {
	b := &inspect.Bundle{About: a.about(ctx)}
	bound, cancel := context.WithTimeout(ctx, briefWait)
	defer cancel()
	var s *model.Snapshot
	var pods []*model.Pod
	if err := a.do(bound, func(l *loop) { s, pods = l.brief(b) }); err != nil && s == nil {
		b.About.Notes = append(b.About.Notes, "there are no numbers of rules: "+oneLine(err))
	}
	if s == nil {
		return b
	}
	b.Cluster.Policies = s.SortedPolicies()
	for i, pod := range pods {
		if pod != nil {
			b.Endpoints[i].Policies = selecting(b.Cluster.Policies, s.Namespace(pod.Namespace), pod)
		}
	}
	return b
}

// brief adds the attached pods and the numbers of rules, and returns the objects of the cluster. Pods are nil where the endpoint is
// not that of a known pod.
func (l *loop) brief(b *inspect.Bundle) (s *model.Snapshot, pods []*model.Pod) {
	for _, e := range l.sorted() {
		if e.State == endpoint.Released {
			continue
		}
		b.Endpoints = append(b.Endpoints, inspect.Endpoint{ID: e.ID(), Pod: e.Pod()})
		var pod *model.Pod
		if l.snapshot != nil && !l.outlived(e) {
			pod, _ = l.snapshot.Pods.Get(e.Pod())
		}
		pods = append(pods, pod)
	}
	if l.snapshot == nil {
		b.About.Notes = append(b.About.Notes, "the state of the cluster is not known yet")
		return nil, nil
	}
	l.dumpCounts(b)
	return l.snapshot, pods
}

// dumpCounts adds the new flows by cause, where they are counted.
func (l *loop) dumpCounts(b *inspect.Bundle) {
	counter, ok := l.backend.(dataplane.CauseCounter)
	if !ok {
		return
	}
	ctx, cancel := l.opContext()
	defer cancel()
	read, err := counter.CauseCounts(ctx)
	if err != nil {
		b.About.Notes = append(b.About.Notes, "there are no numbers of rules: "+oneLine(err))
		return
	}
	b.Counts = &inspect.Counts{Packets: read.Packets, Others: read.Others, Past: read.Past, Shared: read.Shared}
	for _, c := range read.Causes {
		b.Counts.Causes = append(b.Counts.Causes, inspect.Count(c))
	}
}

// dump adds what only the loop may read.
func (l *loop) dump(b *inspect.Bundle) {
	note := func(format string, args ...any) { b.About.Notes = append(b.About.Notes, fmt.Sprintf(format, args...)) }
	for _, e := range l.list() {
		b.Endpoints = append(b.Endpoints, inspect.Endpoint{ID: e.ID, Pod: e.Pod, Addresses: e.Addresses, Further: e.Further,
			HostInterface: e.HostIfName, Table: e.Table,
			Policies: e.Policies, Problems: e.Problems, Unenforced: e.Unenforced, Verdicts: e.Verdicts})
	}
	b.About.Pending = !l.enforced.at.IsZero() || l.agent.latest.Load() != l.snapshot
	if l.snapshot == nil {
		note("the state of the cluster is not known yet: cluster.json is empty")
		return
	}
	b.Cluster = inspect.MakeCluster(l.snapshot)
	l.dumpCounts(b)
	reader, ok := l.backend.(dataplane.Reader)
	if !ok {
		note("the data path is not open, or cannot be read back: there are no installed decisions")
		return
	}
	ctx, cancel := l.opContext()
	defer cancel()
	read, err := reader.ReadDecisions(ctx)
	if err != nil {
		note("%s", oneLine(err))
		return
	}
	b.About.Problems = append(b.About.Problems, read.Problems...)
	b.Installed = &inspect.Installed{State: read.State, Lists: read.Lists, NodeAddresses: read.NodeAddresses}
	if read.State != nil {
		for id, e := range read.State.Policy.Endpoints { // maps hold numbers only
			if known := l.entries[id]; known != nil {
				e.Pod, e.IPs = known.Pod(), known.IPs
				if l.enforced.covered[id] {
					e.Further = l.enforced.inForce.Policy.Endpoints[id].Further
				}
				read.State.Policy.Endpoints[id] = e
			}
		}
	}
	failed := l.enforced.failed
	if l.enforced.inForce == nil || dataplane.Concerns(failed, "") {
		note("the audit was omitted, because no state of this agent is in force")
		return
	}
	if failed != nil {
		note("audit: attachments only, because the policy of some endpoints is not in force: %s", oneLine(failed))
	}
	found, _, _, err := l.compare(failed == nil)
	if err != nil {
		note("audit: %s", oneLine(err))
	}
	for _, d := range found {
		b.Drift = append(b.Drift, inspect.Drift{Object: d.Object, Endpoint: d.Endpoint, Detail: d.Detail})
	}
}

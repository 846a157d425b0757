// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/common/agent/pool"
	"github.com/isthmus-net/isthmus/common/api/cniframe"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/endpoint"
	"github.com/isthmus-net/isthmus/common/ipam"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/report"
)

// view is the published state of the loop. It is immutable once published.
type view struct {
	// ready is true when a State of this agent is in force.
	ready bool
	// unable is the reason why Add cannot work now, or "".
	unable string
	// limited is true if the policy of existing pods may be out of date.
	limited  bool
	problems problems

	backend  dataplane.Backend
	features model.Features
	ranges   []netip.Prefix
	usage    []ipam.Usage

	pool                              pool.Stats
	endpoints, unenforced, broken     int
	unpoliced                         int
	namespaces, nodes, pods, policies int
	denyLists                         int
	tables, peerClasses, portClasses  int
	appliedAt, snapshotAt             time.Time
	unsupported                       []model.Unsupported
}

// publish publishes the loop's state as a new view and reports it.
func (l *loop) publish() {
	v := &view{ready: l.enforced.inForce != nil, backend: l.backend, features: l.features, ranges: l.addresses.ranges,
		appliedAt: l.enforced.appliedAt, unsupported: l.enforced.unsupported, problems: l.problems()}
	v.unable, v.limited = l.unable()
	v.problems.add(problemUnannounced, l.announce()...)
	v.snapshotAt, v.unenforced = l.snapshotAt, len(l.unenforced())
	v.unpoliced = len(l.unpoliced())
	v.pool = l.pool.Stats()
	for _, e := range l.entries {
		if e.State != endpoint.Released {
			v.endpoints++
		}
		if e.problem != nil {
			v.broken++
		}
	}
	if l.addresses.allocator != nil {
		v.usage = l.addresses.allocator.Usage(time.Now())
	}
	if s := l.snapshot; s != nil {
		v.namespaces, v.nodes, v.pods, v.policies = s.Namespaces.Len(), s.Nodes.Len(), s.Pods.Len(), s.Policies.Len()
		v.denyLists = s.DenyLists.Len()
	}
	if s := l.enforced.inForce; s != nil {
		v.tables, v.peerClasses, v.portClasses = len(s.Policy.Tables), len(s.Policy.PeerClasses), len(s.Policy.PortClasses)
	}
	l.agent.view.Store(v)
	if l.cfg.Report != nil {
		l.cfg.Report(report.Facts{Node: l.cfg.NodeName, Platform: l.features, Snapshot: l.snapshot, Unsupported: v.unsupported,
			Problems: slices.DeleteFunc(v.problems.texts(), isWarning), Unenforced: l.reportUnenforced(), Ready: v.ready})
	}
}

func isWarning(problem string) bool { return strings.HasPrefix(problem, "warning: ") }

// problems lists the current problems, one line each.
func (l *loop) problems() (all problems) {
	all.add(problemAgent, l.brokenRecords...)
	switch {
	case l.snapshot == nil:
		all.add(problemSource, "the state of the cluster is not known yet")
	case l.backend == nil && l.refused() == "":
		problem, remedy := l.whyNotOpen()
		all.add(problemAddresses, "the data path is not open: "+problem+": "+remedy)
	}
	if other := l.refused(); other != "" {
		all.add(problemDataPath, "no policy is enforced: "+other)
	} else {
		all.add(problemDataPath, l.engines.found...)
	}
	if l.enforced.failed != nil {
		all.add(problemPolicy, "policy is not in force: "+oneLine(l.enforced.failed))
	}
	if why := l.enforced.why; why != nil {
		all.add(problemCapacity, "the largest policies are not enforced as written, as isthmusctl status lists: "+oneLine(why))
	}
	if f, ok := l.backend.(dataplane.Faulty); ok {
		all.add(problemDataPath, f.Faults()...)
	}
	all.add(problemAddresses, l.addresses.problems...)
	all.add(problemAddresses, l.addresses.warnings...)
	all.add(problemCapacity, l.pressure...)
	all.add(problemDataPath, l.pool.Problems()...)
	if l.auditFailed != nil {
		all.add(problemAudit, fmt.Sprintf("audit: installed state cannot be compared with intended state, so changes by other processes stay: %s; next attempt within %s",
			oneLine(l.auditFailed), l.cfg.AuditEvery))
	}
	all.add(problemDrift, l.contested.problems()...)
	all.add(problemAddresses, l.resolverProblems()...)
	all.add(problemDrift, l.checks.contested.problems()...)
	for _, u := range l.unenforced() {
		all.add(problemUnenforced, fmt.Sprintf("endpoint %s of pod %s: policy is NOT enforced: %s", u.entry.ID(), u.entry.Pod(), u.detail))
	}
	for _, u := range l.unpoliced() {
		all.add(problemUnenforced, fmt.Sprintf("pod %s: policy is NOT enforced: %s", u.Pod, u.Why))
	}
	// These are no pods, which have alerts by their numbers.
	if err := l.checks.failed; err != nil {
		all.add(problemDataPath, "pods whose policy is not enforced may go unnoticed: "+oneLine(err)+"; next attempt within "+l.cfg.CheckEvery.String())
	}
	all.add(problemDataPath, l.replacing.problems()...)
	if err := l.adoptions.failed; err != nil {
		all.add(problemDataPath, "pods that no ADD named are not found: list interfaces: "+oneLine(err))
	}
	for _, err := range l.repairs.unknown {
		all.add(problemEndpoint, oneLine(err))
	}
	for _, p := range slices.Concat(l.inPod, l.unusable) {
		// A warning, because no pod may change the condition of its node.
		if e := p.entry; l.entries[e.ID()] == e && e.State == endpoint.Ready {
			all.add(problemEndpoint, fmt.Sprintf("warning: endpoint %s of pod %s: %s", e.ID(), e.Pod(), p.detail))
		}
	}
	for _, e := range l.sorted() {
		if e.problem != nil {
			all.add(problemEndpoint, fmt.Sprintf("endpoint %s of pod %s: %s", e.ID(), e.Pod(), oneLine(e.problem)))
		}
	}
	return all
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// unable returns why Add cannot work now, and whether existing pods are affected.
func (l *loop) unable() (why string, limited bool) {
	f := &l.enforced
	switch {
	case l.stopping:
		return "the agent is stopping", false
	case l.snapshot == nil:
		return "the state of the cluster is not known yet", false
	case l.backend == nil:
		why, _ = l.whyNotOpen()
		return why, false
	case f.failed != nil && dataplane.Concerns(f.failed, ""):
		return "policy is not in force: " + oneLine(f.failed), len(f.covered) > 0
	case f.inForce == nil:
		return "policy is not in force yet", false
	case len(l.addresses.problems) > 0:
		return strings.Join(l.addresses.problems, "; "), false
	}
	if a := l.addresses.allocator; a != nil {
		free := make(map[bool]float64) // key: IPv6
		for _, u := range a.Usage(time.Now()) {
			free[u.Pool.Addr().Is6()] += u.Free
		}
		for _, v6 := range []bool{false, true} {
			if n, ok := free[v6]; ok && n == 0 && l.pool.Stats().Ready == 0 {
				return fmt.Sprintf("no free address in %s", join(l.addresses.ranges)), false
			}
		}
	}
	return "", false
}

// Status fails if Add cannot work now. The code is CodeNotAvailable or, if the policy of existing pods may
// be out of date too, CodeLimited.
func (a *Agent) Status(context.Context, *cniframe.StatusRequest) (err error) {
	defer a.served("STATUS", time.Now(), &err)
	v := a.view.Load()
	const remedy = "see isthmusctl status"
	switch {
	case a.stalled():
		return refuse(CodeLimited, remedy, "the agent's loop has not responded for %s", a.cfg.Stall)
	case v.unable == "" && !v.ready:
		return refuse(CodeNotAvailable, remedy, "the agent is starting")
	case v.unable == "":
		return nil
	case v.limited:
		return refuse(CodeLimited, remedy, "%s", v.unable)
	}
	return refuse(CodeNotAvailable, remedy, "%s", v.unable)
}

// announce requests that the Node object carries the data that other nodes need. It returns warnings while
// data is missing there, or cannot be published.
func (l *loop) announce() (warnings []string) {
	a, ok := l.backend.(dataplane.Announcer)
	if !ok || l.snapshot == nil {
		return nil
	}
	node, ok := l.snapshot.Nodes.Get(l.cfg.NodeName)
	if !ok {
		return nil
	}
	info := a.NodeInfo()
	if l.cfg.Publish != nil {
		var problem string
		if info, problem = l.cfg.Publish(node, l.node().PodCIDRs, info); problem != "" {
			warnings = append(warnings, "warning: "+problem)
		}
	}
	missing := info.Missing(node)
	if missing == (model.NodeInfo{}) {
		return warnings
	}
	remedy := "add the annotation"
	if l.cfg.Announce != nil {
		l.cfg.Announce(info)
		remedy = "the agent writes it; if this warning persists, see the agent's log"
	}
	return append(warnings, fmt.Sprintf("warning: pods of node %s are unreachable from other nodes until its Node object has %s: %s", l.cfg.NodeName, missing.Text(), remedy))
}

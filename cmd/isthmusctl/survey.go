// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"slices"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/engine"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
)

// survey is one cluster, or two versions of one, cut into groups of ends and
// cells of ports that no policy in any of them can tell apart. What holds for
// one member of a group holds for all, so that a few cells stand for all flows.
type survey struct {
	variants []*variant
	ports    []portCell
	// groups are the pods and the ranges of addresses that nobody has.
	groups []*group
	// nodes are the nodes' addresses, a group each.
	nodes []*group
}

// variant is one version of the cluster, compiled as if it were one node that has
// all pods: its classes then tell apart all that policies can. What nodes treat
// in their own way, ingress from a pod's own node, is added by survey.rows.
type variant struct {
	snapshot *model.Snapshot
	owners   model.Owners
	// parts each have the tables of some of the pods; there are several only if
	// one State cannot hold all classes.
	parts []*part
	home  map[model.PodID]int // index of a pod's part
	// overBlocked is what even the smallest part could not hold.
	overBlocked []model.Unsupported
}

type part struct {
	state *model.State
	// classes are indexed as survey.ports.
	classes []model.PortClass
}

func newVariant(s *model.Snapshot) *variant {
	w := &variant{snapshot: s, owners: s.Owners(), home: make(map[model.PodID]int)}
	var pods []*model.Pod
	for _, p := range s.Pods.All() {
		if p.Policed() && len(p.IPs) > 0 {
			pods = append(pods, p)
		}
	}
	slices.SortFunc(pods, func(a, b *model.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Labels.String(), b.Labels.String()), a.PodID.Compare(b.PodID))
	})
	w.compile(pods, 0)
	return w
}

// maxHalvings bounds the attempts to make the pods of a part fewer.
const maxHalvings = 5

// compile adds the part, or if it takes more classes than a State has the
// parts, of the pods.
func (w *variant) compile(pods []*model.Pod, depth int) {
	endpoints := make(map[model.EndpointID]policy.Endpoint, len(pods))
	for _, p := range pods {
		endpoints[engine.EndpointOf(p)] = policy.Endpoint{Pod: p.PodID, IPs: p.IPs}
	}
	state, unsupported := policy.Compile(policy.Input{Snapshot: w.snapshot, Endpoints: endpoints})
	if len(unsupported) > 0 && len(pods) > 1 && depth < maxHalvings {
		w.compile(pods[:len(pods)/2], depth+1)
		w.compile(pods[len(pods)/2:], depth+1)
		return
	}
	w.overBlocked = append(w.overBlocked, unsupported...)
	for _, p := range pods {
		w.home[p.PodID] = len(w.parts)
	}
	w.parts = append(w.parts, &part{state: state})
}

// table returns the table of a pod, and the index of its part.
func (w *variant) table(id model.PodID, pod *model.Pod) (*model.Table, int) {
	n := w.home[id]
	s := w.parts[n].state
	return s.Tables[s.Endpoints[engine.EndpointOf(pod)].Table], n
}

// newSurvey cuts the versions of a cluster. Ends that not all versions have are
// left out.
func newSurvey(snapshots ...*model.Snapshot) *survey {
	s := &survey{}
	for _, snapshot := range snapshots {
		s.variants = append(s.variants, newVariant(snapshot))
	}
	s.cutPorts()
	s.addPods()
	s.addRanges()
	s.addNodes()
	return s
}

// rows are what decides the flows between two groups in one variant: nil allows.
type rows [2]*model.Row // by direction

// rows returns what decides flows from one group to another.
func (s *survey) rows(w int, from, to *group) rows {
	return rows{model.Egress: s.row(w, from, to, model.Egress), model.Ingress: s.row(w, to, from, model.Ingress)}
}

func (s *survey) row(w int, pod, peer *group, d model.Direction) *model.Row {
	at := &pod.stands[w]
	if at.table == nil {
		return nil // no pod, no policy
	}
	return at.table.Sides[d].Row(peer.stands[w].classes[at.part])
}

// decide returns the verdict of one direction on a cell of ports.
func (s *survey) decide(w int, pod *group, row *model.Row, cell int) model.Verdict {
	if row == nil {
		return model.Allow
	}
	return row.Cell(s.variants[w].parts[pod.stands[w].part].classes[cell]).Verdict
}

// flow returns the verdict of both directions together.
func (s *survey) flow(w int, from, to *group, r rows, cell int) model.Verdict {
	return min(s.decide(w, from, r[model.Egress], cell), s.decide(w, to, r[model.Ingress], cell))
}

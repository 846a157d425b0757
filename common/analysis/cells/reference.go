// SPDX-License-Identifier: Apache-2.0

package cells

import (
	"net/netip"
	"sync"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
)

// Reference is the evaluator of a cluster, with the answers of the peers of its rules for
// the addresses of pods and nodes. It serves all nodes of one snapshot and evaluates each
// rule once. It is safe for concurrent use.
type Reference struct {
	evaluator *policy.Evaluator
	owners    model.Owners
	// remotes are the addresses of pods and nodes; index is the place of each.
	remotes []policy.Remote
	index   map[netip.Addr]int

	mu    sync.Mutex
	asked map[*model.Rule]*column
}

// column is the answers of one rule, by address.
type column struct {
	once    sync.Once
	answers []policy.Answer
}

// NewReference prepares the evaluator of a snapshot.
func NewReference(s *model.Snapshot) *Reference {
	r := &Reference{evaluator: policy.NewEvaluator(s), owners: s.Owners(), index: make(map[netip.Addr]int), asked: make(map[*model.Rule]*column)}
	add := func(a netip.Addr) {
		if _, ok := r.index[a]; !ok {
			r.index[a] = len(r.remotes)
			r.remotes = append(r.remotes, r.evaluator.Remote(a))
		}
	}
	for a := range r.owners.Pods {
		add(a)
	}
	for a := range r.owners.Nodes {
		add(a)
	}
	return r
}

// column returns the answers of a rule for remotes.
func (r *Reference) column(rule *model.Rule) []policy.Answer {
	r.mu.Lock()
	c := r.asked[rule]
	if c == nil {
		c = &column{}
		r.asked[rule] = c
	}
	r.mu.Unlock()
	c.once.Do(func() {
		c.answers = make([]policy.Answer, len(r.remotes))
		for i, remote := range r.remotes {
			c.answers[i] = r.evaluator.Answer(rule, remote)
		}
	})
	return c.answers
}

// resolve resolves an address.
func (r *Reference) resolve(a netip.Addr) policy.Remote {
	if n, ok := r.index[a]; ok {
		return r.remotes[n]
	}
	return r.evaluator.Remote(a)
}

// answers returns the answers of a rule for points.
func (r *Reference) answers(rule *model.Rule, points []point) []policy.Answer {
	known := r.column(rule)
	all := make([]policy.Answer, len(points))
	for i, p := range points {
		if p.known >= 0 {
			all[i] = known[p.known]
		} else {
			all[i] = r.evaluator.Answer(rule, p.remote)
		}
	}
	return all
}

// point is an address that rules are evaluated for.
type point struct {
	remote policy.Remote
	known  int // index of remotes, or -1
}

func (r *Reference) points(addrs []netip.Addr) []point {
	all := make([]point, len(addrs))
	for i, a := range addrs {
		if n, ok := r.index[a]; ok {
			all[i] = point{r.remotes[n], n}
		} else {
			all[i] = point{r.evaluator.Remote(a), -1}
		}
	}
	return all
}

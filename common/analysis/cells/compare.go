// SPDX-License-Identifier: Apache-2.0

package cells

import (
	"context"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
)

// maxProblems bounds the kept problems that belong to no cell.
const maxProblems = 100

// comparison is one run over a node.
type comparison struct {
	node      *Node
	reference *Reference // nil if it is omitted
	owners    model.Owners
	subjects  []subject
	// rules are those of the policies that select a subject; place is the index of each.
	rules []*model.Rule
	place map[*model.Rule]int
	peers []peer
	// firsts are the first addresses of the peers, ascending.
	firsts []netip.Addr
	// answers are those of the rules for the peers, by rule.
	answers [][]policy.Answer
	ports   []portPoint
	result  Result
}

// Compare evaluates every cell on every side. It stops when the context ends. The error is
// that of the context, or of a list that cannot be read at all.
func Compare(ctx context.Context, n *Node) (Result, error) {
	c := &comparison{node: n, reference: n.Reference, place: make(map[*model.Rule]int)}
	switch {
	case n.NoReference:
		c.reference, c.owners = nil, n.Snapshot.Owners()
	case c.reference == nil:
		c.reference = NewReference(n.Snapshot)
		fallthrough
	default:
		c.owners = c.reference.owners
	}
	c.findSubjects()
	c.checkMaps()
	c.findPorts()
	if err := c.findPeers(); err != nil {
		return c.result, fmt.Errorf("node %q: %w", n.State.Node, err)
	}
	if err := c.parseLists(); err != nil {
		return c.result, fmt.Errorf("node %q: %w", n.State.Node, err)
	}
	c.compareAll(ctx)
	return c.result, ctx.Err()
}

func (c *comparison) problem(format string, args ...any) {
	if len(c.result.Problems) < maxProblems {
		c.result.Problems = append(c.result.Problems, fmt.Sprintf("node %q: ", c.node.State.Node)+fmt.Sprintf(format, args...))
	}
}

// parseLists reads the lists of the subjects as HNS does. It returns an error for a list
// that HNS would reject.
func (c *comparison) parseLists() error {
	for _, l := range c.node.Lists {
		reported := l.Reported()
		for i := range c.subjects {
			s := &c.subjects[i]
			if err := l.Prepare(s.id); err != nil {
				return fmt.Errorf("endpoint %s, %s: %w", s.id, l.Title(), err)
			}
			s.reported = append(s.reported, concerns(reported, s))
		}
	}
	return nil
}

// concerns reports whether a report may be about a subject: it names the pod, or a policy.
func concerns(reported []model.Unsupported, s *subject) bool {
	return slices.ContainsFunc(reported, func(u model.Unsupported) bool {
		return u.Policy.Kind != "Pod" || u.Policy.Namespace == s.state.Pod.Namespace && u.Policy.Name == s.state.Pod.Name
	})
}

// compareAll compares the subjects, several at a time.
func (c *comparison) compareAll(ctx context.Context) {
	next := make(chan int)
	results := make([]Result, len(c.subjects))
	count := c.node.Workers
	if count == 0 {
		count = runtime.GOMAXPROCS(0)
	}
	var done atomic.Int64
	var workers sync.WaitGroup
	for range min(count, len(c.subjects)) {
		workers.Go(func() {
			v := newVectors(c)
			for i := range next {
				for _, d := range model.Directions {
					w := &walk{vectors: v, s: &c.subjects[i], d: d}
					w.compare(ctx)
					results[i].Add(w.result)
				}
				if c.node.Progress != nil {
					c.node.Progress(int(done.Add(1)), len(c.subjects))
				}
			}
		})
	}
	for i := range c.subjects {
		if ctx.Err() != nil {
			break
		}
		next <- i
	}
	close(next)
	workers.Wait()
	for _, r := range results {
		c.result.Add(r)
	}
}

// remote picks a member of a peer that is not the subject's own address, because a pod
// reaches itself without policy. It returns -1 if there is none.
func (s *subject) remote(p *peer) int {
	return slices.IndexFunc(p.members, func(a netip.Addr) bool {
		return !slices.Contains(s.state.IPs, a) && !slices.Contains(s.state.Further, a)
	})
}

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

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/engine"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// maxProblems bounds what is kept of what is wrong beside cells.
const maxProblems = 100

// comparison is one run over a node.
type comparison struct {
	node      *Node
	reference *Reference // nil if it is left out
	owners    model.Owners
	subjects  []subject
	// rules are those of the policies that select a subject, and place the index of
	// each.
	rules []*model.Rule
	place map[*model.Rule]int
	peers []peer
	// firsts are the first addresses of the peers, ascending.
	firsts []netip.Addr
	// answers are what the rules answer about the peers, by rule.
	answers  [][]policy.Answer
	ports    []portPoint
	readings [2][]hns.Reading
	result   Result
}

// Compare asks every side about every cell. It stops when the context ends. The
// error is that, or a list that cannot be read at all.
func Compare(ctx context.Context, n *Node) (Result, error) {
	c := &comparison{node: n, reference: n.Reference, readings: engine.ReadingsBySet(), place: make(map[*model.Rule]int)}
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

// lists returns the distinct lists of all variants.
func (c *comparison) lists() [][]hns.ACL {
	var all [][]hns.ACL
	for _, l := range c.node.Lists {
		all = append(all, distinct(l.Ruleset.Lists)...)
	}
	return all
}

// distinct returns the lists that are not one and the same.
func distinct(lists map[model.EndpointID][]hns.ACL) [][]hns.ACL {
	seen := make(map[*hns.ACL]bool)
	var all [][]hns.ACL
	for _, l := range lists {
		if len(l) > 0 && !seen[&l[0]] {
			seen[&l[0]] = true
			all = append(all, l)
		}
	}
	return all
}

// parseLists reads the subjects' lists as HNS does. What HNS would refuse is an
// error.
func (c *comparison) parseLists() error {
	parsed := make([]map[*hns.ACL]*hns.Rules, len(c.node.Lists))
	for i := range c.subjects {
		s := &c.subjects[i]
		s.rules, s.reported = make([]*hns.Rules, len(c.node.Lists)), make([]bool, len(c.node.Lists))
		for v, l := range c.node.Lists {
			list := l.Ruleset.Lists[s.id]
			var key *hns.ACL
			if len(list) > 0 {
				key = &list[0]
			}
			if parsed[v] == nil {
				parsed[v] = make(map[*hns.ACL]*hns.Rules)
			}
			if parsed[v][key] == nil {
				rules, err := engine.ParseList(l.Ruleset, list)
				if err != nil {
					return fmt.Errorf("endpoint %s, %s: %w", s.id, l.Name, err)
				}
				parsed[v][key] = rules
			}
			s.rules[v] = parsed[v][key]
			s.readings = append(s.readings, c.readings[:])
			if !s.rules[v].EmptySets() {
				s.readings[v] = [][]hns.Reading{hns.Readings()}
			}
			s.reported[v] = c.concerns(l.Reported, s)
		}
	}
	return nil
}

// concerns reports whether something that was reported may be about a subject:
// it names the pod, or a policy.
func (c *comparison) concerns(reported []model.Unsupported, s *subject) bool {
	return slices.ContainsFunc(reported, func(u model.Unsupported) bool {
		if u.Construct == noIPv6 {
			return false // judged by the address
		}
		return u.Policy.Kind != "Pod" || u.Policy.Namespace == s.state.Pod.Namespace && u.Policy.Name == s.state.Pod.Name
	})
}

// noIPv6 is the construct that package acl reports where HNS knows no IPv6.
const noIPv6 = "IPv6"

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

// remote picks a member of a peer that is not the subject's own address, with
// which it would speak without meeting a policy. It returns -1 if there is none.
func (s *subject) remote(p *peer) int {
	return slices.IndexFunc(p.members, func(a netip.Addr) bool { return !slices.Contains(s.state.IPs, a) })
}

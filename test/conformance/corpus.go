// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/engine"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/corpus"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// corpus writes what every step of every case becomes and asks what HNS holds.
// The error is of what the next case needs: those of the cases are counted.
func (b *bench) corpus(ctx context.Context, cases []corpus.Case) (c Comparison, err error) {
	known := make(map[string]*hns.Rules)
	began := time.Now()
	defer func() { c.Seconds = time.Since(began).Seconds() }()
	for i := range cases {
		c.Cases++
		var cluster *engine.Cluster
		for number, step := range cases[i].Steps {
			c.Steps++
			cluster = engine.Compile(step.Snapshot, cluster)
			s := &stepRun{bench: b, Comparison: &c, cluster: cluster, where: fmt.Sprintf("%s step %d", cases[i].Name, number+1), known: known, rules: make(map[place]*hns.Rules)}
			if err := s.run(ctx, step.Flows); err != nil {
				return c, fmt.Errorf("%s: %w", s.where, err)
			}
		}
	}
	return c, nil
}

// place is an endpoint of a case.
type place struct {
	node     string
	endpoint model.EndpointID
}

// stepRun is one step of a case.
type stepRun struct {
	*bench
	*Comparison
	cluster *engine.Cluster
	where   string
	// rules are what HNS holds for each endpoint; endpoints whose list was
	// refused have none.
	rules map[place]*hns.Rules
	// known are those of lists of all steps so far, by what was written.
	known map[string]*hns.Rules
}

func (s *stepRun) run(ctx context.Context, flows []corpus.Flow) error {
	o := acl.Options{Sets: s.version.Supports(hns.Sets), NoIPv6: !s.version.Supports(hns.DualStack)}.Defaults()
	for _, node := range slices.Sorted(maps.Keys(s.cluster.States)) {
		s.install(ctx, node, acl.Lower(s.cluster.States[node], o, "HNS "+s.version.String()))
	}
	if len(s.sets) > 0 { // names of sets come again, with other members
		if err := s.clean(ctx); err != nil {
			return err
		}
	}
	for _, f := range flows {
		s.ask(f, o)
	}
	return ctx.Err()
}

// install writes the sets and lists of a node, one after the other to the one
// endpoint, and keeps what HNS says that it holds. What was written before is
// not written again.
func (s *stepRun) install(ctx context.Context, node string, l *acl.Lowering) {
	for _, id := range slices.Sorted(maps.Keys(l.Lists)) {
		list := l.Programme.Lists[id]
		text := written(&l.Programme, list)
		rules, known := s.known[text]
		if !known {
			s.putSets(ctx, &l.Programme, list)
			rules = s.put(ctx, id, list)
			s.known[text] = rules
		}
		s.rules[place{node, id}] = rules
	}
}

// written is what HNS is given for a list, as text.
func written(p *acl.Programme, list []hns.ACL) string {
	var b strings.Builder
	b.WriteString(hns.FormatACLs("", list))
	for _, id := range slices.Sorted(maps.Keys(p.Sets)) {
		if acl.RefersTo(list, id) {
			fmt.Fprintf(&b, "%s\n", acl.EncodeSet(id, p.Sets[id]))
		}
	}
	return b.String()
}

// putSets makes the sets that a list refers to.
func (s *stepRun) putSets(ctx context.Context, p *acl.Programme, list []hns.ACL) {
	for _, id := range slices.Sorted(maps.Keys(p.Sets)) {
		set := acl.EncodeSet(id, p.Sets[id])
		if !acl.RefersTo(list, id) || s.sets[id] == set {
			continue
		}
		s.Comparison.Sets++
		held, err := s.set(ctx, set)
		switch {
		case err != nil:
			s.Refused++
			s.note("%s: set %s: %v", s.where, id, err)
		case !held:
			s.Differ++
			s.note("%s: set %s: hns holds something else", s.where, id)
		}
	}
}

// put writes a list and returns what HNS holds then; nil if it refuses.
func (s *stepRun) put(ctx context.Context, id model.EndpointID, list []hns.ACL) *hns.Rules {
	s.Lists++
	began := time.Now()
	got, err := s.list(ctx, list...)
	s.SlowestSeconds = max(s.SlowestSeconds, time.Since(began).Seconds())
	var rules *hns.Rules
	if err == nil {
		if !acl.Equal(got, list) {
			s.Differ++
			s.note("%s: %s: hns holds other ACLs than it was given:\n%s", s.where, id, hns.FormatACLs("  ", got))
		}
		rules, err = hns.ParseRules(got, s.held())
	}
	if err != nil {
		s.Refused++
		s.note("%s: %s: %v", s.where, id, err)
		return nil
	}
	return rules
}

// ask decides a flow by what HNS holds, under every reading.
func (s *stepRun) ask(f corpus.Flow, o acl.Options) {
	switch {
	case f.Src == f.Dst, f.Src.Is6() != f.Dst.Is6(), f.Src.Is6() && o.NoIPv6:
		return // passes no port, or is denied and reported
	case f.Protocol == model.ICMP && f.Src.Is6(), f.Protocol == model.ICMPv6 && f.Src.Is4():
		return // no such packet can exist
	}
	var asked []engine.Question
	for _, q := range s.cluster.Questions(f.Flow) {
		if !q.Pod.Policed() {
			continue
		}
		if slices.Contains(q.Pod.IPs, q.Remote) {
			return // a pod and itself
		}
		if s.rules[place{q.Node, q.Endpoint}] == nil {
			s.note("%s: %s: not asked, as its list was refused", s.where, f.Text)
			return
		}
		asked = append(asked, q)
	}
	if len(asked) == 0 {
		return
	}
	for _, reading := range hns.Readings() {
		verdict := model.Allow
		for _, q := range asked {
			local := f.Src
			if q.Direction == model.Ingress {
				local = f.Dst
			}
			p := hns.Packet{Direction: acl.PacketDirection(q.Direction), Local: local, Remote: q.Remote, Protocol: uint8(q.Protocol), Port: q.Port, SourcePort: 40000}
			if !s.rules[place{q.Node, q.Endpoint}].Decide(p, reading).Allow {
				verdict = model.Deny
			}
		}
		s.Verdicts++
		if verdict != f.Want {
			s.Differ++
			s.note("%s: %s: hns says %s if it is read as %s", s.where, f.Text, verdict, reading)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/common/analysis/engine"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/corpus"
	"github.com/isthmus-net/isthmus/test/hnsemu/facts"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// corpus writes the lists and sets of every step of every case, and reads them back. It counts the failures of
// cases. It returns an error if it cannot run the next case.
func (b *bench) corpus(ctx context.Context, cases []corpus.Case) (c Comparison, err error) {
	known := make(map[string]*held)
	began := time.Now()
	defer func() { c.Seconds = time.Since(began).Seconds() }()
	for i := range cases {
		c.Cases++
		var cluster *engine.Cluster
		for number, step := range cases[i].Steps {
			c.Steps++
			cluster = engine.Compile(step.Snapshot, cluster)
			s := &stepRun{bench: b, Comparison: &c, cluster: cluster, where: fmt.Sprintf("%s step %d", cases[i].Name, number+1),
				known: known, held: make(map[place]*held)}
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
	// held is the list that HNS has for each endpoint; an endpoint whose list was refused has none.
	held map[place]*held
	// known holds the lists of all steps so far, by the written text.
	known map[string]*held
}

// held is a list as HNS reports it. Two evaluators decide it: that of the product, and one that shares no code
// with it.
type held struct {
	rules *hns.Rules
	facts *facts.Port
}

func (s *stepRun) run(ctx context.Context, flows []corpus.Flow) error {
	o := acl.Options{Sets: s.version.Supports(hns.Sets), NoIPv6: !s.version.Supports(hns.DualStack)}.Defaults()
	for _, node := range slices.Sorted(maps.Keys(s.cluster.States)) {
		s.install(ctx, node, acl.Lower(s.cluster.States[node], o, "HNS "+s.version.String()))
	}
	if len(s.sets) > 0 { // set names repeat with other members
		if err := s.clean(ctx); err != nil {
			return err
		}
	}
	for _, f := range flows {
		s.ask(f, o)
	}
	return ctx.Err()
}

// install writes the sets and lists of a node, one after the other to the same endpoint, and records what HNS
// reports. It writes each list only once.
func (s *stepRun) install(ctx context.Context, node string, l *acl.Lowering) {
	for _, id := range slices.Sorted(maps.Keys(l.Lists)) {
		list := l.Ruleset.Lists[id]
		text := written(&l.Ruleset, list)
		h, known := s.known[text]
		if !known {
			s.putSets(ctx, &l.Ruleset, list)
			h = s.put(ctx, id, list)
			s.known[text] = h
		}
		s.held[place{node, id}] = h
	}
}

// written returns the request for a list, as text.
func written(p *acl.Ruleset, list []hns.ACL) string {
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
func (s *stepRun) putSets(ctx context.Context, p *acl.Ruleset, list []hns.ACL) {
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

// put writes a list and returns what HNS then reports; nil if HNS refuses it.
func (s *stepRun) put(ctx context.Context, id model.EndpointID, list []hns.ACL) *held {
	s.Lists++
	began := time.Now()
	got, err := s.list(ctx, list...)
	s.SlowestSeconds = max(s.SlowestSeconds, time.Since(began).Seconds())
	h := &held{}
	if err == nil {
		if !acl.Equal(got, list) {
			s.Differ++
			s.note("%s: %s: hns holds other ACLs than it was given:\n%s", s.where, id, hns.FormatACLs("  ", got))
		}
		h.rules, err = hns.ParseRules(got, s.made())
	}
	if err == nil {
		h.facts, err = s.read(got)
	}
	if err != nil {
		s.Refused++
		s.note("%s: %s: %v", s.where, id, err)
		return nil
	}
	return h
}

// read passes a list and the sets of the bench to the other evaluator, as JSON.
func (s *stepRun) read(list []hns.ACL) (*facts.Port, error) {
	var endpoint, network []json.RawMessage
	var errs []error
	add := func(to *[]json.RawMessage, p hns.Policy) {
		b, err := json.Marshal(p)
		*to, errs = append(*to, b), append(errs, err)
	}
	for _, a := range list {
		add(&endpoint, a.Policy())
	}
	for _, set := range s.made() {
		add(&network, set.Policy())
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return facts.Read(endpoint, network)
}

// ask decides a flow by the lists that HNS reports, under every reading.
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
		if s.held[place{q.Node, q.Endpoint}] == nil {
			s.note("%s: %s: not asked, as its list was refused", s.where, f.Text)
			return
		}
		asked = append(asked, q)
	}
	if len(asked) == 0 {
		return
	}
	s.byTheFacts(f, asked)
	for _, reading := range hns.Readings() {
		verdict := model.Allow
		for _, q := range asked {
			local := f.Src
			if q.Direction == model.Ingress {
				local = f.Dst
			}
			p := hns.Packet{Direction: acl.PacketDirection(q.Direction), Local: local, Remote: q.Remote, Protocol: uint8(q.Protocol),
				Port: q.Port, SourcePort: sourcePort}
			if !s.held[place{q.Node, q.Endpoint}].rules.Decide(p, reading).Allow {
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

// sourcePort is the source port of flows of protocols with ports.
const sourcePort = 40000

// byTheFacts decides a flow by the documented facts about HNS.
func (s *stepRun) byTheFacts(f corpus.Flow, asked []engine.Question) {
	k := facts.Packet{From: f.Src, To: f.Dst, Protocol: int(f.Protocol), ToPort: int(f.Port)}
	if f.Protocol.HasPorts() {
		k.FromPort = sourcePort
	}
	verdict := model.Allow
	for _, q := range asked {
		way := facts.In
		if q.Direction == model.Egress {
			way = facts.Out
		}
		pass, err := s.held[place{q.Node, q.Endpoint}].facts.Decide(way, k)
		if err != nil {
			s.Differ++
			s.note("%s: %s: by the facts: %v", s.where, f.Text, err)
			return
		}
		if !pass {
			verdict = model.Deny
		}
	}
	if s.Facts++; verdict != f.Want {
		s.Differ++
		s.note("%s: %s: by the facts hns says %s", s.where, f.Text, verdict)
	}
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/common/analysis/engine"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/corpus"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// Sent compares the corpus with the packets that pass between the two pods. They get the lists of the flow's ends,
// with addresses exchanged for their own.
type Sent struct {
	Flows  int // that packets asked
	Lists  int // pairs of lists that were written
	Differ int // flows whose packets met another verdict
	Late   int // flows that met the right verdict a second later only
	// Left are flows that no packet asked: of other protocols, of IPv6, of refused lists, to ports that are in use, and
	// those after the time was up.
	Left    int
	Seconds float64
	// Why explains an empty result.
	Why   string
	First []string
}

func (s *Sent) note(format string, args ...any) {
	if len(s.First) < maxFirst {
		s.First = append(s.First, fmt.Sprintf(format, args...))
	}
}

// sending is one flow of the corpus as the pods send it.
type sending struct {
	where    string
	protocol model.Protocol
	port     uint16
	want     model.Verdict
	ends     [2]translated // of A, which sends, and of B
}

// key identifies the packet and the lists; one flow of each key is sent.
func (s *sending) key() string {
	return fmt.Sprintf("%s %d/%d", s.lists(), s.protocol, s.port)
}

// lists identifies the lists and sets.
func (s *sending) lists() string {
	var b strings.Builder
	for _, end := range s.ends {
		b.WriteString(hns.FormatACLs("", end.list))
		for _, set := range end.sets {
			fmt.Fprintf(&b, "%s\n", set)
		}
	}
	return b.String()
}

// sendings returns the flows of the corpus that two pods can send, shuffled, those with the same lists beside each
// other, and the number of the others.
func sendings(cases []corpus.Case, a, b netip.Addr, v hns.Version) (all []sending, left int) {
	o := acl.Options{Sets: v.Supports(hns.Sets), NoIPv6: !v.Supports(hns.DualStack)}.Defaults()
	seen, place := make(map[string]bool), make(map[string]int)
	var groups [][]sending
	for i := range cases {
		var cluster *engine.Cluster
		for number, step := range cases[i].Steps {
			cluster = engine.Compile(step.Snapshot, cluster)
			lowered := make(map[string]*acl.Lowering)
			for node, state := range cluster.States {
				lowered[node] = acl.Lower(state, o, "HNS "+v.String())
			}
			for _, f := range step.Flows {
				s, err := sendable(cluster, lowered, f, a, b)
				if err != nil {
					left++
					continue
				}
				s.where = fmt.Sprintf("%s step %d: %s", cases[i].Name, number+1, f.Text)
				key := s.key()
				if seen[key] {
					continue
				}
				seen[key] = true
				lists := s.lists()
				if _, ok := place[lists]; !ok {
					place[lists] = len(groups)
					groups = append(groups, nil)
				}
				groups[place[lists]] = append(groups[place[lists]], s)
			}
		}
	}
	// A run that ends early has asked flows of all cases.
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(groups), func(i, j int) { groups[i], groups[j] = groups[j], groups[i] })
	return slices.Concat(groups...), left
}

var errNotSendable = errors.New("two pods cannot send this flow")

// sendable exchanges the addresses of both ends of a flow.
func sendable(c *engine.Cluster, lowered map[string]*acl.Lowering, f corpus.Flow, a, b netip.Addr) (sending, error) {
	s := sending{protocol: f.Protocol, port: f.Port, want: f.Want, ends: [2]translated{{list: allowAll()}, {list: allowAll()}}}
	if f.Src == f.Dst || !f.Src.Is4() || !f.Dst.Is4() || f.Port == 0 || f.Protocol != model.TCP && f.Protocol != model.UDP {
		return s, errNotSendable
	}
	asked := 0
	for _, q := range c.Questions(f.Flow) {
		if q.Self() {
			return s, errNotSendable
		}
		if !q.Pod.Policed() {
			continue
		}
		l := lowered[q.Node]
		if l == nil || len(l.Ruleset.Lists[q.Endpoint]) == 0 {
			return s, fmt.Errorf("no list: %w", errNotSendable)
		}
		side, other := 0, b // the sender's end sees B
		if q.Direction == model.Ingress {
			side, other = 1, a
		}
		var err error
		if s.ends[side], err = translate(l.Ruleset.Lists[q.Endpoint], l.Ruleset.Sets, exchange(q.Remote, other), side); err != nil {
			return s, err
		}
		asked++
	}
	if asked == 0 {
		return s, errNotSendable // no list decides it
	}
	return s, nil
}

// sendCorpus writes the lists of each flow to the pods and sends its packet, until the time is up.
func (p *pair) sendCorpus(ctx context.Context, cases []corpus.Case, budget time.Duration) (c Sent, err error) {
	began := time.Now()
	defer func() { c.Seconds = time.Since(began).Seconds() }()
	all, left := sendings(cases, p.a.ip, p.b.ip, p.version)
	c.Left = left
	written, refused := "", false
	for i := range all {
		if time.Since(began) > budget {
			c.Left += len(all) - i
			c.note("the time of %s was up after %d of %d flows: see --packet-time", budget, i, len(all))
			break
		}
		s := &all[i]
		if lists := s.lists(); lists != written {
			why, err := p.putEnds(ctx, s)
			if err != nil {
				return c, fmt.Errorf("%s: %w", s.where, err)
			}
			c.Lists++
			if written, refused = lists, why != ""; refused {
				c.note("%s: %s", s.where, why)
			}
		}
		if refused {
			c.Left++
			continue
		}
		if err := p.sendOne(ctx, s, &c); ctx.Err() != nil {
			return c, fmt.Errorf("%s: %w", s.where, err)
		} else if err != nil { // such as a port that another program holds
			c.Left++
			c.note("%s: not sent: %v", s.where, err)
		}
	}
	return c, errors.Join(p.open(ctx), p.removeSets(ctx))
}

// putEnds replaces the lists and sets of both ends, or says why HNS does not hold them.
func (p *pair) putEnds(ctx context.Context, s *sending) (why string, err error) {
	if len(p.sets) > 0 { // no list may refer to a set that is removed
		if err := errors.Join(p.open(ctx), p.removeSets(ctx)); err != nil {
			return "", err
		}
		p.holds = [2]string{}
	}
	for i, end := range []pod{p.a, p.b} {
		for _, set := range s.ends[i].sets {
			held, err := p.set(ctx, set)
			text, err := taken(err)
			if err != nil || text != "taken" || !held {
				return fmt.Sprintf("set %s was %s, held: %t", set.ID, text, held), err
			}
		}
		now := hns.FormatACLs("", s.ends[i].list)
		if now == p.holds[i] {
			continue
		}
		text, err := taken(p.write(ctx, end, s.ends[i].list...))
		if err != nil || text != "taken" {
			p.holds[i] = ""
			return "the list was " + text, err
		}
		p.holds[i] = now
	}
	return "", nil
}

// sendOne sends one packet. After a wrong verdict it sends another a second later: the lists are fresh.
func (p *pair) sendOne(ctx context.Context, s *sending, c *Sent) error {
	got, err := p.verdict(ctx, s)
	if err != nil {
		return err
	}
	if got == s.want {
		c.Flows++
		return nil
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(p.again):
	}
	if got, err = p.verdict(ctx, s); err != nil {
		return err
	}
	c.Flows++
	if got == s.want {
		c.Late++
		c.note("%s: right only after a second", s.where)
		return nil
	}
	c.Differ++
	c.note("%s: the packets say %s; A has\n%sB has\n%s", s.where, got, hns.FormatACLs("  ", s.ends[0].list), hns.FormatACLs("  ", s.ends[1].list))
	return nil
}

// denyTime is how long a packet that should be denied is waited for. One that passes arrives within milliseconds.
const denyTime = 500 * time.Millisecond

// verdict sends the packet of a flow.
func (p *pair) verdict(ctx context.Context, s *sending) (model.Verdict, error) {
	wait := connectTime
	if s.want == model.Deny {
		wait = denyTime
	}
	reached, err := p.wire.Send(ctx, p.a, p.b, packet{s.protocol, s.port}, wait)
	if reached {
		return model.Allow, err
	}
	return model.Deny, err
}

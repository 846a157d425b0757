// SPDX-License-Identifier: Apache-2.0

package acl_test

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/world"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
)

var longer = flag.Uint64("seeds", 15, "random clusters per shape and profile in TestPlanNeverShowsAMixture")

// clone copies the maps of a Ruleset, so that steps can be applied to it.
func clone(p *acl.Ruleset) *acl.Ruleset {
	return &acl.Ruleset{Lists: maps.Clone(p.Lists), Sets: maps.Clone(p.Sets)}
}

// apply executes one step as HNS would. It reports steps that HNS would refuse.
func apply(p *acl.Ruleset, s acl.Step) error {
	_, exists := p.Sets[s.Set]
	switch s.Action {
	case acl.Confirm:
		return nil
	case acl.WriteList:
		p.Lists[s.Endpoint] = s.List
		_, err := p.Rules(s.Endpoint)
		return err
	case acl.RemoveSet:
		delete(p.Sets, s.Set)
		for id := range p.Lists {
			if _, err := p.Rules(id); err != nil {
				return fmt.Errorf("set in use: %w", err)
			}
		}
		return nil
	}
	if exists == s.Make {
		return fmt.Errorf("%s %s: make is %t, but exists is %t", s.Action, s.Set, s.Make, exists)
	}
	p.Sets[s.Set] = s.Members
	return nil
}

// fates are the verdicts of an endpoint before and after a change, by direction,
// address and port.
type fates struct {
	id      model.EndpointID
	local   netip.Addr
	remotes []netip.Addr
	ports   []world.Port
	was, is [2][]bool
}

func newFates(id model.EndpointID, old, new *model.State, addrs []netip.Addr, ports []world.Port) *fates {
	f := &fates{id: id, local: new.Policy.Endpoints[id].IPs[0], ports: ports}
	for _, a := range addrs {
		// Loopback addresses are placeholders in empty sets; no packet has them.
		if !a.IsLoopback() && !slices.Contains(new.Policy.Endpoints[id].IPs, a) && !slices.Contains(old.Policy.Endpoints[id].IPs, a) {
			f.remotes = append(f.remotes, a)
		}
	}
	for _, d := range model.Directions {
		for _, a := range f.remotes {
			f.was[d] = appendVerdicts(f.was[d], &old.Policy, id, d, a, ports)
			f.is[d] = appendVerdicts(f.is[d], &new.Policy, id, d, a, ports)
		}
	}
	return f
}

// appendVerdicts appends what Decide says of each port, but finds the class of the remote address only once. The
// address is none of the endpoint.
func appendVerdicts(to []bool, s *model.PolicyState, id model.EndpointID, d model.Direction, remote netip.Addr, ports []world.Port) []bool {
	table, class := s.Tables[s.Endpoints[id].Table], s.Class(remote)
	for _, at := range ports {
		to = append(to, table != nil && table.Sides[d].Row(class).Cell(s.PortClass(at.Protocol, at.Port)).Verdict == model.Allow)
	}
	return to
}

// check compares the verdicts of the rules with those before and after. With last, only the
// verdicts after count.
func (f *fates) check(rules *hns.Rules, last bool) (cells int, err error) {
	for _, d := range model.Directions {
		for _, remote := range f.remotes {
			part := rules.Between(acl.PacketDirection(d), f.local, remote, hns.Reading{})
			for _, at := range f.ports {
				n := cells - len(f.was[0])*int(d)
				was, is := f.was[d][n], f.is[d][n]
				got := part.Decide(uint8(at.Protocol), at.Port, 0)
				cells++
				if got.Allow != is && (last || got.Allow != was) {
					return cells, fmt.Errorf("%s %s %s %s/%d is %t by %q, before the change %t, after it %t", f.id, d, remote, at.Protocol, at.Port, got.Allow, got.ID, was, is)
				}
			}
		}
	}
	return cells, nil
}

// errMixture is a flow whose verdict equals neither the one before nor the one after.
var errMixture = errors.New("a mixture")

// walk executes a plan and checks after every step that every affected endpoint decides each flow
// as before or as after.
func walk(from *acl.Ruleset, plan *acl.Plan, old, new *model.State, addrs []netip.Addr, ports []world.Port) (cells int, err error) {
	var all []*fates
	for id := range new.Policy.Endpoints {
		all = append(all, newFates(id, old, new, addrs, ports))
	}
	now := clone(from)
	for n, step := range plan.Steps {
		for _, i := range append(slices.Clone(step.Needs), step.Waits...) {
			if i >= n {
				return cells, fmt.Errorf("step %d depends on step %d", n, i)
			}
		}
		if err := apply(now, step); err != nil {
			return cells, fmt.Errorf("step %d: %w", n, err)
		}
		for _, f := range all {
			if step.Action == acl.Confirm || step.Endpoint != f.id && !strings.Contains(hns.FormatACLs("", now.Lists[f.id]), step.Set) {
				continue
			}
			rules, err := now.Rules(f.id)
			if err != nil {
				return cells, err
			}
			c, err := f.check(rules, false)
			cells += c
			if err != nil {
				return cells, fmt.Errorf("%w after step %d of %d (%s %s%s): %w", errMixture, n, len(plan.Steps), step.Action, step.Set, step.Endpoint, err)
			}
		}
	}
	for _, f := range all {
		rules, err := now.Rules(f.id)
		if err != nil {
			return cells, err
		}
		if _, err := f.check(rules, true); err != nil {
			return cells, fmt.Errorf("at the end: %w", err)
		}
	}
	return cells, nil
}

// inForce returns the state of HNS after a Ruleset. New endpoints have default deny.
func inForce(p *acl.Ruleset, s *model.State) *acl.Ruleset {
	c := clone(p)
	for id := range s.Policy.Endpoints {
		if c.Lists[id] == nil {
			c.Lists[id] = acl.DenyAll()
		}
	}
	for id := range c.Lists {
		if _, ok := s.Policy.Endpoints[id]; !ok {
			delete(c.Lists, id)
		}
	}
	return c
}

// TestPlanNeverShowsAMixture executes random changes of clusters step by step.
func TestPlanNeverShowsAMixture(t *testing.T) {
	seeds := *longer
	if testing.Short() {
		seeds = 4
	}
	cells, steps, renamed, late, confirmed, inlined := 0, 0, 0, 0, 0, 0
	for _, profile := range []hns.Version{hns.Server2019, hns.Server2022} {
		for i, shape := range []world.Shape{{Pods: 6, Policies: 4}, {Pods: 6, Policies: 5, Tiers: true}, {Pods: 5, Policies: 4, Tiers: true, IPv6: true}, {Pods: 9, Policies: 3, Nodes: 1}} {
			for seed := range seeds {
				t.Run(fmt.Sprintf("hns%s/shape%d/%d", profile, i, seed), func(t *testing.T) {
					o := options(profile)
					a := world.Random(seed, shape)
					old := stateOf(a, "node1", nil)
					now := clone(&acl.Lower(old, o, "").Ruleset)
					addrs, ports := world.Probes(a)
					for round := range uint64(3) {
						b := world.Mutate(seed*7+round, a, shape, 1+int(seed+round)%5)
						previous := old
						if seed%5 == 4 {
							previous = nil // as after a restart
						}
						next := stateOf(b, "node1", previous)
						more, morePorts := world.Probes(b)
						from := inForce(now, next)
						to := acl.Lower(next, o, "").Keep(from)
						plan := acl.NewPlan(from, to)
						c, err := walk(from, plan, old, next, append(addrs, more...), append(ports, morePorts...))
						if err != nil {
							t.Fatal(err)
						}
						if c, err := walkLate(from, plan, old, next, append(addrs, more...), append(ports, morePorts...)); err != nil {
							t.Fatal(err)
						} else {
							late += c
						}
						cells += c
						steps += len(plan.Steps)
						confirmed += count(plan, acl.Confirm)
						inlined += inlinedLists(plan, to)
						if len(plan.Target.Sets) > 0 && !maps.EqualFunc(plan.Target.Sets, to.Sets, slices.Equal[[]netip.Addr]) {
							renamed++
						}
						for id := range next.Policy.Endpoints {
							if err := acl.Check(next, id, o, plan.Target, hns.Reading{}, hns.Reading{Default: hns.PerDirection, Tie: hns.AllowFirst, Host: hns.HostClosed, Set: hns.EmptyMatchesAll}); err != nil {
								t.Fatal(err)
							}
						}
						a, old, now, addrs, ports = b, next, plan.Target, more, morePorts
					}
				})
			}
		}
	}
	t.Logf("cells=%d steps=%d plans with a set made anew=%d late=%d confirmed=%d inlined=%d", cells, steps, renamed, late, confirmed, inlined)
	if late == 0 || confirmed == 0 || inlined == 0 {
		t.Error("no write was late, none was confirmed, or no list had addresses instead of a late set")
	}
}

// TestWalkFindsWrongOrder checks that TestPlanNeverShowsAMixture can fail: the same steps in
// another order show mixtures.
func TestWalkFindsWrongOrder(t *testing.T) {
	shape := world.Shape{Pods: 9, Policies: 6, Tiers: true}
	mixtures, tried := 0, 0
	for seed := range uint64(120) {
		if mixtures > 0 {
			break // the mixture is detected
		}
		tried++
		a := world.Random(seed, shape)
		old := stateOf(a, "node1", nil)
		b := world.Mutate(seed, a, shape, 4)
		next := stateOf(b, "node1", old)
		o := options(hns.Server2022)
		from := inForce(&acl.Lower(old, o, "").Ruleset, next)
		plan := acl.NewPlan(from, acl.Lower(next, o, "").Keep(from))
		turn := map[acl.Action]int{acl.RemoveMembers: 0, acl.AddMembers: 1, acl.WriteList: 2}
		slices.SortStableFunc(plan.Steps, func(x, y acl.Step) int { return turn[x.Action] - turn[y.Action] })
		for i := range plan.Steps {
			plan.Steps[i].Needs, plan.Steps[i].Waits = nil, nil
		}
		plan.Steps = slices.DeleteFunc(plan.Steps, func(s acl.Step) bool { return s.Action == acl.RemoveSet })
		addrs, ports := world.Probes(a)
		more, morePorts := world.Probes(b)
		if _, err := walk(from, plan, old, next, append(addrs, more...), append(ports, morePorts...)); errors.Is(err, errMixture) {
			mixtures++
		}
	}
	t.Logf("%d of %d disordered plans show a mixture", mixtures, tried)
	if mixtures == 0 {
		t.Error("no disorder was noticed")
	}
}

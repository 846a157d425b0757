// SPDX-License-Identifier: Apache-2.0

package acl_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/world"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// failingAt executes a plan of which one step fails, as package windows does. It skips steps that
// need a skipped step, and steps that wait for one, unless they tighten policy. It calls seen after
// every executed step.
func failingAt(from *acl.Ruleset, plan *acl.Plan, bad int, seen func(now *acl.Ruleset, s acl.Step) error) error {
	now := clone(from)
	failed := map[int]bool{bad: true}
	for n, step := range plan.Steps {
		for _, i := range step.Needs {
			failed[n] = failed[n] || failed[i]
		}
		for _, i := range step.Waits {
			failed[n] = failed[n] || failed[i] && !step.Tightens
		}
		if failed[n] {
			continue
		}
		if err := apply(now, step); err != nil {
			return fmt.Errorf("step %d: hns would refuse it: %w", n, err)
		}
		if err := seen(now, step); err != nil {
			return fmt.Errorf("after step %d (%s %s%s): %w", n, step.Action, step.Set, step.Endpoint, err)
		}
	}
	return nil
}

// between compares the verdicts of an endpoint with those before and after. A flow that both deny
// must be denied. With exact, a flow that both allow must pass.
func (f *fates) between(rules *hns.Rules, exact bool) error {
	n := [2]int{}
	for _, d := range model.Directions {
		for _, remote := range f.remotes {
			part := rules.Between(acl.PacketDirection(d), f.local, remote, hns.Reading{})
			for _, at := range f.ports {
				was, is := f.was[d][n[d]], f.is[d][n[d]]
				n[d]++
				if was != is {
					continue
				}
				if got := part.Decide(uint8(at.Protocol), at.Port, 0); got.Allow != is && (got.Allow || exact) {
					return fmt.Errorf("%s %s %s %s/%d is %t by %q, before and after the change %t", f.id, d, remote, at.Protocol, at.Port, got.Allow, got.ID, is)
				}
			}
		}
	}
	return nil
}

// distinct returns one address and one port of each kind that a State distinguishes.
func distinct(old, next *model.State, a, b *model.Snapshot) (addrs []netip.Addr, ports []world.Port) {
	allAddrs, allPorts := world.Probes(a)
	more, morePorts := world.Probes(b)
	type kind struct {
		was, is           model.PeerClass
		wasOwned, isOwned bool
		v6                bool
	}
	seen := make(map[kind]bool)
	for _, addr := range append(allAddrs, more...) {
		k := kind{was: old.Policy.Class(addr), is: next.Policy.Class(addr), v6: addr.Is6()}
		_, k.wasOwned = old.Policy.Addresses.Get(addr)
		_, k.isOwned = next.Policy.Addresses.Get(addr)
		if !seen[k] {
			seen[k] = true
			addrs = append(addrs, addr)
		}
	}
	type portKind struct {
		protocol model.Protocol
		was, is  model.PortClass
	}
	seenPort := make(map[portKind]bool)
	for _, at := range append(allPorts, morePorts...) {
		k := portKind{at.Protocol, old.Policy.PortClass(at.Protocol, at.Port), next.Policy.PortClass(at.Protocol, at.Port)}
		if !seenPort[k] {
			seenPort[k] = true
			ports = append(ports, at)
		}
	}
	return addrs, ports
}

// TestPlanFailsClosed makes every step of every plan fail. In the executed steps, no flow passes
// that the old and the new policies deny. While no list fails, no flow that both allow is cut:
// members leave a set only after they joined the set to which they move.
func TestPlanFailsClosed(t *testing.T) {
	seeds := uint64(120)
	if testing.Short() {
		seeds = 40
	}
	failures, kinds := 0, make(map[acl.Action]int)
	for i, shape := range []world.Shape{{Pods: 7, Policies: 5, Tiers: true}, {Pods: 8, Policies: 3, Nodes: 1}, {Pods: 9, Policies: 8, Tiers: true, Nodes: 2}} {
		for seed := range seeds {
			a := world.Random(seed+2000, shape)
			b := world.Mutate(seed, a, shape, 1+int(seed)%4)
			old := stateOf(a, "node1", nil)
			next := stateOf(b, "node1", old)
			o := options(hns.Server2022)
			from := inForce(&acl.Lower(old, o, "").Ruleset, next)
			plan := acl.NewPlan(from, acl.Lower(next, o, "").Keep(from))
			addrs, ports := distinct(old, next, a, b)
			var all []*fates
			for id := range next.Policy.Endpoints {
				if _, stays := old.Policy.Endpoints[id]; stays {
					all = append(all, newFates(id, old, next, addrs, ports))
				}
			}
			for bad := range plan.Steps {
				if len(plan.Steps) == 1 {
					continue // no step is skipped
				}
				failures++
				kinds[plan.Steps[bad].Action]++
				exact := plan.Steps[bad].Action == acl.AddMembers
				err := failingAt(from, plan, bad, func(now *acl.Ruleset, s acl.Step) error {
					for _, f := range all {
						if s.Endpoint != f.id && !strings.Contains(hns.FormatACLs("", now.Lists[f.id]), s.Set) {
							continue
						}
						rules, err := now.Rules(f.id)
						if err == nil {
							err = f.between(rules, exact)
						}
						if err != nil {
							return err
						}
					}
					return nil
				})
				if err != nil {
					t.Fatalf("shape%d/%d: without step %d of %d (%s %s%s): %v", i, seed, bad, len(plan.Steps), plan.Steps[bad].Action, plan.Steps[bad].Set, plan.Steps[bad].Endpoint, err)
				}
			}
		}
	}
	t.Logf("failures=%d (%v)", failures, kinds)
	for _, a := range []acl.Action{acl.AddMembers, acl.WriteList, acl.RemoveMembers} {
		if kinds[a] == 0 {
			t.Errorf("no step that failed was to %s", a)
		}
	}
}

// TestSetsOfListsThatAreWritten checks orders that random clusters seldom need. A member leaves or
// joins a set while a list that refers to it is written. Its verdict stays as it is before and after.
func TestSetsOfListsThatAreWritten(t *testing.T) {
	leaver, stayer := netip.MustParseAddr("10.0.3.3"), netip.MustParseAddr("10.0.3.4")
	const set = "isthmus-00ff-v4"
	ends := func(rule hns.Action, end hns.Action) []hns.ACL {
		var list []hns.ACL
		if rule != "" {
			list = append(list, hns.ACL{ID: "set", Protocols: "256", Action: rule, Direction: hns.In, LocalAddresses: set, RuleType: hns.Switch, Priority: 1000})
		}
		return append(list,
			hns.ACL{ID: "end in", Protocols: "256", Action: end, Direction: hns.In, RuleType: hns.Switch, Priority: 1001},
			hns.ACL{ID: "end out", Protocols: "256", Action: hns.Allow, Direction: hns.Out, RuleType: hns.Switch, Priority: 1002},
			hns.ACL{ID: "host in", Protocols: "256", Action: hns.Allow, Direction: hns.In, RuleType: hns.Host},
			hns.ACL{ID: "host out", Protocols: "256", Action: hns.Allow, Direction: hns.Out, RuleType: hns.Host})
	}
	exception, permission, nothing := ends(hns.Block, hns.Allow), ends(hns.Allow, hns.Block), ends("", hns.Block)
	for name, c := range map[string]struct {
		was, is []hns.ACL // of the first endpoint, with the same verdict about the member before and after
		other   []hns.ACL // of the second, for which the set changes
		allowed bool      // the verdict
	}{
		"a list leaves the set":           {exception, nothing, exception, false},
		"a list joins the set":            {nothing, permission, permission, false},
		"a list turns it around":          {nothing, exception, exception, false},
		"a list joins an exception's set": {ends("", hns.Allow), exception, exception, true},
	} {
		t.Run(name, func(t *testing.T) {
			from := &acl.Ruleset{Lists: map[model.EndpointID][]hns.ACL{"a:eth0": c.was, "b:eth0": c.other}, Sets: map[string][]netip.Addr{set: {leaver, stayer}}}
			to := &acl.Ruleset{Lists: map[model.EndpointID][]hns.ACL{"a:eth0": c.is, "b:eth0": c.other}, Sets: map[string][]netip.Addr{set: {stayer}}}
			if name == "a list turns it around" { // and another member joins
				from.Sets, to.Sets = to.Sets, from.Sets
			}
			verdict := func(p *acl.Ruleset) bool {
				t.Helper()
				got, err := acl.Lookup(p.Lists["a:eth0"], p.EncodedSets(), hns.Packet{Direction: hns.In, Remote: leaver, Protocol: 6, Port: 80}, hns.Reading{})
				if err != nil {
					t.Fatal(err)
				}
				return got.Allow
			}
			if verdict(from) != c.allowed || verdict(to) != c.allowed {
				t.Fatalf("the verdict is not %t before and after: the test shows nothing", c.allowed)
			}
			plan := acl.NewPlan(from, to)
			flip := slices.IndexFunc(plan.Steps, func(s acl.Step) bool { return s.Action == acl.WriteList })
			for bad := -1; bad < len(plan.Steps); bad++ { // -1: no step fails
				err := failingAt(from, plan, bad, func(now *acl.Ruleset, s acl.Step) error {
					if verdict(now) != c.allowed {
						return fmt.Errorf("%s passes is %t, before and after %t", leaver, !c.allowed, c.allowed)
					}
					return nil
				})
				if err != nil {
					t.Errorf("without step %d of %d (the list is step %d): %v", bad, len(plan.Steps), flip, err)
				}
			}
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package acl_test

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/world"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// errOpened is a flow that passes although it does so neither before a change nor after it.
var errOpened = errors.New("opened")

// walkLate tries each list that a plan writes, and the one before it, beside the sets after any number of the plan's
// writes of sets. The list before it cannot meet writes after it is confirmed to be gone. No combination may allow more
// than the State before or after.
func walkLate(from *acl.Ruleset, plan *acl.Plan, old, new *model.State, addrs []netip.Addr, ports []world.Port) (cells int, err error) {
	for n, step := range plan.Steps {
		if step.Action != acl.WriteList || new.Policy.Endpoints[step.Endpoint].IPs == nil {
			continue
		}
		f := newFates(step.Endpoint, old, new, addrs, ports)
		sets, confirmed := maps.Clone(from.Sets), false
		for m := -1; m < len(plan.Steps); m++ {
			if m >= 0 {
				s := plan.Steps[m]
				switch s.Action {
				case acl.WriteList:
					continue
				case acl.Confirm:
					confirmed = confirmed || m > n
					continue
				}
				if !acl.RefersTo(step.List, s.Set) && !acl.RefersTo(from.Lists[step.Endpoint], s.Set) && m > 0 {
					continue // nothing is new
				}
				sets[s.Set] = s.Members
				if s.Action == acl.RemoveSet {
					sets[s.Set] = nil
				}
			}
			lists := map[string][]hns.ACL{"new": step.List}
			if !confirmed {
				lists["old"] = from.Lists[step.Endpoint]
			}
			for which, list := range lists {
				c, err := f.checkOpen(list, sets)
				cells += c
				if err != nil {
					return cells, fmt.Errorf("%w by the %s list beside the sets after step %d: %w\n%s\n%s", errOpened, which, m, err, hns.FormatACLs("  ", list), stepTexts(plan))
				}
			}
		}
	}
	return cells, nil
}

func stepTexts(plan *acl.Plan) string {
	var b strings.Builder
	for i, s := range plan.Steps {
		fmt.Fprintf(&b, "%d %s %s%s %v\n", i, s.Action, s.Set, s.Endpoint, s.Members)
	}
	return b.String()
}

// checkOpen returns an error for a flow that a list allows beside some sets, and that passes neither before nor after.
func (f *fates) checkOpen(list []hns.ACL, members map[string][]netip.Addr) (cells int, err error) {
	var sets []hns.SetPolicy
	for _, a := range list {
		for _, text := range []string{a.LocalAddresses, a.RemoteAddresses} {
			if acl.OwnSet(text) && !slices.ContainsFunc(sets, func(s hns.SetPolicy) bool { return s.ID == text }) {
				sets = append(sets, acl.EncodeSet(text, members[text]))
			}
		}
	}
	rules, err := hns.ParseRules(list, sets)
	if err != nil {
		return 0, err
	}
	for _, d := range model.Directions {
		for i, remote := range f.remotes {
			part := rules.Between(acl.PacketDirection(d), f.local, remote, hns.Reading{})
			for j, at := range f.ports {
				cells++
				if n := i*len(f.ports) + j; !f.was[d][n] && !f.is[d][n] && part.Decide(uint8(at.Protocol), at.Port, 0).Allow {
					return cells, fmt.Errorf("%s %s %s %s/%d", f.id, d, remote, at.Protocol, at.Port)
				}
			}
		}
	}
	return cells, nil
}

func count(plan *acl.Plan, a acl.Action) (n int) {
	for _, s := range plan.Steps {
		if s.Action == a {
			n++
		}
	}
	return n
}

// inlinedLists counts the lists of a plan that have fewer references to sets than those that it was made for.
func inlinedLists(plan *acl.Plan, to *acl.Ruleset) (n int) {
	references := func(list []hns.ACL) (n int) {
		for _, a := range list {
			if acl.OwnSet(a.LocalAddresses) || acl.OwnSet(a.RemoteAddresses) {
				n++
			}
		}
		return n
	}
	for id, list := range plan.Target.Lists {
		if references(list) < references(to.Lists[id]) {
			n++
		}
	}
	return n
}

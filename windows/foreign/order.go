// SPDX-License-Identifier: Apache-2.0

package foreign

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// mark begins the Id of every ACL that this package writes. All other ACLs are those of others.
const mark = "isthmus "

// maxID bounds the Id of an ACL, in bytes.
const maxID = 60

// maxOthers bounds the ACLs of others of an endpoint. An HNS that lost our Ids would otherwise get more of ours with each attempt.
const maxOthers = 1000

// parts are the policies of an endpoint.
type parts struct {
	// own are our ACLs, and others those of others.
	own, others []hns.ACL
	// kept are all policies but ours, as HNS lists them.
	kept []hns.Policy
}

// split separates the policies of an endpoint. ACLs in several tiers decide in an order that is not documented.
func split(policies []hns.Policy) (parts, error) {
	var p parts
	if why := hns.UnknownOrder(policies); why != "" {
		return parts{}, errors.New(why)
	}
	for _, policy := range policies {
		if !policy.Is(hns.TypeACL) {
			p.kept = append(p.kept, policy)
			continue
		}
		a, err := policy.ACL()
		narrowed := errors.Is(err, hns.ErrNarrowed)
		if err != nil && !narrowed {
			return parts{}, fmt.Errorf("an ACL of another program cannot be read: %w", err)
		}
		if a = a.Normal(); a.RuleType == "" {
			a.RuleType = hns.Switch
		}
		if strings.HasPrefix(a.ID, mark) {
			if !narrowed { // else the list is not what was written
				p.own = append(p.own, a)
			}
			continue
		}
		if (a.Action != hns.Allow && a.Action != hns.Block) || (a.Direction != hns.In && a.Direction != hns.Out) ||
			(a.RuleType != hns.Switch && a.RuleType != hns.Host) {
			return parts{}, fmt.Errorf("what the ACL %s, type %q, of another program passes is not known: remove it", describe(a), a.RuleType)
		}
		p.others, p.kept = append(p.others, a), append(p.kept, policy)
	}
	if len(p.others) > maxOthers {
		return parts{}, fmt.Errorf("it has %d ACLs of other programs, more than %d: remove some, and report a bug if they are of isthmus", len(p.others), maxOthers)
	}
	return p, nil
}

// compose gives our ACLs priorities beside those of others, so that a packet passes only if both allow it. opens
// are ACLs of others because of which all packets of their direction are denied: they allow packets before any
// ACL of ours could deny them, and others deny further packets.
func compose(own, others []hns.ACL) (list, opens []hns.ACL, err error) {
	for _, d := range []hns.Direction{hns.In, hns.Out} {
		side, open, err := composeSide(d, of(d, hns.Switch, own), of(d, hns.Switch, others))
		if err != nil {
			return nil, nil, err
		}
		list = append(list, side...)
		if open != nil {
			opens = append(opens, *open)
		}
		if len(of(d, hns.Host, others)) == 0 { // else their rules of the Windows Firewall decide as before
			list = append(list, of(d, hns.Host, own)...)
		}
	}
	for i := range list {
		list[i].ID = marked(list[i].ID)
	}
	return list, opens, nil
}

func marked(id string) string {
	id = mark + strings.TrimPrefix(id, mark)
	return id[:min(len(id), maxID)]
}

// of returns the ACLs of a direction and layer, by priority. Among equal ones, Blocks are first.
func of(d hns.Direction, layer hns.RuleType, list []hns.ACL) (side []hns.ACL) {
	for _, a := range list {
		if a = a.Normal(); a.Direction == d && a.RuleType == layer {
			side = append(side, a)
		}
	}
	slices.SortStableFunc(side, func(a, b hns.ACL) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), -cmp.Compare(a.Action, b.Action))
	})
	return side
}

// composeSide is compose for the Switch rules of a direction, sorted. Blocks of others come first, then our rules,
// then an Allow of others for all packets, which our rules overrule.
func composeSide(d hns.Direction, own, others []hns.ACL) (list []hns.ACL, open *hns.ACL, err error) {
	first := slices.IndexFunc(others, func(a hns.ACL) bool { return a.Action == hns.Allow })
	floor, ceiling := 0, hns.MaxPriority+1
	if first < 0 {
		first = len(others)
	} else {
		ceiling = int(others[first].Priority)
	}
	if first > 0 {
		floor = int(others[first-1].Priority)
	}
	if first == len(others) || everything(others[first]) {
		if list := place(own, floor, ceiling); list != nil {
			return list, nil, nil
		}
	} else if !slices.ContainsFunc(own, func(a hns.ACL) bool { return a.Action == hns.Block }) {
		// Policy allows everything: others decide. HNS denies what no ACL names once there is one.
		if last := int(others[len(others)-1].Priority); last < hns.MaxPriority {
			return []hns.ACL{denyAll(d, last+1)}, nil, nil
		}
		return nil, nil, nil
	}
	if first == len(others) { // Blocks of others up to the last priority
		return []hns.ACL{denyAll(d, hns.MaxPriority)}, &others[first-1], nil
	}
	if ceiling <= hns.MinPriority {
		return nil, nil, fmt.Errorf("the ACL %s of another program precedes everything that could deny: give it a higher priority number", describe(others[first]))
	}
	return []hns.ACL{denyAll(d, ceiling-1)}, &others[first], nil
}

// place returns the rules between two priorities, both exclusive: with the priorities that they have if these fit,
// and else as close together as possible. It returns nil if there is no room.
func place(own []hns.ACL, floor, ceiling int) []hns.ACL {
	if len(own) == 0 || int(own[0].Priority) > floor && int(own[len(own)-1].Priority) < ceiling {
		return own
	}
	next := max(floor+1, hns.MinPriority) - 1
	list := slices.Clone(own)
	for i := range list {
		if i == 0 || own[i].Priority != own[i-1].Priority {
			next++
		}
		if next >= ceiling {
			return nil
		}
		list[i].Priority = uint16(next)
	}
	return list
}

// everything reports whether a rule is about all packets.
func everything(a hns.ACL) bool {
	return a.Protocols == strconv.Itoa(hns.AnyProtocol) && a.LocalAddresses+a.RemoteAddresses+a.LocalPorts+a.RemotePorts == ""
}

func denyAll(d hns.Direction, priority int) hns.ACL {
	for _, a := range acl.DenyAll() {
		if a.Direction == d && a.RuleType == hns.Switch {
			a.Priority = uint16(priority)
			return a
		}
	}
	return hns.ACL{}
}

// describe names an ACL of another program.
func describe(a hns.ACL) string {
	return fmt.Sprintf("%q (%s %s, priority %d)", a.ID[:min(len(a.ID), 2*maxID)], a.Direction, a.Action, a.Priority)
}

// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"cmp"
	"slices"
)

// SortACLs sorts ACLs by priority; those of the type Host, which need none, are last. HNS may apply a list rule by
// rule and answer in any order, so what it has answered is sorted before it is written again. A Block rule then comes
// before the rules that it overrides.
func SortACLs(list []ACL) { slices.SortStableFunc(list, compareACLs) }

func compareACLs(x, y ACL) int {
	if host := x.Normal().RuleType == Host; host != (y.Normal().RuleType == Host) {
		if host {
			return 1
		}
		return -1
	}
	return cmp.Compare(x.Priority, y.Priority)
}

// InOrder returns policies with their ACLs last, sorted as by SortACLs.
func InOrder(policies []Policy) []Policy {
	type decoded struct {
		policy Policy
		acl    ACL
	}
	var others []Policy
	var acls []decoded
	for _, p := range policies {
		var a ACL
		if !p.Is(TypeACL) || p.Decode(&a) != nil {
			others = append(others, p)
			continue
		}
		acls = append(acls, decoded{p, a})
	}
	slices.SortStableFunc(acls, func(x, y decoded) int { return compareACLs(x.acl, y.acl) })
	for _, a := range acls {
		others = append(others, a.policy)
	}
	return others
}

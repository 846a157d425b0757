// SPDX-License-Identifier: Apache-2.0

package reach

import (
	"reflect"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
)

// Differing names the policies that only one list has, or that differ between the lists.
func Differing(was, is []*model.Policy) []string {
	before := make(map[model.Origin]*model.Policy)
	for _, p := range was {
		before[p.Origin.Key()] = p
	}
	names := []string{}
	for _, p := range is {
		q := before[p.Origin.Key()]
		delete(before, p.Origin.Key())
		if q != nil {
			same := *q
			same.Origin.UID = p.Origin.UID
			q = &same
		}
		if !reflect.DeepEqual(p, q) {
			names = append(names, p.Origin.String())
		}
	}
	for o := range before {
		names = append(names, o.String())
	}
	slices.Sort(names)
	return names
}

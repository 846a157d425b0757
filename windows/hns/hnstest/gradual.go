// SPDX-License-Identifier: Apache-2.0

package hnstest

import (
	"slices"

	"github.com/isthmus-net/isthmus/windows/hns"
)

// gradually leads an endpoint from its policies to next by changes of single ACLs. The caller holds the lock, which is
// free during the calls of Gradual. It reports whether the endpoint still exists.
func (f *Fake) gradually(id string, next []hns.Policy) bool {
	isACL := func(p hns.Policy) bool { return p.Is(hns.TypeACL) }
	e, step := f.endpoint(id), f.Gradual
	old := slices.DeleteFunc(slices.Clone(e.Policies), func(p hns.Policy) bool { return !isACL(p) })
	others := slices.DeleteFunc(slices.Clone(next), isACL)
	added := slices.DeleteFunc(slices.Clone(next), func(p hns.Policy) bool { return !isACL(p) })
	put := func(old, added []hns.Policy) bool {
		if e = f.endpoint(id); e == nil {
			return false
		}
		e.Policies = slices.Concat(others, old, added)
		f.mu.Unlock()
		step(id)
		f.mu.Lock()
		return true
	}
	for n := range added {
		if !put(old, added[:n+1]) {
			return false
		}
	}
	for n := len(old); n > 0; n-- {
		if !put(old[:n-1], added) {
			return false
		}
	}
	return f.endpoint(id) != nil
}

// SPDX-License-Identifier: Apache-2.0

package hnstest

import (
	"encoding/json"
	"slices"
	"strings"

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

// shown returns policies as an answer has them.
func (f *Fake) shown(list []hns.Policy) []hns.Policy {
	list = slices.Clone(list)
	if !f.Reorder {
		return list
	}
	slices.Reverse(list)
	for i, p := range list {
		var settings map[string]any
		if !p.Is(hns.TypeACL) && !p.Is(hns.TypeSet) || json.Unmarshal(p.Settings, &settings) != nil {
			continue
		}
		for _, member := range []string{"LocalAddresses", "RemoteAddresses", "Values"} {
			if text, ok := settings[member].(string); ok {
				parts := strings.Split(text, ",")
				slices.Reverse(parts)
				settings[member] = strings.Join(parts, ",")
			}
		}
		list[i] = hns.MakePolicy(p.Type, settings)
	}
	return list
}

func (f *Fake) showEndpoint(e *hns.Endpoint) hns.Endpoint {
	c := cloneEndpoint(e)
	c.Policies = f.shown(c.Policies)
	return c
}

func (f *Fake) showNetwork(n *hns.Network) hns.Network {
	c := cloneNetwork(n)
	c.Policies = f.shown(c.Policies)
	return c
}

// same compares the settings of two policies, of which the second may be as an answer has shown it.
func (f *Fake) same(stored, named hns.Policy) bool {
	return sameJSON(stored.Settings, named.Settings) || f.Reorder && sameJSON(f.shown([]hns.Policy{stored})[0].Settings, named.Settings)
}

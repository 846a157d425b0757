// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"encoding/json"
	"math"

	kjson "sigs.k8s.io/json"
)

// integers rewrites JSON of a custom resource: an API server accepts 5.0 for the integer 5 there, but not
// in built-in kinds. It returns the text itself if that has no such number, or is invalid.
func integers(raw []byte) []byte {
	var v any
	if kjson.UnmarshalCaseSensitivePreserveInts(raw, &v) != nil {
		return raw
	}
	changed := false
	v = integer(v, &changed)
	if !changed {
		return raw
	}
	out, err := json.Marshal(v)
	if err != nil {
		return raw
	}
	return out
}

// integer replaces numbers without fractions by integers.
func integer(v any, changed *bool) any {
	switch v := v.(type) {
	case float64:
		if v == math.Trunc(v) && math.Abs(v) < 1<<53 {
			*changed = true
			return int64(v)
		}
	case []any:
		for i := range v {
			v[i] = integer(v[i], changed)
		}
	case map[string]any:
		for k := range v {
			v[k] = integer(v[k], changed)
		}
	}
	return v
}

// SPDX-License-Identifier: Apache-2.0

package relay

import "testing"

// A clock that is set back does not keep objects in use: their age is a difference of monotonic readings, which Round removes.
func TestAgeOfObjects(t *testing.T) {
	r, _, _ := explainingRelay(t, nil)
	if at := r.objects.checked.Load(); at == nil || at.String() == at.Round(0).String() {
		t.Errorf("%v has no monotonic reading", at)
	}
}

// SPDX-License-Identifier: Apache-2.0

package model_test

import (
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
)

// Every reason has a unique name, which identifies it in metrics and events.
func TestDropReasonNames(t *testing.T) {
	seen := map[string]bool{"": true}
	for r := model.NotDropped + 1; r <= model.DropPortTaken; r++ {
		if seen[r.String()] {
			t.Errorf("reason %d is called %q, as another one", r, r)
		}
		seen[r.String()] = true
	}
	if model.NotDropped.String() != "" {
		t.Errorf("a packet that was not dropped has reason %q", model.NotDropped)
	}
}

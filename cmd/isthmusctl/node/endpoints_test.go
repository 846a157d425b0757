// SPDX-License-Identifier: Apache-2.0

package node

import (
	"strings"
	"testing"

	isthmusv1 "github.com/isthmus-net/isthmus/common/api/isthmus/v1"
)

// A pod that no agent attached has a row without an attachment, and its policy is not enforced.
func TestUnattachedPod(t *testing.T) {
	list := []*isthmusv1.Endpoint{{PodNamespace: "shop", PodName: "stray", Addresses: []string{"10.0.1.9"}, Unenforced: true, Attached: "no",
		Policies: []string{"NetworkPolicy shop/db"}, Problems: []string{"Isthmus did not give it the address"}}}
	for wide, want := range map[bool]string{
		false: "shop/stray 10.0.1.9 NOT enforced no Isthmus did not give it the address",
		true:  "shop/stray 10.0.1.9 NOT enforced no none none none none NetworkPolicy shop/db none not counted not counted Isthmus did not give it the address",
	} {
		var b strings.Builder
		if err := writeEndpoints(&b, list, wide); err != nil {
			t.Fatal(err)
		}
		_, row, _ := strings.Cut(b.String(), "\n")
		if got := strings.Join(strings.Fields(row), " "); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

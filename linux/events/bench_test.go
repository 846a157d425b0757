// SPDX-License-Identifier: Apache-2.0

package events_test

import (
	"testing"

	"github.com/isthmus-net/isthmus/linux/events"
)

func BenchmarkDecode(b *testing.B) {
	r := raw(b, sample())
	b.ReportAllocs()
	for b.Loop() {
		if _, err := events.Decode(r); err != nil {
			b.Fatal(err)
		}
	}
}

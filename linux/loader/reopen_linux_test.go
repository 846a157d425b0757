// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/linux/loader"
)

// A flow that opens again after it has expired takes no entry of another flow, also if its index
// names that entry.
func TestWrongIndexOfExpiredFlow(t *testing.T) {
	bothFamilies(t, func(t *testing.T, v6 bool) {
		const timeout = time.Second
		c := newCrowd(t, 8, loader.Timeouts{Opening: timeout, TCP: time.Hour, Other: time.Hour, Closing: time.Hour})
		at := c.table(v6)
		c.open(0, v6, 1000)
		expired := at.flows()
		time.Sleep(timeout + 200*time.Millisecond)
		c.open(1, v6, 2000)
		if !c.known(1, v6, 2000) { // established, so it does not expire
			t.Fatal("an answer does not pass")
		}
		other := uint32(0)
		for key, i := range at.flows() {
			if _, same := expired[key]; !same {
				other = i
			}
		}
		before := at.entry(other)
		for key, own := range expired {
			if own == other || at.version(own) != at.version(other) {
				t.Fatalf("entries %d and %d have the versions %#x and %#x", own, other, at.version(own), at.version(other))
			}
			if err := at.index.Put([]byte(key), other); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 { // the first removes the index, the second stores the flow
			c.open(0, v6, 1000)
		}
		if !bytes.Equal(at.entry(other), before) {
			t.Errorf("the entry of another flow became\n%x, was\n%x", at.entry(other), before)
		}
		if !c.known(0, v6, 1000) || !c.known(1, v6, 2000) {
			t.Error("a flow is unknown")
		}
	})
}

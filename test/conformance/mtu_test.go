// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"testing"

	"github.com/isthmus-net/isthmus/windows/hns"
)

// TestMTU: pods of an overlay network must have the MTU that Isthmus takes for theirs.
func TestMTU(t *testing.T) {
	for _, c := range []struct {
		kind  hns.NetworkType
		mtu   int
		wrong bool
	}{{hns.L2Bridge, 1500, false}, {hns.L2Bridge, 9000, false}, {hns.Overlay, 1450, false}, {hns.Overlay, 1500, true}} {
		s := simulate(t, hns.Server2022, hns.Reading{})
		s.mtu = c.mtu
		o, err := parse([]string{"--address", "10.1.0.20"}, os.Stderr)
		if err != nil {
			t.Fatal(err)
		}
		b, err := newBench(t.Context(), s.fake, o)
		if err != nil {
			t.Fatal(err)
		}
		p := &pair{bench: b, wire: s}
		for i, end := range []*pod{&p.a, &p.b} {
			if *end, err = b.findPod(t.Context(), s.pods[i]); err != nil {
				t.Fatal(err)
			}
		}
		b.network.Type = c.kind
		a, err := p.mtu(t.Context())
		if err != nil || a.Answer == "" || a.Wrong != c.wrong {
			t.Errorf("%s, MTU %d: %+v, %v", c.kind, c.mtu, a, err)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package compile_test

import (
	"math/rand/v2"
	"testing"

	"github.com/isthmus-net/isthmus/common/policy/compile"
	"github.com/isthmus-net/isthmus/test/world"
)

// FuzzCompile runs a Compiler through a history that the bytes of a script choose. After
// each step it compares the State with one from scratch and with the reference. Some scripts
// also choose limits.
func FuzzCompile(f *testing.F) {
	for seed := range uint64(4) {
		f.Add(seed, byte(seed), byte(0), []byte{byte(seed), 7, 3, 2, 1})
	}
	f.Add(uint64(9), byte(2), byte(5), []byte{0, 1, 2, 3, 4, 5, 6, 7})
	f.Add(uint64(10), byte(3), byte(37), []byte{200, 201, 202})
	f.Fuzz(func(t *testing.T, seed uint64, shape, limits byte, script []byte) {
		h := newHistory(seed, world.Shapes[int(shape)%len(world.Shapes)])
		c := compile.New()
		for i, b := range append([]byte{0}, script[:min(len(script), 10)]...) {
			if i > 0 {
				h.Rand = rand.New(rand.NewPCG(seed, uint64(b)))
				h.step()
			}
			h.input.Limits = compile.Limits{}
			if limits&1 != 0 {
				n := 2 + int(limits>>1)
				h.input.Limits = compile.Limits{PeerClasses: n, PortClasses: n, Rows: 4 * n, Tables: n, Addresses: n}
			}
			state, unsupported := c.Compile(h.input)
			full, _ := compile.Once(h.input)
			equalToFull(t, state, full)
			if len(unsupported) == 0 {
				equalToReference(t, h.input, state)
			} else {
				neverLooser(t, h.input, state)
			}
		}
	})
}

// SPDX-License-Identifier: Apache-2.0

package path

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"testing"
)

// The sequences reach nearly all of the programs. What they do not reach is listed
// with -v.
func TestCoverage(t *testing.T) {
	if os.Getuid() != 0 || testing.Short() {
		t.Skip("needs root and no -short: make test runs it")
	}
	c, err := NewCoverage()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for flows, seeds := range map[int]uint64{Ample: 1500, Scarce: 200, Tight: 100} {
		r, err := Open(flows, c)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		for seed := uint64(1); seed <= seeds; seed++ {
			if err := r.Run(Generate(seed, length+3*length*(Ample-flows)/Ample)); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
	}
	all, err := c.Report()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		v := all[name]
		for _, b := range v.Missed {
			t.Logf("%s does not reach\t%s\t%s", name, c.Where(b), b)
		}
		fmt.Printf("coverage: %s %d of %d blocks, %d unknown\n", name, v.Run, v.Blocks, v.Unknown)
	}
}

// SPDX-License-Identifier: Apache-2.0

package path

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
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
	r, err := Open(Ample, c)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for seed := uint64(1); seed <= 300; seed++ {
		if err := r.Run(Generate(seed, length)); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
	all, err := c.Report()
	if err != nil {
		t.Fatal(err)
	}
	// Some blocks cannot run in a program: functions are shared, and compilers and the
	// verifier ask for comparisons that always hold.
	least := map[string]int{"from_pod": 70, "to_pod": 64, "from_node": 58, "forward_filter": 78, "local_in_filter": 60}
	programs := slices.Sorted(maps.Keys(least))
	lines, missed, err := c.Lines(programs)
	if err != nil {
		t.Fatal(err)
	}
	var words []string
	for _, name := range programs {
		v := all[name]
		words = append(words, fmt.Sprintf("%s %d%% (%d of %d blocks, %d unknown)", name, v.Percent(), v.Run, v.Blocks, v.Unknown))
		if v.Percent() < least[name] {
			t.Errorf("%s: %d%% of the blocks run, want %d%%", name, v.Percent(), least[name])
		}
	}
	reached := 100 * (lines - len(missed)) / max(1, lines)
	words = append(words, fmt.Sprintf("source lines %d%% (%d of %d)", reached, lines-len(missed), lines))
	if reached < 93 {
		t.Errorf("%d%% of the source lines run, want 93%%", reached)
	}
	t.Logf("no program reaches:\n%s", strings.Join(missed, "\n"))
	fmt.Println("coverage:", strings.Join(words, ", "))
}

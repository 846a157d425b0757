// SPDX-License-Identifier: Apache-2.0

package path

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// blocksWanted are the shares of basic blocks that run, in percent, of those that packets
// can reach. The others have 90.
var blocksWanted = map[string]int{
	"adopt_flow": 50, // which the agent runs, and no packet
	// Their copies of what forward has see fewer kinds of packets.
	"forward_filter": 87, "local_in_filter": 84, "local_out_filter": 80, "uplink": 78,
}

// The sequences reach nearly all of the programs. What they do not reach is listed with -v.
// With ISTHMUS_PATH_COVERAGE they run that long.
func TestCoverage(t *testing.T) {
	if os.Getuid() != 0 || testing.Short() {
		t.Skip("needs root and no -short: make test runs it")
	}
	c, err := NewCoverage()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	limit, _ := time.ParseDuration(os.Getenv("ISTHMUS_PATH_COVERAGE"))
	for _, of := range []struct {
		flows   int
		seeds   uint64
		packets int
		share   time.Duration // of the time, in percent
	}{{Ample, 130, length, 60}, {Scarce, 15, 4 * length, 15}, {Tight, 20, 4 * length, 25}} {
		r, err := Open(of.flows, c)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		for seed, begin := uint64(1), time.Now(); seed <= of.seeds || time.Since(begin) < limit*of.share/100; seed++ {
			steps := Generate(seed, of.packets)
			for _, form := range []string{"hook", "filter"} {
				if steps[0].Form != "" {
					steps = steps[1:]
				}
				steps = slices.Insert(steps, 0, Step{Form: form})
				if err := r.Run(steps); err != nil {
					t.Fatalf("seed %d, %d flows, %s: %v", seed, of.flows, form, err)
				}
			}
		}
	}
	all, err := c.Report()
	if err != nil {
		t.Fatal(err)
	}
	listed := unreachable(t, c)
	closed := c.Behind(listed)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		v := all[name]
		for _, b := range v.Reached {
			if closed[b] {
				t.Errorf("%s: %s runs, but testdata/unreachable.txt says that it cannot: %s", name, c.Where(b), b)
			}
		}
		open := slices.DeleteFunc(v.Missed, func(b Block) bool { return closed[b] })
		percent := 100 * v.Run / max(1, v.Run+len(open))
		fmt.Printf("coverage: %s %d%%: %d of %d blocks run, %d unreachable, %d not recorded\n", name, percent, v.Run, v.Blocks, v.Blocks-v.Unknown-v.Run-len(open), v.Unknown)
		for _, b := range open {
			t.Logf("%s does not reach %s\t%s", name, c.Where(b), b)
		}
		if want := cmp.Or(blocksWanted[name], 90); percent < want {
			t.Errorf("%s: %d%% of the blocks run, want %d%%", name, percent, want)
		}
	}
	for b, programs := range c.Roots(all) {
		if !closed[b] {
			t.Logf("from here on: %v\t%s\t%s", programs, c.Where(b), b)
		}
	}
}

// unreachable reads the blocks that no packet reaches, with what is behind them only.
func unreachable(t *testing.T, c *Coverage) map[Block]bool {
	t.Helper()
	text, err := os.ReadFile("testdata/unreachable.txt")
	if err != nil {
		t.Fatal(err)
	}
	known := c.Blocks()
	listed := make(map[Block]bool)
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "# ") {
			continue
		}
		b, ok := known[line]
		if !ok {
			t.Errorf("testdata/unreachable.txt: there is no block %q", line)
		}
		listed[b] = true
	}
	return listed
}

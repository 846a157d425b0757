// SPDX-License-Identifier: Apache-2.0

package path

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/test/path/reference"
)

// blocksWanted is the share of basic blocks that run, in percent, of those that packets can
// reach. No packet runs adopt_flow: the agent does, in an upgrade. It adds flows to an empty
// table. A third of its blocks make room in a full one: conn_begin, which the other programs
// run, too.
const blocksWanted, adoptedWanted = 90, 55

// TestCoverage checks that the sequences reach nearly all of the programs. It prints the function and source line
// of each block that does not run and is not listed as unreachable. ISTHMUS_PATH_COVERAGE is a minimum for the time
// that random sequences run.
func TestCoverage(t *testing.T) {
	if os.Getuid() != 0 || testing.Short() {
		t.Skip("needs root and no -short: make test runs it")
	}
	if runtime.GOARCH != "amd64" {
		t.Skip("testdata/unreachable.txt lists the blocks of processors that do not reorder loads")
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
	}{{Ample, 500, length, 60}, {Scarce, 24, 4 * length, 15}, {Tight, 36, 4 * length, 25}} {
		r, err := Open(of.flows, Instruments{Coverage: c, Unsettled: of.flows == Ample})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if of.flows == Ample {
			writtenSequences(t, r)
			writingAgent(t, r)
		}
		for seed, begin := uint64(1), time.Now(); seed <= of.seeds || time.Since(begin) < limit*of.share/100; seed++ {
			inBothForms(t, r, Generate(seed, of.packets), fmt.Sprintf("seed %d, %d flows", seed, of.flows))
		}
	}
	all, err := c.Report()
	if err != nil {
		t.Fatal(err)
	}
	closed, rare := c.Dominated(blocksIn(t, c, "unreachable.txt")), blocksIn(t, c, "rare.txt")
	missed := make(map[Block][]string)
	var run, reachable int
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
			missed[b] = append(missed[b], name)
		}
		run, reachable = run+v.Run, reachable+v.Run+len(open)
		want := blocksWanted
		if name == "adopt_flow" {
			want = adoptedWanted
		}
		if percent < want {
			t.Errorf("%s: %d%% of the blocks run, want %d%%", name, percent, want)
		}
	}
	printMissed(c, all, missed, rare)
	fmt.Printf("coverage: blocks=%d run=%d percent=%.1f uncovered=%d\n", reachable, run, 100*float64(run)/float64(max(1, reachable)), len(missed))
}

// writtenSequences runs the sequences of testdata, which expect an ample flow table, in both forms of the programs.
func writtenSequences(t *testing.T, r *Runner) {
	t.Helper()
	for _, name := range sequences(t, "testdata/*.steps") {
		inBothForms(t, r, read(t, name), name)
	}
}

// inBothForms runs a sequence with both forms of the programs in the stack.
func inBothForms(t *testing.T, r *Runner, steps []Step, name string) {
	t.Helper()
	if steps[0].Form != "" {
		steps = steps[1:]
	}
	for _, form := range []string{"hook", "filter"} {
		if err := r.Run(slices.Insert(slices.Clone(steps), 0, Step{Form: form})); err != nil {
			t.Fatalf("%s, %s: %v", name, form, err)
		}
	}
}

// TestCoverageAfterRestart checks that blocks are recorded after a restart, too.
func TestCoverageAfterRestart(t *testing.T) {
	if os.Getuid() != 0 || testing.Short() {
		t.Skip("needs root and no -short: make test runs it")
	}
	c, err := NewCoverage()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r, err := Open(Ample, Instruments{Coverage: c})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	p := reference.Packet{Src: strangers[0], Dst: podAddrs(0)[0], Proto: reference.UDP, Sport: 1000, Dport: 80}
	if err := r.Run([]Step{{Restart: true}, {Pod: &PodStep{Name: "a"}}, {At: "uplink", Packet: &p}}); err != nil {
		t.Fatal(err)
	}
	all, err := c.Report()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"uplink", "from_node", "forward_filter", "to_pod"} {
		if all[name].Run == 0 {
			t.Errorf("%s: no block is recorded", name)
		}
	}
}

// printMissed prints the blocks that no sequence runs, with the programs that contain them. Successors of a block
// that runs come first. Rare ones are expected.
func printMissed(c *Coverage, all map[string]Covered, missed map[Block][]string, rare map[Block]bool) {
	first := c.Roots(all)
	for _, b := range slices.SortedFunc(maps.Keys(missed), func(a, b Block) int { return strings.Compare(a.String(), b.String()) }) {
		how := "behind one of these"
		switch {
		case rare[b]:
			how = "rare"
		case first[b] != nil:
			how = "first"
		}
		fmt.Printf("coverage: does not run (%s): %s in %s: %s\t%s\n", how, b.Function, c.Where(b), strings.Join(missed[b], " "), b)
	}
}

// blocksIn reads a list of blocks.
func blocksIn(t *testing.T, c *Coverage, name string) map[Block]bool {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	known := c.Blocks()
	all := make(map[Block]bool)
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "# ") {
			continue
		}
		b, ok := known[line]
		if !ok {
			t.Errorf("testdata/%s: there is no block %q", name, line)
		}
		all[b] = true
	}
	return all
}

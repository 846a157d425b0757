// SPDX-License-Identifier: Apache-2.0

package path

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// length is how many packets a sequence has, about.
const length = 120

func open(t *testing.T, flows int) *Runner {
	t.Helper()
	if os.Getuid() != 0 || testing.Short() {
		t.Skip("needs root and no -short: make test runs it")
	}
	r, err := Open(flows, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// The programs do with generated sequences what the reference does, and with those that
// failed once.
func TestPath(t *testing.T) {
	r := open(t, Ample)
	for _, name := range sequences(t, "testdata/*.steps") {
		if err := r.Run(read(t, name)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	const seeds = 400
	for seed := uint64(1); seed <= seeds; seed++ {
		steps := Generate(seed, length)
		switch seed {
		case seeds / 4: // programs of a layout without marks, for a while
			steps = slices.Insert(steps, len(steps)/2, Step{Upgrade: "marks"})
			steps = slices.Insert(steps, 0, Step{Upgrade: "none"})
		case seeds / 2:
			steps = slices.Insert(steps, len(steps)/2, Step{Restart: true})
		}
		check(t, r, seed, steps)
		if t.Failed() {
			break
		}
	}
	summarize(t, r, 0)
	if t.Failed() {
		return
	}
	// The sequences are what they should be: every reason occurs, and often.
	for _, reason := range []string{
		"from_pod: dropped: egress policy", "from_pod: dropped: ingress policy of the receiver", "from_pod: pod: known flow, allowed again",
		"from_pod: dropped: the receiver's policy", "from_pod: node: known flow", "from_pod: pod: error about a flow between pods",
		"from_node: pod: known flow", "from_node: dropped: ingress policy", "to_pod: stack: known flow", "to_pod: dropped: ingress policy of a known flow",
		"to_pod: dropped: source cannot come by this device", "to_pod: stack: error about a flow", "forward: stack: egress policy", "forward: dropped: egress policy",
		"forward: stack: answer", "forward: dropped: mark without a record", "forward: dropped: an address of this node from elsewhere",
		"local_in: dropped: not from the node that the tunneled packet names", "uplink: dropped: deny list", "uplink: dropped: ingress policy", "uplink: dropped: malformed",
	} {
		if r.Totals.Fates[reason] < 3 {
			t.Errorf("%q: %d packets, want more", reason, r.Totals.Fates[reason])
		}
	}
}

// In a table that is always full flows make room for others as they should, and what
// is left is decided as ever.
func TestScarceTable(t *testing.T) {
	r := open(t, Scarce)
	for seed := uint64(1); seed <= 25 && !t.Failed(); seed++ {
		check(t, r, seed, Generate(seed, 4*length))
	}
	summarize(t, r, 0)
	if !t.Failed() && r.Totals.Evicted < 800 {
		t.Errorf("%d flows made room, want more", r.Totals.Evicted)
	}
}

// TestFuzz runs sequences for ISTHMUS_FUZZ_PATH, beginning with the seed
// ISTHMUS_FUZZ_SEED, or one of the clock. Those that fail are left in testdata.
func TestFuzz(t *testing.T) {
	text := os.Getenv("ISTHMUS_FUZZ_PATH")
	if text == "" {
		t.Skip("make fuzz-path runs it")
	}
	limit, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("ISTHMUS_FUZZ_SEED"); text != "" {
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	r := open(t, Ample)
	fmt.Printf("path: first seed %d\n", seed)
	begin, failures := time.Now(), 0
	for said := begin; time.Since(begin) < limit && failures < 10; seed++ {
		steps := Generate(seed, length)
		switch r.Totals.Sequences % 5000 {
		case 1999:
			steps = slices.Insert(steps, len(steps)/2, Step{Restart: true})
		case 3999:
			steps = slices.Insert(steps, len(steps)/2, Step{Upgrade: "none"})
		}
		if small := check(t, r, seed, steps); small != nil {
			failures++
			name := filepath.Join("testdata", fmt.Sprintf("seed-%d.steps", seed))
			if err := os.WriteFile(name, []byte(Text(small)), 0o644); err != nil {
				t.Error(err)
			}
		}
		if time.Since(said) > time.Minute {
			said = time.Now()
			fmt.Printf("path: %s seed=%d sequences=%d packets=%d\n", time.Since(begin).Round(time.Second), seed, r.Totals.Sequences, r.Totals.Packets)
		}
	}
	summarize(t, r, time.Since(begin))
}

var found = map[string]int{}

// check runs a sequence. It returns what is left of one that fails.
func check(t *testing.T, r *Runner, seed uint64, steps []Step) []Step {
	t.Helper()
	err := r.Run(steps)
	var f *Failure
	if err == nil {
		return nil
	}
	if !errors.As(err, &f) {
		t.Fatalf("seed %d: %v", seed, err)
	}
	small := Shrink(steps[:f.Step+1], func(s []Step) bool {
		var other *Failure
		return errors.As(r.Run(s), &other) && other.Kind == f.Kind
	})
	found[f.Kind]++
	t.Errorf("seed %d: %v\n%v\n%s", seed, f, r.Run(small), Text(small))
	return small
}

func summarize(t *testing.T, r *Runner, took time.Duration) {
	t.Helper()
	line := fmt.Sprintf("path: sequences=%d packets=%d runs=%d either=0 bypass=%d loss=%d detour=%d epoch=%d", r.Totals.Sequences, r.Totals.Packets, runs(r),
		found["bypass"], found["loss"], found["detour"], found["epoch"])
	if r.scarce {
		line += fmt.Sprintf(" table=%d evicted=%d", found["table"], r.Totals.Evicted)
	}
	if took > 0 {
		line += fmt.Sprintf(" packets/s=%.0f packets/cpu-s=%.0f", float64(r.Totals.Packets)/took.Seconds(), float64(r.Totals.Packets)/processor(t).Seconds())
	}
	fmt.Println(line)
	for _, reason := range slices.Sorted(maps.Keys(r.Totals.Fates)) {
		t.Logf("%8d %s", r.Totals.Fates[reason], reason)
	}
}

// processor is the time of processors that this process has used: others may share them.
func processor(t *testing.T) time.Duration {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func runs(r *Runner) (n int) {
	for _, of := range r.Totals.Fates {
		n += of
	}
	return n
}

func sequences(t *testing.T, pattern string) []string {
	t.Helper()
	names, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func read(t *testing.T, name string) []Step {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	steps, err := Parse(text)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if len(strings.TrimSpace(string(text))) == 0 || len(steps) == 0 {
		t.Fatalf("%s: no steps", name)
	}
	return steps
}

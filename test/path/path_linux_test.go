// SPDX-License-Identifier: Apache-2.0

package path

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// length is the approximate number of packets in a sequence.
const length = 120

// filters says that the kernel has no programs of netfilter, so that the tests run with filters only.
var filters = flag.Bool("filters", false, "the kernel has no BPF programs of netfilter (before Linux 6.4)")

func open(t *testing.T, flows int) *Runner {
	t.Helper()
	return openWith(t, flows, Instruments{})
}

func openWith(t *testing.T, flows int, with Instruments) *Runner {
	t.Helper()
	if os.Getuid() != 0 || testing.Short() {
		t.Skip("needs root and no -short: make test runs it")
	}
	r, err := Open(flows, with)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	if r.Hooks() == *filters {
		t.Fatalf("the kernel has programs of netfilter: %t, but -filters is %t", r.Hooks(), *filters)
	}
	return r
}

// TestGenerate checks that the generator ends, also without pods, and does not change the names of pods.
func TestGenerate(t *testing.T) {
	want := slices.Clone(parties)
	for seed := range uint64(1000) {
		Generate(seed, length)
		if !slices.Equal(parties, want) {
			t.Fatalf("seed %d: names are %v, want %v", seed, parties, want)
		}
	}
}

// TestPath checks that the programs decide like the reference for generated sequences, and for those that failed
// once.
func TestPath(t *testing.T) {
	r := open(t, Ample)
	for _, name := range sequences(t, "testdata/*.steps") {
		if err := r.Run(read(t, name)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	const seeds = 260
	for seed := uint64(1); seed <= seeds; seed++ {
		steps := Generate(seed, length)
		if seed == seeds/2 {
			steps = slices.Insert(steps, len(steps)/2, Step{Restart: true})
		}
		check(t, r, seed, steps)
		if t.Failed() {
			break
		}
	}
	summarize(t, &r.Totals, 0)
	if t.Failed() {
		return
	}
	// The sequences cover every reason, often.
	for _, reason := range []string{
		"from_pod: dropped: egress policy", "from_pod: dropped: ingress policy of the receiver", "from_pod: pod: known flow, allowed again",
		"from_pod: dropped: the receiver's policy", "from_pod: node: known flow", "from_pod: pod: error about a flow between pods",
		"from_node: pod: known flow", "from_node: dropped: ingress policy", "to_pod: stack: known flow", "to_pod: dropped: ingress policy of a known flow",
		"to_pod: dropped: source cannot come by this device", "to_pod: stack: error about a flow", "forward: stack: egress policy", "forward: dropped: egress policy",
		"forward: stack: answer", "forward: dropped: mark without a record", "forward: dropped: an address of this node from elsewhere",
		"pre_routing: dropped: an address of a pod from elsewhere", "forward: dropped: an address of another node from elsewhere",
		"local_in: dropped: not from the node that the tunneled packet names", "forward: dropped: not from the node that the tunneled packet names",
		"uplink: dropped: deny list", "uplink: dropped: ingress policy", "uplink: dropped: malformed",
		"forward: stack: decided by an older program", "local_in: dropped: headers without an end", "local_in: dropped: no packet in the tunnel",
		"local_out: stack: egress policy", "local_out: stack: sent on to a backend",
		"to_pod: stack: error about a translated flow", "to_pod: dropped: error of a pod about a flow of others",
	} {
		if r.Totals.Fates[reason] < 3 {
			t.Errorf("%q: %d packets, want more", reason, r.Totals.Fates[reason])
		}
	}
}

// TestScarceTable checks that a table that is always full evicts the right flows, and that the other flows keep
// their verdicts.
func TestScarceTable(t *testing.T) {
	for _, size := range []struct{ flows, evicted int }{{Few, 200}, {Scarce, 100}, {Tight, 5}} {
		r := open(t, size.flows)
		for _, name := range sequences(t, fmt.Sprintf("testdata/flows%d/*.steps", size.flows)) {
			if err := r.Run(read(t, name)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		for seed := uint64(1); seed <= 6 && !t.Failed(); seed++ {
			check(t, r, seed, Generate(seed, 4*length))
		}
		summarize(t, &r.Totals, 0)
		if !t.Failed() && r.Totals.Evicted < size.evicted {
			t.Errorf("%d flows made room in a table of %d, want more", r.Totals.Evicted, size.flows)
		}
	}
}

// TestFuzz runs sequences for the duration ISTHMUS_FUZZ_PATH, on every processor. The first seed is
// ISTHMUS_FUZZ_SEED, by default one from the clock. Failing sequences are written to testdata, those of a small
// flow table to testdata/flowsSIZE. The sizes take turns.
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
	debug.SetGCPercent(400) // sequences are small and short-lived
	f := &fuzzing{t: t, end: time.Now().Add(limit), round: min(limit, 10*time.Minute), totals: Totals{Fates: make(map[string]int)}}
	f.seed.Store(seed)
	begin := time.Now()
	fmt.Printf("path: first seed %d\n", seed)
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(f.work)
	}
	workers.Wait()
	summarize(t, &f.totals, time.Since(begin))
}

// fuzzing is shared by the goroutines of TestFuzz.
type fuzzing struct {
	t        *testing.T
	end      time.Time
	round    time.Duration // in which every size of the table has its turn
	seed     atomic.Uint64
	failures atomic.Int32
	mu       sync.Mutex
	totals   Totals
}

// turns are the sizes of the flow table, and the share of the time for each, in percent. A small table needs long sequences,
// and the runner inspects it after every program.
var turns = []struct {
	flows, packets int
	share          time.Duration
}{{Scarce, 4 * length, 6}, {Few, 4 * length, 6}, {Tight, 4 * length, 6}, {Ample, length, 82}}

// work runs sequences on tables of all sizes in turn. After a failure it continues on a new node.
func (f *fuzzing) work() {
	for f.continues() {
		for _, turn := range turns {
			if !f.continues() {
				return
			}
			if err := f.take(turn.flows, turn.packets, f.round*turn.share/100); err != nil {
				f.t.Error(err)
				f.failures.Store(10)
			}
		}
	}
}

func (f *fuzzing) continues() bool { return time.Now().Before(f.end) && f.failures.Load() < 10 }

// take runs sequences on one node, until one fails or the time is over, which begins when the programs are loaded. It returns an
// error if the test itself fails.
func (f *fuzzing) take(flows, packets int, limit time.Duration) error {
	r, err := Open(flows, Instruments{})
	if err != nil {
		return err
	}
	defer r.Close()
	defer func() {
		f.mu.Lock()
		f.totals.Add(&r.Totals)
		f.mu.Unlock()
	}()
	for begin := time.Now(); f.continues() && time.Since(begin) < limit; {
		seed := f.seed.Add(1) - 1
		steps := Generate(seed, packets)
		switch seed % 5000 {
		case 1999:
			steps = slices.Insert(steps, len(steps)/2, Step{Restart: true})
		case 3999:
			steps = slices.Insert(steps, len(steps)/2, Step{Upgrade: "none"})
		}
		small, err := f.totals.check(f.t, r, seed, steps, &f.mu)
		if err != nil {
			return err
		}
		if small != nil {
			f.failures.Add(1)
			return f.keep(flows, seed, small)
		}
	}
	return nil
}

// keep writes a failing sequence to testdata.
func (f *fuzzing) keep(flows int, seed uint64, steps []Step) error {
	dir := "testdata"
	if flows != Ample {
		dir = filepath.Join(dir, fmt.Sprintf("flows%d", flows))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(dir, fmt.Sprintf("seed-%d.steps", seed)), []byte(Text(steps)), 0o644)
}

// check runs a sequence, and counts a difference. It returns the reduced sequence of a failure. It returns an
// error if the test itself fails.
func (all *Totals) check(t *testing.T, r *Runner, seed uint64, steps []Step, mu *sync.Mutex) ([]Step, error) {
	t.Helper()
	err := r.Run(steps)
	var f *Failure
	if err == nil {
		return nil, nil
	}
	if !errors.As(err, &f) {
		return nil, fmt.Errorf("seed %d: %w", seed, err)
	}
	small := Shrink(steps[:f.Step+1], func(s []Step) bool {
		var other *Failure
		return errors.As(r.Run(s), &other) && other.Kind == f.Kind
	})
	mu.Lock()
	defer mu.Unlock()
	if all.Found == nil {
		all.Found = make(map[string]int)
	}
	all.Found[f.Kind]++
	t.Errorf("seed %d: %v\n%v\n%s", seed, f, r.Run(small), Text(small))
	return small, nil
}

// check is Totals.check of a single runner.
func check(t *testing.T, r *Runner, seed uint64, steps []Step) {
	t.Helper()
	if _, err := r.Totals.check(t, r, seed, steps, new(sync.Mutex)); err != nil {
		t.Fatal(err)
	}
}

func summarize(t *testing.T, all *Totals, took time.Duration) {
	t.Helper()
	line := fmt.Sprintf("path: sequences=%d packets=%d runs=%d bypass=%d loss=%d detour=%d epoch=%d", all.Sequences, all.Packets, runs(all),
		all.Found["bypass"], all.Found["loss"], all.Found["detour"], all.Found["epoch"])
	if all.Evicted > 0 {
		line += fmt.Sprintf(" table=%d evicted=%d", all.Found["table"], all.Evicted)
	}
	if took > 0 {
		line += fmt.Sprintf(" packets/s=%.0f packets/cpu-s=%.0f", float64(all.Packets)/took.Seconds(), float64(all.Packets)/processor(t).Seconds())
	}
	fmt.Println(line)
	for _, reason := range slices.Sorted(maps.Keys(all.Fates)) {
		t.Logf("%8d %s", all.Fates[reason], reason)
	}
}

// processor returns the processor time of this process, because other processes may share the machine.
func processor(t *testing.T) time.Duration {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func runs(all *Totals) (n int) {
	for _, of := range all.Fates {
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

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"

	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, out, errOut io.Writer) int {
	flags := flag.NewFlagSet("datapath", flag.ContinueOnError)
	flags.SetOutput(errOut)
	rounds := flags.Int("rounds", 9, "how often everything is measured; the median counts")
	repeat := flags.Int("repeat", 200_000, "packets of each measurement")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if os.Getuid() != 0 {
		fmt.Fprintln(errOut, "datapath: needs root to load BPF programs: sudo make bench-datapath")
		return 1
	}
	if err := measure(*rounds, *repeat, out); err != nil {
		fmt.Fprintln(errOut, "datapath:", err)
		return 1
	}
	return 0
}

func measure(rounds, repeat int, out io.Writer) error {
	if err := rlimit.RemoveMemlock(); err != nil {
		return err
	}
	runtime.LockOSThread()
	// Other processes would be measured otherwise.
	if err := unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 10}, 0); err != nil {
		return fmt.Errorf("take real-time priority: %w", err)
	}
	b, err := newBench(repeat)
	if err != nil {
		return err
	}
	defer b.close()
	cases := b.cases()
	results := make([]result, len(cases))
	for i, c := range cases {
		samples, err := b.sample(c, rounds)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		results[i] = summarise(c, samples)
	}
	return report(results, out)
}

// result is the cost of one packet in one case, in ns of this run.
type result struct {
	Name string `json:"name"`
	// Empty is a program that does nothing, Floor the least that has to be
	// done, Ours the real program; Floor and Ours include Empty.
	Empty float64 `json:"empty_ns"`
	Floor float64 `json:"floor_ns"`
	Ours  float64 `json:"ours_ns"`
	// Ratio is Ours to Floor, Goal what it should be at most.
	Ratio float64 `json:"ratio"`
	Goal  float64 `json:"goal"`
}

// summarise takes the medians over the rounds.
func summarise(c benchCase, samples []sample) result {
	median := func(f func(sample) float64) float64 {
		all := make([]float64, len(samples))
		for i, s := range samples {
			all[i] = f(s)
		}
		slices.Sort(all)
		return all[len(all)/2]
	}
	r := result{Name: c.name, Goal: c.goal,
		Empty: median(func(s sample) float64 { return s.empty }),
		Floor: median(func(s sample) float64 { return s.floor }),
		Ours:  median(func(s sample) float64 { return s.ours }),
	}
	r.Ratio = r.Ours / r.Floor
	return r
}

func report(results []result, out io.Writer) error {
	fmt.Fprintf(out, "%-44s %8s %8s %8s %7s %6s\n", "ns per packet, median", "empty", "floor", "ours", "ratio", "goal")
	for _, r := range results {
		fmt.Fprintf(out, "%-44s %8.1f %8.1f %8.1f %7.2f %6.2f\n", r.Name, r.Empty, r.Floor, r.Ours, r.Ratio, r.Goal)
	}
	enc := json.NewEncoder(out)
	for _, r := range results {
		if err := enc.Encode(r); err != nil {
			return err
		}
	}
	return nil
}

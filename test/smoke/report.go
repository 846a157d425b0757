// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Step is the result of one step.
type Step struct {
	Name    string
	Seconds float64
	Error   string `json:",omitempty"`
}

// Latency holds quantiles of the duration of ADD, or of a call, at one degree of concurrency, in milliseconds.
type Latency struct {
	Concurrency, Pods int // Pods is how many were measured
	P50, P99          float64
}

// Call is the duration of one call of HNS at one degree of concurrency.
type Call struct {
	Name string // create, attach, write or delete
	Latency
}

// Report is the result of a run.
type Report struct {
	Program, Windows, HNS, Mode string
	Time                        time.Time
	Steps                       []Step
	Failed                      int
	Adds, Deletes               int // calls of the plugin that succeeded
	Latencies                   []Latency
	// Calls are the calls of HNS itself, without agent and plugin.
	Calls []Call
	// Conformance is the exit code of isthmus-conformance; -1 if it did not run.
	Conformance int
	// Left counts networks and endpoints that Isthmus did not remove.
	Left int
}

// line is the last line that the program prints.
func (r *Report) line() string {
	var add []string
	for _, l := range r.Latencies {
		add = append(add, fmt.Sprintf(" add%d=%.0f/%.0fms", l.Concurrency, l.P50, l.P99))
	}
	return fmt.Sprintf("smoke: windows=%s hns=%s mode=%s steps=%d failed=%d adds=%d deletes=%d calls=%d%s conformance=%d left=%d",
		r.Windows, r.HNS, r.Mode, len(r.Steps), r.Failed, r.Adds, r.Deletes, r.calls(), strings.Join(add, ""), r.Conformance, r.Left)
}

// calls returns how many calls of HNS were measured.
func (r *Report) calls() (n int) {
	for _, c := range r.Calls {
		n += c.Pods
	}
	return n
}

func (r *Report) write(dir string) error {
	js, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return os.WriteFile(filepath.Join(dir, "smoke.json"), append(js, '\n'), 0o644)
}

// latency returns quantiles of durations.
func latency(concurrency int, all []time.Duration) Latency {
	l := Latency{Concurrency: concurrency, Pods: len(all)}
	if len(all) == 0 {
		return l
	}
	slices.Sort(all)
	at := func(q float64) float64 {
		return float64(all[min(int(q*float64(len(all))), len(all)-1)].Microseconds()) / 1000
	}
	l.P50, l.P99 = at(0.5), at(0.99)
	return l
}

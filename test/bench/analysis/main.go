// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/test/world"
)

func main() {
	pods := flag.Int("pods", 5000, "pods of the cluster; policies, nodes and namespaces go with them")
	flag.Parse()
	if err := run(context.Background(), os.Stdout, *pods); err != nil {
		fmt.Fprintln(os.Stderr, "analysis:", err)
		os.Exit(1)
	}
}

// figure is one line of output. Goal is an upper bound in the same unit.
type figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	Goal  float64 `json:"goal,omitempty"`
}

// question is one run of isthmusctl. CLUSTER, OPENED and EDITED in args are replaced by the
// directories.
type question struct {
	name   string
	args   string
	status int
	goal   float64 // for processor time, in seconds
}

// goalMemory is for the peak of resident memory of every question, in MiB.
const goalMemory = 1024

func questions() []question {
	return []question{
		{"compile of all nodes", "compile -m CLUSTER", 0, 30},
		{"diff of equal directories", "diff CLUSTER CLUSTER", 0, 5},
		{"diff of one edit", "diff CLUSTER OPENED", 1, 5},
		{"diff of three policies less and one edit", "diff CLUSTER EDITED -o json", 1, 5},
		{"matrix of 3 namespaces", "matrix -m CLUSTER -o csv -n ns-1,ns-2,ns-3", 0, 5},
		{"matrix of all pods", "matrix -m CLUSTER -o json --port 80 --max-groups 100000", 0, 0},
		{"explain", "explain -m CLUSTER --from ns-1/pod-60 --to ns-2/pod-101 --port 80", 1, 0},
		{"lint", "lint -m CLUSTER", 1, 0},
		{"verify of all nodes", "verify -m CLUSTER", 0, 120},
	}
}

// run measures all questions on one cluster. It returns an error if a figure misses its goal.
func run(ctx context.Context, out io.Writer, pods int) error {
	dir, err := os.MkdirTemp("", "isthmus-analysis-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	size := world.Scale{Pods: pods, Policies: pods / 5, Seed: 1}
	files := size.Manifests()
	less := []string{"policy-3", fmt.Sprintf("policy-%d", size.Policies/3), "cluster-3"}
	for name, manifests := range map[string]map[string][]byte{
		"cluster": files, "opened": world.EditManifests(files, nil, 5), "edited": world.EditManifests(files, less, 5),
	} {
		if err := write(filepath.Join(dir, name), manifests); err != nil {
			return err
		}
	}
	program := filepath.Join(dir, "isthmusctl")
	build := exec.CommandContext(ctx, "go", "build", "-o", program, "github.com/isthmus-net/isthmus/cmd/isthmusctl")
	if text, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build isthmusctl: %w\n%s", err, text)
	}
	enc := json.NewEncoder(out)
	var missed []error
	for _, q := range questions() {
		figures, err := q.measure(ctx, program, dir)
		if err != nil {
			return fmt.Errorf("%s: %w", q.name, err)
		}
		for _, f := range figures {
			if err := enc.Encode(f); err != nil {
				return err
			}
			if f.Goal > 0 && f.Value > f.Goal {
				missed = append(missed, fmt.Errorf("%s: %.1f %s, goal %.1f", f.Name, f.Value, f.Unit, f.Goal))
			}
		}
	}
	return errors.Join(missed...)
}

func write(dir string, files map[string][]byte) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// counter counts the bytes that it receives.
type counter struct{ bytes int64 }

func (c *counter) Write(p []byte) (int, error) {
	c.bytes += int64(len(p))
	return len(p), nil
}

// measure runs isthmusctl once.
func (q question) measure(ctx context.Context, program, dir string) ([]figure, error) {
	line := strings.NewReplacer("CLUSTER", filepath.Join(dir, "cluster"), "OPENED", filepath.Join(dir, "opened"), "EDITED",
		filepath.Join(dir, "edited")).Replace(q.args)
	cmd := exec.CommandContext(ctx, program, strings.Fields(line)...)
	var answer counter
	var problems strings.Builder
	cmd.Stdout, cmd.Stderr = &answer, &problems
	began := time.Now()
	err := cmd.Run()
	took := time.Since(began)
	if cmd.ProcessState == nil {
		return nil, err
	}
	if status := cmd.ProcessState.ExitCode(); status != q.status {
		return nil, fmt.Errorf("exit status %d, want %d: %.2000s", status, q.status, problems.String())
	}
	all := []figure{
		{q.name + ", processor time", cmd.ProcessState.UserTime().Seconds(), "s", q.goal},
		{q.name + ", wall time", took.Seconds(), "s", 0},
		{q.name + ", answer", float64(answer.bytes) / 1e6, "MB", 0},
	}
	if memory, ok := peakMemory(cmd.ProcessState); ok {
		all = append(all, figure{q.name + ", peak memory", memory, "MiB", goalMemory})
	}
	return all, nil
}

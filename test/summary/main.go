// SPDX-License-Identifier: Apache-2.0

// Command summary reads the output of go test -json, prints what failed and
// what was skipped and why, and ends with one line of totals. It exits with 1
// if anything failed or nothing ran.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
)

func main() { os.Exit(run(os.Stdin, os.Stdout)) }

// event is a line of go test -json (go doc test2json).
type event struct {
	Action  string
	Package string
	Test    string
	Output  string
	Elapsed float64
}

type name struct{ pkg, test string }

func run(in io.Reader, out io.Writer) int {
	output := make(map[name]*strings.Builder)
	var packages, tests, passed, failed, skipped int
	var failures []name
	scanner := bufio.NewScanner(in)
	scanner.Buffer(make([]byte, 1<<20), 1<<26)
	for scanner.Scan() {
		var e event
		if json.Unmarshal(scanner.Bytes(), &e) != nil {
			fmt.Fprintln(out, scanner.Text()) // a build that failed, for example
			continue
		}
		n := name{e.Package, e.Test}
		switch e.Action {
		case "output", "build-output":
			if output[n] == nil {
				output[n] = &strings.Builder{}
			}
			output[n].WriteString(e.Output)
			if e.Action == "build-output" {
				fmt.Fprint(out, e.Output)
			}
			continue
		case "pass", "fail", "skip":
		default:
			continue
		}
		if e.Test == "" {
			packages++
			if e.Action == "fail" {
				failures = append(failures, n)
			}
			fmt.Fprintf(out, "%-5s %6.1fs %s\n", e.Action, e.Elapsed, e.Package)
			continue
		}
		tests++
		switch e.Action {
		case "pass":
			passed++
		case "fail":
			failed++
			failures = append(failures, n)
		case "skip":
			skipped++
			fmt.Fprintf(out, "skip  %s %s: %s\n", e.Package, e.Test, reason(output[n]))
		}
	}
	if err := scanner.Err(); err != nil {
		fmt.Fprintln(out, "read test output:", err)
		return 1
	}
	for _, n := range failures {
		if b := output[n]; b != nil {
			fmt.Fprintf(out, "\n--- %s %s\n%s", n.pkg, n.test, b)
		}
	}
	fmt.Fprintf(out, "test: packages=%d tests=%d passed=%d failed=%d skipped=%d\n", packages, tests, passed, failed, skipped)
	if len(failures) > 0 || tests == 0 {
		return 1
	}
	return 0
}

// reason finds what the test said when it skipped.
func reason(b *strings.Builder) string {
	if b == nil {
		return ""
	}
	for line := range strings.Lines(b.String()) {
		if line = strings.TrimSpace(line); strings.Contains(line, ".go:") {
			return line
		}
	}
	return ""
}

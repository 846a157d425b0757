// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// homepage is the address in the report of conformance.
const homepage = "https://github.com/isthmus-net/isthmus"

// runCNP runs the conformance tests of ClusterNetworkPolicy, of the module test/cnp, with all features. They write a
// report in the form in which the project network-policy-api collects them.
func (l *lab) runCNP(ctx context.Context, name string) ([]testCase, error) {
	source, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return nil, fmt.Errorf("find the sources of Isthmus: %w", err)
	}
	say("building %s", titles[name])
	program := filepath.Join(l.dir, "cnp.test")
	cmd := exec.CommandContext(ctx, "go", "test", "-c", "-o", program, ".")
	cmd.Dir, cmd.Env = filepath.Join(strings.TrimSpace(string(source)), "test", "cnp"), append(os.Environ(), "CGO_ENABLED=0")
	if _, err := output(cmd); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(l.report, name+".log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	say("running %s; its log is %s", titles[name], log.Name())
	_, version, _ := strings.Cut(filepath.Base(l.reference), ":")
	cmd = exec.CommandContext(ctx, "nsenter", "--net="+l.fabric.Path(), "--", program, "-test.v", "-test.timeout=60m", "-test.run=^TestConformance$/"+l.focus,
		"-cluster="+l.control.admin, "-report-output="+filepath.Join(l.report, "cnp-report.yaml"), "-organization=isthmus-net", "-project=isthmus", "-url="+homepage,
		"-version="+version, "-contact="+homepage+"/issues", "-additional-info="+aboutReport(kernelHasSCTP()))
	cmd.Stdout, cmd.Stderr = log, log
	var ended *exec.ExitError
	runErr := cmd.Run()
	if runErr != nil && !errors.As(runErr, &ended) {
		return nil, fmt.Errorf("run %s: %w", titles[name], runErr)
	}
	text, err := os.ReadFile(log.Name())
	if err != nil {
		return nil, err
	}
	cases, err := readCNP(string(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w: look at %s", titles[name], err, log.Name())
	}
	return cases, nil
}

// withoutSCTP describes the SCTP packets of clusters on kernels that have none.
const withoutSCTP = "this kernel has no SCTP: of SCTP only INIT and INIT ACK were sent, by raw sockets"

// aboutReport returns what the report says about how it was made.
func aboutReport(sctp bool) string {
	const workflow = homepage + "/actions/workflows/e2e.yaml"
	if sctp {
		return workflow
	}
	return workflow + " (" + withoutSCTP + ")"
}

// cnpResult is the line with which Go reports a case of TestConformance.
var cnpResult = regexp.MustCompile(`(?m)^    --- (PASS|FAIL|SKIP): TestConformance/([^/\s]+) \(([0-9.]+)s\)$`)

// readCNP reads the cases from the output of the tests. A test that fails outside of its cases is an error.
func readCNP(text string) (cases []testCase, err error) {
	failed := false
	for _, m := range cnpResult.FindAllStringSubmatch(text, -1) {
		c := testCase{Name: m[2], Class: "cnp"}
		if c.Seconds, err = strconv.ParseFloat(m[3], 64); err != nil {
			return nil, err
		}
		switch m[1] {
		case "FAIL":
			failed = true
			c.Failure = &detail{Message: c.Name, Text: "see the log"}
		case "SKIP":
			c.Failure = &detail{Message: c.Name, Text: "the suite skipped it, and all features are named as supported"}
		}
		cases = append(cases, c)
	}
	switch {
	case len(cases) == 0:
		return nil, errors.New("no case ran")
	case !failed && !strings.Contains(text, "\nPASS\n"):
		return nil, errors.New("the tests failed outside of their cases")
	}
	return cases, nil
}

// printCNP prints the totals of the conformance tests.
func printCNP(out io.Writer, cases []testCase) {
	if !kernelHasSCTP() {
		fmt.Fprintln(out, "cnp-conformance: "+withoutSCTP)
	}
	passed, failed := 0, 0
	for _, c := range cases {
		if c.failed() {
			failed++
		} else {
			passed++
		}
	}
	fmt.Fprintf(out, "cnp-conformance: run=%d passed=%d failed=%d\n", len(cases), passed, failed)
}

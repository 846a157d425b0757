// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"strings"
	"testing"
)

const cnpOutput = `=== RUN   TestConformance
=== RUN   TestConformance/CNPAdminTierGress
--- PASS: TestConformance (61.20s)
    --- PASS: TestConformance/CNPAdminTierGress (12.30s)
        --- PASS: TestConformance/CNPAdminTierGress/Should_support_an_'allow-gress'_policy (3.10s)
    --- PASS: TestConformance/CNPBaselineTierGress (9.05s)
PASS
`

func TestReadCNP(t *testing.T) {
	cases, err := readCNP(cnpOutput)
	if err != nil || len(cases) != 2 || cases[0].Name != "CNPAdminTierGress" || cases[0].Seconds != 12.3 || cases[1].failed() {
		t.Errorf("%v, %v", cases, err)
	}
	failing := strings.NewReplacer("PASS: TestConformance ", "FAIL: TestConformance ", "PASS: TestConformance/CNPB", "FAIL: TestConformance/CNPB", "\nPASS\n", "\nFAIL\n").Replace(cnpOutput)
	cases, err = readCNP(failing)
	if err != nil || len(cases) != 2 || cases[0].failed() || !cases[1].failed() {
		t.Errorf("%v, %v", cases, err)
	}
	var out bytes.Buffer
	printCNP(&out, cases)
	if !strings.HasSuffix(out.String(), "cnp-conformance: run=2 passed=1 failed=1\n") {
		t.Errorf("totals: %s", out.String())
	}
	skipping := strings.Replace(cnpOutput, "PASS: TestConformance/CNPB", "SKIP: TestConformance/CNPB", 1)
	if cases, err = readCNP(skipping); err != nil || len(cases) != 2 || !cases[1].failed() {
		t.Errorf("a case that the suite skipped: %v, %v", cases, err)
	}
	for what, text := range map[string]string{
		"no case":              "--- FAIL: TestConformance (0.20s)\nFAIL\n",
		"nothing":              "",
		"outside of the cases": strings.Replace(cnpOutput, "\nPASS\n", "\nFAIL\n", 1),
	} {
		if cases, err := readCNP(text); err == nil {
			t.Errorf("%s: %v, want an error", what, cases)
		}
	}
}

// TestAboutReport checks that the report of a kernel without SCTP says so.
func TestAboutReport(t *testing.T) {
	if got := aboutReport(true); got != "https://github.com/isthmus-net/isthmus/actions/workflows/e2e.yaml" {
		t.Errorf("with SCTP: %s", got)
	}
	if got := aboutReport(false); !strings.Contains(got, "/e2e.yaml (this kernel has no SCTP: ") || !strings.Contains(got, "raw sockets") {
		t.Errorf("without SCTP: %s", got)
	}
}

// TestLeastCases checks that a run without a focus fails if fewer cases passed than the suite has.
func TestLeastCases(t *testing.T) {
	all := make([]testCase, least["cnp"])
	for what, c := range map[string]struct {
		cases []testCase
		focus string
		fails bool
	}{
		"all cases":        {all, "", false},
		"one is missing":   {all[1:], "", true},
		"one with a focus": {all[:1], "AdminTier", false},
		"none with one":    {nil, "AdminTier", true},
	} {
		var out bytes.Buffer
		if fails := (results{"cnp": c.cases}).print(&out, []string{"cnp"}, c.focus); fails != c.fails {
			t.Errorf("%s: fails %t\n%s", what, fails, out.String())
		}
	}
}

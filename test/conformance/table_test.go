// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// saveReports writes the reports of one host, as the artefact of a workflow holds them.
func saveReports(t *testing.T, dir string, r Report, smoke string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := r.write(dir); err != nil {
		t.Fatal(err)
	}
	if smoke != "" {
		if err := os.WriteFile(filepath.Join(dir, "smoke.json"), []byte(smoke), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// printTable runs the program with --table.
func printTable(t *testing.T, args ...string) (int, string) {
	t.Helper()
	var w bytes.Buffer
	code := run(t.Context(), args, &w, nil)
	return code, w.String()
}

// TestTable checks the tables of two hosts, of which one has a wrong assumption and text that would leave its cell.
func TestTable(t *testing.T) {
	dir := t.TempDir()
	saveReports(t, filepath.Join(dir, "windows-2025-overlay"), Report{Windows: "10.0.26100.4061", HNS: "15.5", Network: "Overlay", Answers: []Answer{
		{ID: "a", Question: "do ACLs of one direction make the other deny", Answer: "yes"},
		{ID: "o", Question: "is Local the source", Answer: "no | <b>\n`x`", Wrong: true}}, Corpus: Comparison{Cases: 3, Verdicts: 9, Differ: 2}, Sent: Sent{Flows: 7, Late: 1, Left: 4}}, "")
	saveReports(t, filepath.Join(dir, "windows-2022-l2bridge"), Report{Windows: "10.0.20348.2700", HNS: "13.3", Network: "L2Bridge", Answers: []Answer{
		{ID: "a", Question: "do ACLs of one direction make the other deny", Answer: "no"}, {ID: "c", Question: "do ACLs see the pod"}}},
		`{"Windows":"10.0.20348.2700","Mode":"l2bridge","Latencies":[{"Concurrency":4,"Pods":8,"P50":512.4,"P99":900}],"Calls":[{"Name":"create","Concurrency":8,"Pods":24,"P50":301,"P99":702}]}`)
	code, text := printTable(t, "--table", dir)
	want := `| | assumption | Windows | answer | |
|---|---|---|---|---|
| a | do ACLs of one direction make the other deny | 10.0.20348.2700, HNS 13.3, L2Bridge | no | as assumed |
| a | do ACLs of one direction make the other deny | 10.0.26100.4061, HNS 15.5, Overlay | yes | as assumed |
| c | do ACLs see the pod | 10.0.20348.2700, HNS 13.3, L2Bridge | not answered |  |
| o | is Local the source | 10.0.26100.4061, HNS 15.5, Overlay | no \| &lt;b> 'x' | **not as assumed** |
| | the corpus, as HNS reports its lists | 10.0.20348.2700, HNS 13.3, L2Bridge | 0 cases, 0 verdicts, 0 differ, 0 refused |  |
| | the corpus, as HNS reports its lists | 10.0.26100.4061, HNS 15.5, Overlay | 3 cases, 9 verdicts, 2 differ, 0 refused | **not as assumed** |
| | the corpus, by packets | 10.0.20348.2700, HNS 13.3, L2Bridge | 0 flows, 0 differ, 0 late, 0 not sent |  |
| | the corpus, by packets | 10.0.26100.4061, HNS 15.5, Overlay | 7 flows, 0 differ, 1 late, 4 not sent | as assumed |

| Windows | call | at once | median, ms | 99th percentile, ms |
|---|---|---|---|---|
| 10.0.20348.2700, HNS 13.3, L2Bridge | ADD | 4 | 512 | 900 |
| 10.0.20348.2700, HNS 13.3, L2Bridge | create | 8 | 301 | 702 |
`
	if code != exitAsAssumed || text != want {
		t.Errorf("exit code %d, have\n%s\nwant\n%s", code, text, want)
	}
}

// TestTableRefuses checks reports that say nothing about Windows, and wrong usage.
func TestTableRefuses(t *testing.T) {
	answers := []Answer{{ID: "a", Question: "q", Answer: "yes"}}
	for name, c := range map[string]struct {
		report Report
		smoke  string
		want   string
	}{
		"of Wine":         {Report{Windows: wineName, Answers: answers}, "", `(Windows "Wine", 1 answers): remove it`},
		"of a simulation": {Report{Answers: answers}, "", `(Windows "", 1 answers): remove it`},
		"without answers": {Report{Windows: "10.0.20348.1"}, "", "0 answers): remove it"},
		"a broken smoke":  {Report{Windows: "10.0.20348.1", Answers: answers}, "{", "smoke.json: unexpected end"},
		"too large":       {Report{Windows: strings.Repeat("1", maxReport), Answers: answers}, "", "is larger than"},
	} {
		dir := t.TempDir()
		saveReports(t, filepath.Join(dir, "bad"), c.report, c.smoke)
		saveReports(t, filepath.Join(dir, "good"), Report{Windows: "10.0.20348.2", Answers: answers}, "")
		if code, text := printTable(t, "--table", dir); code != exitFailed || !strings.Contains(text, c.want) || !strings.Contains(text, "| a | q | 10.0.20348.2,") || strings.Contains(text, "20348.1,") {
			t.Errorf("%s: exit code %d, no %q in\n%s", name, code, c.want, text)
		}
	}
	if code, text := printTable(t, "--table", t.TempDir()); code != exitAsAssumed || !strings.Contains(text, "No report of a real Windows host") {
		t.Errorf("no reports: exit code %d\n%s", code, text)
	}
	if code, _ := printTable(t, "--table", filepath.Join(t.TempDir(), "absent")); code != exitFailed {
		t.Errorf("no directory: exit code %d", code)
	}
	for _, args := range [][]string{{"--table", "x", "--out", "y"}, {"--table", "x", "y"}} {
		if code, text := printTable(t, args...); code != exitUsage {
			t.Errorf("%q: exit code %d\n%s", args, code, text)
		}
	}
}

// FuzzTable checks that no report leaves its cells: all rows of a table have the same number of columns.
func FuzzTable(f *testing.F) {
	f.Add([]byte(`{"Windows":"10.0|x","HNS":"1.2\n| x","Network":"a`+"`"+`b","Answers":[{"ID":"a|\\","Question":"q\\|","Answer":"\r\n\r\n# x"}]}`), []byte(`{"Calls":[{"Name":"|","P50":1e300}]}`))
	f.Fuzz(func(t *testing.T, report, smoke []byte) {
		var h host
		if json.Unmarshal(report, &h.Report) != nil || json.Unmarshal(smoke, &h.smoke) != nil || len(h.Answers) == 0 {
			return
		}
		columns := 0
		for line := range strings.Lines(tables([]host{h})) {
			line = strings.TrimSuffix(line, "\n")
			if line == "" {
				columns = 0
				continue
			}
			n := strings.Count(strings.ReplaceAll(strings.ReplaceAll(line, `\\`, ""), `\|`, ""), "|")
			if columns == 0 {
				columns = n
			}
			if n != columns || !strings.HasPrefix(line, "|") || !strings.HasSuffix(line, "|") {
				t.Fatalf("%d columns, want %d: %q", n, columns, line)
			}
		}
	})
}

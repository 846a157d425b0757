// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// wineName is the version of Windows in reports of Wine, which say nothing about Windows.
const wineName = "Wine"

// measured is the part of smoke.json that the tables show.
type measured struct {
	Windows, Mode string
	Latencies     []latency
	Calls         []struct {
		Name string
		latency
	}
}

// latency holds quantiles in milliseconds.
type latency struct {
	Concurrency int
	P50, P99    float64
}

// host is one directory of reports: one host, or one job of the workflow.
type host struct {
	Report
	smoke measured
}

// name identifies a host in the tables.
func (h *host) name() string { return fmt.Sprintf("%s, HNS %s, %s", h.Windows, h.HNS, h.Network) }

// readHosts reads report.json, and smoke.json beside it, in all directories below dir. The error names the reports that
// are not among the hosts.
func readHosts(dir string) ([]host, error) {
	var hosts []host
	var errs []error
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() != "report.json" {
			return err
		}
		h, err := readHost(path)
		if err != nil {
			errs = append(errs, err)
			return nil
		}
		hosts = append(hosts, h)
		return nil
	})
	slices.SortStableFunc(hosts, func(a, b host) int { return cmp.Compare(a.name(), b.name()) })
	if err = errors.Join(append(errs, err)...); err != nil {
		err = fmt.Errorf("read reports: %w", err)
	}
	return hosts, err
}

// readHost reads report.json of one host, and smoke.json, which is absent if isthmus-conformance ran alone.
func readHost(path string) (h host, err error) {
	if err := readReport(path, &h.Report); err != nil {
		return h, err
	}
	if h.Windows == "" || h.Windows == wineName || len(h.Answers) == 0 {
		return h, fmt.Errorf("%s: this is not a report of Windows (Windows %q, %d answers): remove it", path, h.Windows, len(h.Answers))
	}
	err = readReport(filepath.Join(filepath.Dir(path), "smoke.json"), &h.smoke)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return h, err
}

// maxReport bounds a file that is read, in bytes.
const maxReport = 1 << 20

func readReport(path string, to any) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxReport+1))
	if err != nil {
		return err
	}
	if len(text) > maxReport {
		return fmt.Errorf("%s is larger than %d bytes: this is not a report", path, maxReport)
	}
	if err := json.Unmarshal(text, to); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// tables renders the answers and the durations of all hosts as Markdown.
func tables(hosts []host) string {
	if len(hosts) == 0 {
		return "No report of a real Windows host is there yet.\n"
	}
	var b strings.Builder
	b.WriteString("| | assumption | Windows | answer | |\n|---|---|---|---|---|\n")
	for _, q := range questionsOf(hosts) {
		for i := range hosts {
			for _, a := range hosts[i].Answers {
				if a.ID == q.ID && a.Question == q.Question {
					fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", cell(a.ID), cell(a.Question), cell(hosts[i].name()), cell(cmp.Or(a.Answer, "not answered")),
						judgement(a))
				}
			}
		}
	}
	for i := range hosts {
		c := hosts[i].Corpus
		fmt.Fprintf(&b, "| | the corpus, as HNS reports its lists | %s | %d cases, %d verdicts, %d differ, %d refused | %s |\n", cell(hosts[i].name()),
			c.Cases, c.Verdicts, c.Differ, c.Refused, asAssumed(c.Verdicts == 0, c.Differ+c.Refused > 0))
	}
	for i := range hosts {
		c := hosts[i].Sent
		fmt.Fprintf(&b, "| | the corpus, by packets | %s | %d flows, %d differ, %d late, %d not sent | %s |\n", cell(hosts[i].name()),
			c.Flows, c.Differ, c.Late, c.Left, asAssumed(c.Flows == 0, c.Differ > 0))
	}
	b.WriteString(durations(hosts))
	return b.String()
}

// questionsOf returns all questions in the order of the first host that has them.
func questionsOf(hosts []host) (all []Answer) {
	for i := range hosts {
		for _, a := range hosts[i].Answers {
			if !slices.ContainsFunc(all, func(q Answer) bool { return q.ID == a.ID && q.Question == a.Question }) {
				all = append(all, a)
			}
		}
	}
	return all
}

func judgement(a Answer) string { return asAssumed(a.Answer == "", a.Wrong) }

func asAssumed(unknown, wrong bool) string {
	switch {
	case wrong:
		return "**not as assumed**"
	case unknown:
		return ""
	}
	return "as assumed"
}

// durations renders the durations of ADD and of the calls of HNS.
func durations(hosts []host) string {
	var rows strings.Builder
	row := func(h *host, name string, l latency) {
		fmt.Fprintf(&rows, "| %s | %s | %d | %.0f | %.0f |\n", cell(h.name()), cell(name), l.Concurrency, l.P50, l.P99)
	}
	for i := range hosts {
		for _, l := range hosts[i].smoke.Latencies {
			row(&hosts[i], "ADD", l)
		}
		for _, c := range hosts[i].smoke.Calls {
			row(&hosts[i], c.Name, c.latency)
		}
	}
	if rows.Len() == 0 {
		return ""
	}
	return "\n| Windows | call | at once | median, ms | 99th percentile, ms |\n|---|---|---|---|---|\n" + rows.String()
}

// maxCell bounds a cell, in bytes.
const maxCell = 300

// cell returns text that cannot leave its cell, as others wrote it.
func cell(text string) string {
	if len(text) > maxCell {
		text = strings.ToValidUTF8(text[:maxCell], "") + "..."
	}
	return strings.NewReplacer(`\`, `\\`, "|", `\|`, "\n", " ", "\r", " ", "<", "&lt;", "[", `\[`, "`", "'").Replace(text)
}

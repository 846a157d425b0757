// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Answer is the result of one question of docs/windows.md.
type Answer struct {
	ID       string // letter in the table of docs/windows.md
	Question string
	Answer   string // empty if the check did not run to its end
	// Detail explains the answer, or why there is none.
	Detail string
	// Wrong is true if Isthmus assumes another answer.
	Wrong bool
}

// Comparison compares the corpus with the lists that HNS reports.
type Comparison struct {
	Cases, Steps   int
	Lists, Sets    int // that were written
	Verdicts       int // verdicts of flows, all readings together
	Facts          int // verdicts of an evaluator that shares no code with the product
	Differ         int // verdicts, lists and sets that differ from the expected ones
	Refused        int // writes that HNS refused
	Seconds        float64
	SlowestSeconds float64 // one write of a list
	// First are the first differences.
	First []string
}

// maxFirst bounds Comparison.First.
const maxFirst = 50

func (c *Comparison) note(format string, args ...any) {
	if len(c.First) < maxFirst {
		c.First = append(c.First, fmt.Sprintf(format, args...))
	}
}

// Report holds all results.
type Report struct {
	Program string
	// Windows is the version of Windows with the number of the update; Wine if this is not Windows.
	Windows string
	HNS     string
	Network string // type
	Time    time.Time
	Answers []Answer
	Corpus  Comparison
	Sent    Sent
	// QuestionsOnly is true if the corpus was not compared.
	QuestionsOnly bool
}

func (r *Report) asAssumed() bool {
	for _, a := range r.Answers {
		if a.Wrong {
			return false
		}
	}
	if r.QuestionsOnly {
		return true
	}
	return r.Sent.Differ == 0 && r.Corpus.Differ == 0 && r.Corpus.Refused == 0 && r.Corpus.Verdicts > 0 && r.Corpus.Facts > 0
}

// text is the report for people. The last line counts.
func (r *Report) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "isthmus-conformance %s, Windows %s, HNS %s, network %s, %s\n\n", r.Program, r.Windows, r.HNS, r.Network, r.Time.Format(time.RFC3339))
	answered, wrong := 0, 0
	for _, a := range r.Answers {
		mark, answer := " ", a.Answer
		switch {
		case a.Wrong:
			mark = "!"
			wrong++
		case a.Answer == "":
			answer = "not answered"
		}
		if a.Answer != "" {
			answered++
		}
		fmt.Fprintf(&b, "%s %s  %s: %s\n       %s\n", mark, a.ID, a.Question, answer, a.Detail)
	}
	b.WriteByte('\n')
	for _, line := range slices.Concat(r.Corpus.First, r.Sent.First) {
		fmt.Fprintln(&b, "!", line)
	}
	s := r.Sent
	fmt.Fprintf(&b, "packets: flows=%d lists=%d differ=%d late=%d left=%d seconds=%.1f", s.Flows, s.Lists, s.Differ, s.Late, s.Left, s.Seconds)
	if s.Why != "" {
		fmt.Fprintf(&b, " (%s)", s.Why)
	}
	b.WriteByte('\n')
	c := r.Corpus
	fmt.Fprintf(&b, "conformance: hns=%s cases=%d steps=%d lists=%d sets=%d verdicts=%d facts=%d differ=%d refused=%d questions=%d answered=%d otherwise=%d seconds=%.1f slowest=%.2f\n",
		r.HNS, c.Cases, c.Steps, c.Lists, c.Sets, c.Verdicts, c.Facts, c.Differ, c.Refused, len(r.Answers), answered, wrong, c.Seconds, c.SlowestSeconds)
	return b.String()
}

// write puts the report into two files of a directory.
func (r *Report) write(dir string) error {
	js, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "report.txt"), []byte(r.text()), 0o644),
		os.WriteFile(filepath.Join(dir, "report.json"), append(js, '\n'), 0o644))
}

// SPDX-License-Identifier: Apache-2.0

package check

import (
	"fmt"
	"io"
	"strings"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/annotate"
	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cluster"
	"github.com/isthmus-net/isthmus/common/model"
)

var verifyForms = []string{"text", "json", "yaml", "sarif", "github"}

// notExact is what a node cannot enforce exactly, and the policy.
type notExact struct{ text, policy string }

// The JSON form of the answer.
type (
	verifyReport struct {
		Policies int `json:"policies"`
		Tables   int `json:"tables"`
		Cells    int `json:"cells"`
		// Differ is the number of cells that differ and of problems. Differences describes
		// the first of them.
		Differ      int      `json:"differ"`
		Differences []string `json:"differences"`
		Problems    []string `json:"problems"`
		// OverBlocked is the number of cells that are denied as reported in NotExact.
		OverBlocked int           `json:"over_blocked"`
		NotExact    []notExactFor `json:"not_exact"`
		// Skipped are the documents with errors, about which there is no answer.
		Skipped []skipped `json:"skipped,omitempty"`

		more int // differences without a description
	}
	notExactFor struct {
		Text   string       `json:"text"`
		Policy string       `json:"policy,omitempty"`
		Place  *model.Place `json:"place,omitempty"`
	}
	skipped struct {
		Text  string       `json:"text"`
		Place *model.Place `json:"place,omitempty"`
	}
)

func (v verified) report(s *model.Snapshot, places map[string]model.Place) *verifyReport {
	r := &verifyReport{Policies: s.Policies.Len(), Tables: v.Tables, Cells: v.Cells, Differ: v.Differ + len(v.Problems), OverBlocked: v.OverBlocked,
		Differences: []string{}, Problems: []string{}, NotExact: []notExactFor{}, more: v.Differ - len(v.Differences)}
	for _, d := range v.Differences {
		r.Differences = append(r.Differences, fmt.Sprint(d))
	}
	for _, p := range v.Problems {
		r.Problems = append(r.Problems, fmt.Sprint(p))
	}
	for _, u := range v.inexact {
		one := notExactFor{Text: u.text, Policy: u.policy}
		if at, ok := places[u.policy]; ok {
			one.Place = &at
		}
		r.NotExact = append(r.NotExact, one)
	}
	return r
}

// skip adds the documents with errors.
func (r *verifyReport) skip(p cluster.Problems) {
	for i, b := range p.Bad {
		one := skipped{Text: b}
		if i < len(p.BadAt) {
			one.Place = &p.BadAt[i]
		}
		r.Skipped = append(r.Skipped, one)
	}
}

func (e env) writeVerified(r *verifyReport, output string) error {
	var err error
	switch output {
	case "json", "yaml":
		err = cli.EncodeKind(e.Stdout, output, "VerifyReport", r)
	case "sarif", "github":
		about := map[string]string{"not-exact": "a construct that a node does not enforce exactly", "differs": "representations of the policies decide differently",
			"bad-document": "a document with errors, which was skipped"}
		err = annotate.Write(e.Stdout, output, e.Version, about, r.annotations())
	default:
		err = r.write(e.Stdout)
	}
	if err == nil && r.Differ > 0 {
		return cli.ErrNo
	}
	return err
}

func (r *verifyReport) annotations() (all []annotate.Finding) {
	add := func(level, rule, text string, at *model.Place) {
		f := annotate.Finding{Level: level, Rule: rule, Message: text}
		if at != nil {
			f.File, f.Line = at.File, at.Line
		}
		all = append(all, f)
	}
	for _, s := range r.Skipped {
		add("error", "bad-document", s.Text, s.Place)
	}
	for _, u := range r.NotExact {
		add("warning", "not-exact", u.Text, u.Place)
	}
	for _, list := range [][]string{r.Problems, r.Differences} {
		for _, text := range list {
			add("error", "differs", text, nil)
		}
	}
	return all
}

func (r *verifyReport) write(out io.Writer) error {
	var b strings.Builder
	for _, u := range r.NotExact {
		fmt.Fprintf(&b, "not exact: %s\n", u.Text)
	}
	for _, p := range r.Problems {
		fmt.Fprintf(&b, "wrong: %s\n", p)
	}
	for _, d := range r.Differences {
		fmt.Fprintf(&b, "differs: %s\n", d)
	}
	if r.more > 0 {
		fmt.Fprintf(&b, "differs: %d more cells\n", r.more)
	}
	if r.OverBlocked > 0 {
		fmt.Fprintf(&b, "over-blocked: %d cells, as reported\n", r.OverBlocked)
	}
	fmt.Fprintf(&b, "verify: policies=%d tables=%d cells=%d differ=%d\n", r.Policies, r.Tables, r.Cells, r.Differ)
	_, err := io.WriteString(out, b.String())
	return err
}

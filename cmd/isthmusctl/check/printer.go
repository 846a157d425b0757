// SPDX-License-Identifier: Apache-2.0

package check

import (
	"io"
	"strconv"
	"strings"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/annotate"
	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/common/model"
)

// printer writes outcomes in one of the forms.
type printer struct {
	form string
	// totals gets the last line. It is stdout only if the output is text for people.
	stdout, stderr, totals io.Writer
	junit                  *annotate.JUnit
	report                 testReport
}

// The JSON form of the answer.
type (
	testReport struct {
		Cases   int `json:"cases"`
		Queries int `json:"queries"`
		Engines int `json:"engines"`
		Pass    int `json:"pass"`
		Fail    int `json:"fail"`
		// Results are the queries, and the errors of files and tests that did not run.
		Results []testResult `json:"results"`
	}
	testResult struct {
		Test  string `json:"test"`
		Query string `json:"query,omitempty"`
		File  string `json:"file,omitempty"`
		Line  int    `json:"line,omitempty"`
		// Result is pass, fail or error.
		Result string `json:"result"`
		// Message says what failed.
		Message string `json:"message,omitempty"`
	}
)

func newPrinter(form string, stdout, stderr io.Writer) *printer {
	p := &printer{form: form, stdout: stdout, stderr: stderr, totals: stdout}
	if form != "text" {
		p.totals = stderr
	}
	if form == "junit" {
		p.junit = annotate.NewJUnit(stdout)
	}
	return p
}

// end ends the output.
func (p *printer) end(sum totals, engines int) error {
	switch p.form {
	case "junit":
		return p.junit.Close()
	case "json", "yaml":
		r := &p.report
		r.Cases, r.Queries, r.Engines, r.Pass, r.Fail = sum.cases, sum.queries, engines, sum.pass, sum.fail
		if r.Results == nil {
			r.Results = []testResult{}
		}
		return cli.EncodeKind(p.stdout, p.form, "TestReport", r)
	}
	return nil
}

// addResults keeps an outcome for the JSON form.
func (p *printer) addResults(o *outcome) {
	for _, r := range o.results {
		place := placeOf(r.at)
		one := testResult{Test: o.title, Query: r.name, File: place.File, Line: place.Line, Result: "pass"}
		if r.failure != "" {
			one.Result, one.Message = "fail", strings.TrimSpace(r.failure)
		}
		p.report.Results = append(p.report.Results, one)
	}
	if o.bad != nil {
		place := placeOf(o.at)
		p.report.Results = append(p.report.Results, testResult{Test: o.title, File: place.File, Line: place.Line, Result: "error", Message: o.bad.Error()})
	}
}

// print writes what the form shows of an outcome.
func (p *printer) print(o *outcome) error {
	switch p.form {
	case "json", "yaml":
		p.addResults(o)
		return nil
	case "junit":
		return p.junit.Add(suiteOf(o))
	case "github":
		var found []annotate.Finding
		add := func(at, message string) {
			place := placeOf(at)
			found = append(found, annotate.Finding{Level: "error", Rule: "test", Message: strings.TrimSpace(message), File: place.File, Line: place.Line})
		}
		for _, r := range o.results {
			if r.failure != "" {
				add(r.at, r.failure)
			}
		}
		if o.bad != nil {
			add(o.at, o.bad.Error())
		}
		return annotate.Write(p.stdout, "github", "", nil, found)
	}
	_, err := io.WriteString(p.stdout, o.text.String())
	return err
}

// suiteOf returns a case as a suite of JUnit, with a test for each query.
func suiteOf(o *outcome) annotate.Suite {
	s := annotate.Suite{Name: strings.TrimSpace(o.at + " " + o.title)}
	for _, r := range o.results {
		place := placeOf(r.at)
		c := annotate.Case{Name: r.name, Class: o.title, File: place.File, Line: place.Line}
		if r.failure != "" {
			first, _, _ := strings.Cut(r.failure, "\n")
			c.Failure = &annotate.Failure{Message: first, Text: r.failure}
		}
		s.Cases = append(s.Cases, c)
	}
	if o.bad != nil {
		place := placeOf(o.at)
		s.Cases = append(s.Cases, annotate.Case{Name: "read", Class: o.title, File: place.File, Line: place.Line,
			Error: &annotate.Failure{Message: o.bad.Error(), Text: o.bad.Error()}})
	}
	return s
}

// placeOf reads "file:line", or a file alone.
func placeOf(at string) model.Place {
	if i := strings.LastIndexByte(at, ':'); i > 0 {
		if n, err := strconv.Atoi(at[i+1:]); err == nil {
			return model.Place{File: at[:i], Line: n}
		}
	}
	return model.Place{File: at}
}

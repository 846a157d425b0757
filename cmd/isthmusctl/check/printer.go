// SPDX-License-Identifier: Apache-2.0

package check

import (
	"io"
	"strconv"
	"strings"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/annotate"
	"github.com/isthmus-net/isthmus/common/model"
)

// printer writes outcomes in one of the forms.
type printer struct {
	form string
	// totals is where the last line goes: to stdout only if that is text for people.
	stdout, stderr, totals io.Writer
	junit                  *annotate.JUnit
}

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
func (p *printer) end() error {
	if p.junit == nil {
		return nil
	}
	return p.junit.Close()
}

// print writes what the form shows of an outcome.
func (p *printer) print(o *outcome) error {
	switch p.form {
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

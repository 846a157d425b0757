// SPDX-License-Identifier: Apache-2.0

package annotate

import (
	"encoding/xml"
	"fmt"
	"io"
	"net/url"
	"path/filepath"
	"strings"
	"unicode"
)

// Suite is a set of test cases, one testsuite element.
type Suite struct {
	XMLName  xml.Name `xml:"testsuite"`
	Name     string   `xml:"name,attr"`
	Tests    int      `xml:"tests,attr"`
	Failures int      `xml:"failures,attr"`
	Errors   int      `xml:"errors,attr"`
	Cases    []Case   `xml:"testcase"`
}

// Case is one test. Failure and Error are nil for a test that passes.
type Case struct {
	Name    string   `xml:"name,attr"`
	Class   string   `xml:"classname,attr"`
	File    string   `xml:"file,attr,omitempty"`
	Line    int      `xml:"line,attr,omitempty"`
	Failure *Failure `xml:"failure"`
	Error   *Failure `xml:"error"`
}

// Failure is why a test failed, or could not run.
type Failure struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

// JUnit writes suites one after the other.
type JUnit struct {
	out   io.Writer
	begun bool
}

// NewJUnit returns a writer without suites.
func NewJUnit(out io.Writer) *JUnit { return &JUnit{out: out} }

const junitHead = xml.Header + "<testsuites name=\"isthmusctl test\">\n"

// Add writes a suite.
func (j *JUnit) Add(s Suite) error {
	s.Tests, s.Failures, s.Errors = len(s.Cases), 0, 0
	for i := range s.Cases {
		c := &s.Cases[i]
		if c.Failure != nil {
			s.Failures++
		}
		if c.Error != nil {
			s.Errors++
		}
		for _, f := range []*Failure{c.Failure, c.Error} {
			if f != nil {
				f.Message, f.Text = printable(f.Message), printable(f.Text)
			}
		}
		c.Name, c.Class = printable(c.Name), printable(c.Class)
	}
	s.Name = printable(s.Name)
	text, err := xml.MarshalIndent(s, "  ", "  ")
	if err != nil {
		return fmt.Errorf("encode junit: %w", err)
	}
	head := ""
	if !j.begun {
		head = junitHead
	}
	j.begun = true
	_, err = fmt.Fprintf(j.out, "%s%s\n", head, text)
	return err
}

// Close ends the document.
func (j *JUnit) Close() error {
	text := "</testsuites>\n"
	if !j.begun {
		text = junitHead + text
	}
	_, err := io.WriteString(j.out, text)
	return err
}

// printable replaces the characters that XML 1.0 cannot hold.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return unicode.ReplacementChar
		}
		return r
	}, text)
}

// uri returns a reference to a file, relative if its path is.
func uri(path string) string {
	u := url.URL{Path: filepath.ToSlash(path)}
	if filepath.IsAbs(path) {
		u.Scheme = "file"
	}
	return u.String()
}

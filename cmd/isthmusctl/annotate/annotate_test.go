// SPDX-License-Identifier: Apache-2.0

package annotate

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"strings"
	"testing"
)

func TestGitHub(t *testing.T) {
	var b bytes.Buffer
	err := Write(&b, "github", "1", nil, []Finding{
		{"error", "bad", "50% of a,b:\nsecond ::error::line", "a,b:c/p.yaml", 3},
		{"note", "every-address", "m", "", 0},
		{"warning", "w", "m", "x.yaml", 0},
	})
	want := "::error file=a%2Cb%3Ac/p.yaml,line=3,title=isthmusctl bad::50%25 of a,b:%0Asecond ::error::line\n" +
		"::notice title=isthmusctl every-address::m\n::warning file=x.yaml,title=isthmusctl w::m\n"
	if err != nil || b.String() != want {
		t.Errorf("%v: got\n%s\nwant\n%s", err, b.String(), want)
	}
}

// SARIF needs a rule for each result, a level of its enumeration, and valid references.
func TestSARIF(t *testing.T) {
	var b bytes.Buffer
	all := []Finding{{"warning", "b", "m", "dir with space/p.yaml", 7}, {"note", "a", "m", "", 0}, {"error", "b", "m", "/abs/p.yaml", 0}}
	if err := Write(&b, "sarif", "1.2.3", map[string]string{"b": "about b"}, all); err != nil {
		t.Fatal(err)
	}
	var log sarifLog
	if err := json.Unmarshal(b.Bytes(), &log); err != nil {
		t.Fatal(err)
	}
	run := log.Runs[0]
	if log.Version != "2.1.0" || run.Tool.Driver.Version != "1.2.3" || len(run.Results) != 3 || len(run.Tool.Driver.Rules) != 2 {
		t.Fatalf("%s", b.String())
	}
	if r := run.Tool.Driver.Rules; r[0].ID != "a" || r[0].Short.Text != "a" || r[1].Short.Text != "about b" {
		t.Errorf("rules %+v", r)
	}
	at := run.Results[0].Locations[0].Physical
	if at.Artifact.URI != "dir%20with%20space/p.yaml" || at.Region.Start != 7 || run.Results[1].Locations != nil {
		t.Errorf("location %+v", at)
	}
	if abs := run.Results[2].Locations[0].Physical; abs.Artifact.URI != "file:///abs/p.yaml" || abs.Region != nil {
		t.Errorf("location %+v", abs)
	}
}

func TestJUnit(t *testing.T) {
	var b bytes.Buffer
	j := NewJUnit(&b)
	err := j.Add(Suite{Name: "<s>", Cases: []Case{{Name: "ok"}, {Name: "bad\x00\x1b", Failure: &Failure{"m\x07", "t & u"}}, {Name: "e", Error: &Failure{"x", ""}}}})
	if err == nil {
		err = j.Close()
	}
	var doc struct {
		Suites []Suite `xml:"testsuite"`
	}
	if err != nil || xml.Unmarshal(b.Bytes(), &doc) != nil {
		t.Fatalf("%v: no XML: %s", err, b.String())
	}
	s := doc.Suites[0]
	if s.Name != "<s>" || s.Tests != 3 || s.Failures != 1 || s.Errors != 1 || s.Cases[1].Failure.Text != "t & u" || s.Cases[0].Failure != nil {
		t.Errorf("%+v", s)
	}
	b.Reset()
	if err := NewJUnit(&b).Close(); err != nil || !strings.HasSuffix(b.String(), "<testsuites name=\"isthmusctl test\">\n</testsuites>\n") {
		t.Errorf("%v: %q", err, b.String())
	}
}

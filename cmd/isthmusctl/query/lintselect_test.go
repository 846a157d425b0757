// SPDX-License-Identifier: Apache-2.0

package query

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/analysis/lint"
)

// Every check that lint finds is in the list that --ignore and SARIF use, and in the documentation.
func TestChecksAreKnown(t *testing.T) {
	_, out, errs := ctl("lint", "-m", "testdata/mistakes", "-o", "json")
	var r struct {
		Findings []struct {
			Check string `json:"check"`
			Place struct {
				File string `json:"file"`
				Line int    `json:"line"`
			} `json:"place"`
		} `json:"findings"`
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err, errs)
	}
	found := make(map[string]bool)
	for _, f := range r.Findings {
		found[f.Check] = true
		if lint.Checks()[f.Check] == "" {
			t.Errorf("check %s is not in lint.Checks", f.Check)
		}
		if f.Place.File != "testdata/mistakes/all.yaml" || f.Place.Line == 0 {
			t.Errorf("%s: place %v", f.Check, f.Place)
		}
	}
	if len(found) < 12 {
		t.Errorf("%d checks were seen", len(found))
	}
	text, err := os.ReadFile("../../../docs/isthmusctl.md")
	if err != nil {
		t.Fatal(err)
	}
	for name := range lint.Checks() {
		if name != "enforceability" && !strings.Contains(string(text), "| `"+name+"` |") {
			t.Errorf("docs/isthmusctl.md does not list %s", name)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"context"
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestBadDocuments compares all errors on bad documents with a golden text.
func TestBadDocuments(t *testing.T) {
	_, warnings, errs := LoadDir(context.Background(), "testdata/bad", DefaultLimits())
	var b strings.Builder
	for _, e := range errs {
		text := e.Error()
		b.WriteString(text + "\n")
		if strings.ContainsAny(text, "\n\r") {
			t.Errorf("not one line: %q", text)
		}
		if e.File == "" || e.Document == 0 || e.Detail == "" {
			t.Errorf("incomplete: %+v", e)
		}
	}
	for _, w := range warnings {
		b.WriteString("warning: " + w.String() + "\n")
	}
	golden(t, "testdata/bad.golden", b.String())
}

func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); d != "" {
		t.Errorf("%s (-golden +now; -update rewrites it):\n%s", path, d)
	}
}

// TestStoredDocuments compares the enforced policies of stored documents, and the remarks about them, with
// a golden text. No storable object may be ignored as a whole: that would open the traffic that it denies.
func TestStoredDocuments(t *testing.T) {
	o, warnings, errs := Reading{Limits: DefaultLimits(), Stored: true}.Dir(context.Background(), "testdata/stored")
	var b strings.Builder
	b.WriteString(render(o))
	for _, w := range warnings {
		b.WriteString("warning: " + w.String() + "\n")
	}
	for _, e := range errs {
		b.WriteString("error: " + e.Error() + "\n")
	}
	golden(t, "testdata/stored.golden", b.String())
}

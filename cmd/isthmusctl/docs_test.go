// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestDocs checks that each command has a page with its flags, and that hidden commands
// have none.
func TestDocs(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1793527200") // 1 November 2026
	for format, want := range map[string][]string{
		"man":      {`.TH "ISTHMUSCTL-EXPLAIN" "1" "Nov 2026" "Isthmus devel" "Isthmus"`, `\fB--from\fP`},
		"markdown": {"## isthmusctl explain\n", "--from string"},
	} {
		dir := filepath.Join(t.TempDir(), "pages")
		if status, _, errs := ctl("docs", "--type", format, "--dir", dir); status != 0 || errs != "" {
			t.Fatalf("docs --type %s: %d, %s", format, status, errs)
		}
		list, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		if len(list) < 15 {
			t.Errorf("%s: %d pages, want at least 15", format, len(list))
		}
		for _, f := range list {
			text, err := os.ReadFile(filepath.Join(dir, f.Name()))
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(f.Name(), "docs") || strings.Contains(string(text), "Auto generated") {
				t.Errorf("%s is a page of a hidden command, or has the date of its making", f.Name())
			}
			if !strings.HasPrefix(f.Name(), "isthmusctl-explain.") && !strings.HasPrefix(f.Name(), "isthmusctl_explain.") {
				continue
			}
			for _, w := range want {
				if !strings.Contains(string(text), w) {
					t.Errorf("%s has no %q:\n%s", f.Name(), w, text)
				}
			}
		}
	}
	if status, _, errs := ctl("docs", "--type", "html"); status != 2 || !strings.Contains(errs, "give man or markdown") {
		t.Errorf("docs --type html: %d, %s", status, errs)
	}
}

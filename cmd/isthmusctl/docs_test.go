// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// checkPluginPage checks the manual page of the CNI plugin, which has no flags.
func checkPluginPage(t *testing.T, page string) {
	t.Helper()
	for _, want := range []string{`.TH "ISTHMUS-CNI" "8" "Nov 2026" "Isthmus devel" "Isthmus"`, `\fBtimeoutSeconds\fP`, "1.1.0"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page of isthmus-cni has no %q:\n%s", want, page)
		}
	}
	if strings.Contains(page, "OPTIONS") {
		t.Errorf("the page of isthmus-cni has flags:\n%s", page)
	}
}

// TestDocs checks that each command has a page with its flags, and that hidden commands
// have none.
func TestDocs(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1793527200") // 1 November 2026
	for format, want := range map[string][]string{
		"man":      {`.TH "ISTHMUSCTL-EXPLAIN" "1" "Nov 2026" "Isthmus devel" "Isthmus"`, `\fB--from\fP`},
		"markdown": {"## isthmusctl explain\n", "--from string"},
	} {
		t.Setenv("NODE_NAME", "node-of-this-machine")
		dir := filepath.Join(t.TempDir(), "pages")
		if status, _, errs := ctl("docs", "--type", format, "--dir", dir); status != 0 || errs != "" {
			t.Fatalf("docs --type %s: %d, %s", format, status, errs)
		}
		list, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		if i := slices.IndexFunc(list, func(f os.DirEntry) bool { return f.Name() == "isthmus-cni.8" }); (i >= 0) != (format == "man") {
			t.Errorf("%s: the page of isthmus-cni is in %v", format, list)
		}
		if len(list) < 15 {
			t.Errorf("%s: %d pages, want at least 15", format, len(list))
		}
		for _, f := range list {
			text, err := os.ReadFile(filepath.Join(dir, f.Name()))
			if err != nil {
				t.Fatal(err)
			}
			if f.Name() == "isthmus-cni.8" {
				checkPluginPage(t, string(text))
				continue
			}
			if strings.Contains(f.Name(), "docs") || strings.Contains(string(text), "Auto generated") || strings.Contains(string(text), "of-this-machine") {
				t.Errorf("%s is a page of a hidden command, or has the date or the machine of its making", f.Name())
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

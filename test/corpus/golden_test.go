// SPDX-License-Identifier: Apache-2.0

package corpus_test

import (
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/isthmus-net/isthmus/common/analysis/engine"
	"github.com/isthmus-net/isthmus/test/corpus"
)

var update = flag.Bool("update", false, "rewrite the golden sections")

// sections are the golden sections for the last step of a case, by file name.
var sections = []struct {
	name   string
	render func(*engine.Cluster) (string, error)
}{
	{corpus.GoldenTables, renderTables},
	{corpus.GoldenMaps, renderMaps},
	{corpus.GoldenACLs, renderACLs},
}

// TestGolden compares the golden sections of each case with what its last step is compiled, laid
// out and lowered to. Review the diff before you run it with -update.
func TestGolden(t *testing.T) {
	shown := 0
	for _, c := range load(t) {
		if !hasFile(c.Archive, corpus.GoldenTables) {
			continue
		}
		shown++
		t.Run(c.Name, func(t *testing.T) {
			cluster := engine.Compile(c.Steps[len(c.Steps)-1].Snapshot, nil)
			changed := false
			for _, s := range sections {
				text, err := s.render(cluster)
				if err != nil {
					t.Fatal(err)
				}
				i := slices.IndexFunc(c.Archive.Files, func(f txtar.File) bool { return f.Name == s.name })
				if i < 0 {
					i = len(c.Archive.Files)
					c.Archive.Files = append(c.Archive.Files, txtar.File{Name: s.name})
				}
				if f := &c.Archive.Files[i]; string(f.Data) != text && *update {
					f.Data, changed = []byte(text), true
				} else if string(f.Data) != text {
					t.Errorf("%s is\n%s\nwant\n%s", s.name, text, f.Data)
				}
			}
			if changed {
				if err := os.WriteFile(c.Name+".txtar", txtar.Format(c.Archive), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
	if shown < 40 {
		t.Errorf("%d cases have golden sections, at least 40 are promised", shown)
	}
}

// TestTablesDoNotDependOnHistory checks that tables compiled step by step mean the same as tables
// compiled from nothing.
func TestTablesDoNotDependOnHistory(t *testing.T) {
	for _, c := range load(t) {
		if len(c.Steps) < 2 {
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			var cluster *engine.Cluster
			for i, step := range c.Steps {
				cluster = engine.Compile(step.Snapshot, cluster)
				got, err := renderTables(cluster)
				if err != nil {
					t.Fatal(err)
				}
				want, err := renderTables(engine.Compile(step.Snapshot, nil))
				if err != nil {
					t.Fatal(err)
				}
				if got != want {
					t.Errorf("step %d: after the steps before\n%s\nfrom nothing\n%s", i+1, got, want)
				}
			}
		})
	}
}

func hasFile(a *txtar.Archive, name string) bool {
	return slices.ContainsFunc(a.Files, func(f txtar.File) bool { return f.Name == name })
}

// lines collects the lines of a text.
type lines struct{ strings.Builder }

func (l *lines) add(parts ...string) {
	for _, p := range parts {
		l.WriteString(p)
	}
	l.WriteByte('\n')
}

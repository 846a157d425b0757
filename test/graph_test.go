// SPDX-License-Identifier: Apache-2.0

package test

import (
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
)

// layers lists the directories of the product from the top to the bottom. A directory
// stands for all packages below it, and imports directories of lower layers only.
var layers = []struct {
	name string
	dirs []string
}{
	{"commands", []string{"cmd/isthmus-agent", "cmd/isthmus-cni", "cmd/isthmus-controller", "cmd/isthmus-relay", "cmd/isthmusctl"}},
	{"plugin", []string{"cni"}},
	{"relay", []string{"common/relay"}},
	{"streams", []string{"common/hubble", "common/page"}},
	{"node", []string{"common/agent", "linux", "windows"}},
	{"analysis", []string{"common/analysis"}},
	{"cluster", []string{"common/kube"}},
	{"reports", []string{"common/report"}},
	{"plans", []string{"common/policy", "common/dataplane", "common/fabric", "common/endpoint", "common/observe", "common/inspect", "common/connectivity"}},
	{"leaves", []string{"common/model", "common/ipam", "common/nodeipam", "common/api", "common/httpd", "common/access", "cmd/daemon"}},
}

// layerOf returns the layer of a package, 0 at the top, and its directory; -1 if it has none.
func layerOf(pkg string) (layer int, dir string) {
	for i, l := range layers {
		for _, d := range l.dirs {
			if under(pkg, []string{d}) {
				return i, d
			}
		}
	}
	return -1, ""
}

// TestImportGraph checks that every import leads to a lower layer, so that there is no cycle of
// directories. It also checks that ARCHITECTURE.md shows the imports.
func TestImportGraph(t *testing.T) {
	imports := make(map[string]map[string]bool)
	for _, goos := range []string{"linux", "windows"} {
		for _, p := range list(t, goos, "./cmd/...", "./cni/...", "./common/...", "./linux/...", "./windows/...") {
			from := strings.TrimPrefix(p.ImportPath, module)
			layer, dir := layerOf(from)
			if layer < 0 {
				t.Fatalf("package %s is in no layer: add its directory to layers in test/graph_test.go", from)
			}
			if imports[dir] == nil {
				imports[dir] = make(map[string]bool)
			}
			for _, i := range p.Imports {
				to, ours := strings.CutPrefix(i, module)
				if !ours || under(to, []string{dir}) {
					continue
				}
				below, other := layerOf(to)
				if below <= layer {
					t.Errorf("%s (%s) imports %s, which is not in a lower layer", from, layers[layer].name, to)
					continue
				}
				imports[dir][other] = true
			}
		}
	}
	generated(t, "../ARCHITECTURE.md", "imports", drawGraph(imports))
}

// drawGraph renders the imports of each directory, by layers. It leaves out imports that other
// imports imply. Directories of one layer with the same imports share a line.
func drawGraph(imports map[string]map[string]bool) string {
	var b strings.Builder
	b.WriteString("```\n")
	for _, l := range layers {
		var lines, names []string // the right and left side of each line
		for _, dir := range l.dirs {
			if imports[dir] == nil {
				continue
			}
			to := strings.Join(reduced(imports, dir), " ")
			if i := slices.Index(lines, to); i >= 0 {
				names[i] += " " + dir
			} else {
				lines, names = append(lines, to), append(names, dir)
			}
		}
		for i, to := range lines {
			line := fmt.Sprintf("%-9s %s", l.name, names[i])
			if to != "" {
				line += " -> " + to
			}
			b.WriteString(line + "\n")
		}
	}
	b.WriteString("```\n")
	return b.String()
}

// reduced returns the imports of a directory that none of its other imports reaches.
func reduced(imports map[string]map[string]bool, dir string) []string {
	var reaches func(from, to string) bool
	reaches = func(from, to string) bool {
		for next := range imports[from] {
			if next == to || reaches(next, to) {
				return true
			}
		}
		return false
	}
	all := slices.Sorted(maps.Keys(imports[dir]))
	return slices.DeleteFunc(slices.Clone(all), func(to string) bool {
		return slices.ContainsFunc(all, func(via string) bool { return via != to && reaches(via, to) })
	})
}

// generated compares the part of a document between the comments "NAME begin" and
// "NAME end" with text, or writes it with -update.
func generated(t *testing.T, file, name, text string) {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	begin, end := "<!-- "+name+" begin -->\n", "<!-- "+name+" end -->"
	head, rest, ok := strings.Cut(string(raw), begin)
	old, tail, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no part between %q and %q", file, begin, end)
	}
	if old == text {
		return
	}
	if !*update {
		t.Errorf("%s: part %q is not up to date (go test ./test -run %s -update):\n%s", path.Base(file), name, t.Name(), text)
		return
	}
	if err := os.WriteFile(file, []byte(head+begin+text+end+tail), 0o644); err != nil {
		t.Fatal(err)
	}
}

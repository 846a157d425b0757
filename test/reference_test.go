// SPDX-License-Identifier: Apache-2.0

package test

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestFlagReference checks that docs/operate/flags.md lists the flags of each command as
// its --help prints them.
func TestFlagReference(t *testing.T) {
	dir := t.TempDir()
	for name, args := range map[string][]string{
		"isthmus-agent":           nil,
		"isthmus-agent uninstall": {"uninstall"},
		"isthmus-controller":      nil,
		"isthmus-relay":           nil,
	} {
		command, _, _ := strings.Cut(name, " ")
		binary := filepath.Join(dir, command)
		build := exec.Command("go", "build", "-buildvcs=false", "-o", binary, "./cmd/"+command)
		build.Dir = ".."
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", command, err, out)
		}
		help, err := exec.Command(binary, append(args, "--help")...).Output()
		if err != nil {
			t.Fatalf("%s --help: %v", name, err)
		}
		generated(t, "../docs/operate/flags.md", name, flagTable(t, string(help)))
	}
}

// TestCommandReference checks that docs/isthmusctl-reference.md has every command of isthmusctl with its help text and
// flags.
func TestCommandReference(t *testing.T) {
	dir := t.TempDir()
	write := exec.Command("go", "run", "-buildvcs=false", "./cmd/isthmusctl", "docs", "--type=markdown", "--dir="+dir)
	write.Dir = ".."
	if out, err := write.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	pages, err := filepath.Glob(filepath.Join(dir, "*.md"))
	if err != nil || len(pages) < 15 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	var b strings.Builder
	for _, page := range pages {
		raw, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		text, _, _ := strings.Cut(string(raw), "\n### SEE ALSO\n")
		text = strings.ReplaceAll(text, "\n### Synopsis\n", "")
		for _, heading := range []string{"Examples", "Options inherited from parent commands", "Options"} {
			text = strings.ReplaceAll(text, "\n### "+heading+"\n", "\n**"+heading+"**\n")
		}
		b.WriteString("\n" + strings.TrimSpace(text) + "\n")
	}
	generated(t, "../docs/isthmusctl-reference.md", "isthmusctl", b.String()+"\n")
}

// TestWindowsAnswers checks that docs/windows.md has the tables of all reports of real Windows hosts.
func TestWindowsAnswers(t *testing.T) {
	table := exec.Command("go", "run", "./test/conformance", "--table", "test/conformance/reports")
	table.Dir = ".."
	text, err := table.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	generated(t, "../docs/windows.md", "answers", string(text))
}

var (
	flagLine     = regexp.MustCompile(`^ +(?:-\w, )?--([\w-]+)(?: (\w+))?\s{2,}(.*)$`)
	flagDefault  = regexp.MustCompile(` \(default (.*)\)$`)
	localDefault = map[string]string{ // defaults that depend on the machine
		"cni-plugin": "`isthmus-cni` in the directory of the agent",
		"node-name":  "the host name",
	}
)

// flagTable renders the flags of a help text: those of all systems first.
func flagTable(t *testing.T, help string) string {
	t.Helper()
	_, text, _ := strings.Cut(help, "\nFlags:\n")
	text, _, _ = strings.Cut(text, "\n\n")
	rows := make(map[string][]string) // by system
	for line := range strings.Lines(text) {
		m := flagLine.FindStringSubmatch(strings.TrimRight(line, "\n"))
		if m == nil {
			t.Fatalf("not a flag: %q", line)
		}
		name, meaning, preset := m[1], m[3], ""
		if name == "help" || name == "version" {
			continue
		}
		if d := flagDefault.FindStringSubmatch(meaning); d != nil {
			meaning = strings.TrimSuffix(meaning, d[0])
			preset = "`" + strings.Trim(d[1], `"`) + "`"
		}
		if local := localDefault[name]; local != "" {
			preset = local
		}
		system := "all"
		for _, s := range []string{"Linux", "Windows"} {
			if rest, ok := strings.CutPrefix(meaning, s+": "); ok {
				system, meaning = s, rest
			}
		}
		rows[system] = append(rows[system], fmt.Sprintf("| `--%s` | %s | %s | %s |\n", name, m[2], preset, strings.ReplaceAll(meaning, "|", `\|`)))
	}
	var b strings.Builder
	for _, system := range []string{"all", "Linux", "Windows"} {
		if len(rows[system]) > 0 {
			fmt.Fprintf(&b, "\n**%s**\n\n| flag | type | default | meaning |\n|---|---|---|---|\n%s", map[string]string{"all": "Linux and Windows"}[system]+strings.TrimPrefix(system, "all"), strings.Join(rows[system], ""))
		}
	}
	return b.String() + "\n"
}

// described is a metric as the code describes it.
type described struct {
	name, labels, help string
}

// TestMetricReference checks that docs/operate/metrics.md lists the metrics that the code
// describes, with their labels and help texts.
func TestMetricReference(t *testing.T) {
	tables := make(map[string][]described)
	for _, f := range sources(t, ".go") {
		if strings.HasSuffix(f.name, "_test.go") || !under(f.name, []string{"cmd", "cni", "common", "linux", "windows"}) || !strings.Contains(f.text, "prometheus.") {
			continue
		}
		table := "agent"
		switch {
		case under(f.name, []string{"windows"}):
			table = "agent on Windows"
		case under(f.name, []string{"common/kube/nodecidr"}):
			table = "controller"
		case under(f.name, []string{"common/relay"}):
			table = "relay"
		}
		tables[table] = append(tables[table], metrics(t, f)...)
	}
	for _, table := range []string{"agent", "agent on Windows", "controller", "relay"} {
		all := tables[table]
		if len(all) == 0 {
			t.Fatalf("no metrics of the %s found in the code", table)
		}
		slices.SortFunc(all, func(a, b described) int { return cmp.Compare(a.name, b.name) })
		var b strings.Builder
		b.WriteString("\n| metric | labels | meaning |\n|---|---|---|\n")
		for _, m := range all {
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", m.name, m.labels, m.help)
		}
		generated(t, "../docs/operate/metrics.md", "metrics of the "+table, b.String()+"\n")
	}
}

// metrics returns the metrics that a file describes: by the Opts of a constructor of
// prometheus, or by a function desc(name, help, labels...) that prefixes "isthmus_".
// Any other use of prometheus.NewDesc fails the test.
func metrics(t *testing.T, f source) []described {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), f.name, f.text, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var all []described
	ast.Inspect(parsed, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		if name, ok := call.Fun.(*ast.Ident); ok && name.Name == "desc" && len(call.Args) >= 2 {
			m := described{name: "isthmus_" + text(t, call.Args[0]), help: text(t, call.Args[1])}
			m.labels = labels(t, call.Args[2:])
			all = append(all, m)
		}
		fun, ok := call.Fun.(*ast.SelectorExpr)
		if pkg, isIdent := funPackage(fun); !ok || !isIdent || pkg != "prometheus" || !strings.HasPrefix(fun.Sel.Name, "New") {
			return true
		}
		if fun.Sel.Name == "NewDesc" && !strings.Contains(f.text, "desc := func(name, help string, labels ...string) *prometheus.Desc") {
			t.Errorf("%s: describe metrics by a function desc(name, help, labels...), so that docs/operate/metrics.md lists them", f.name)
		}
		if len(call.Args) == 0 {
			return true
		}
		opts, ok := call.Args[0].(*ast.CompositeLit)
		if !ok {
			return true
		}
		m := described{name: field(t, opts, "Name"), help: field(t, opts, "Help")}
		if len(call.Args) > 1 {
			if list, ok := call.Args[1].(*ast.CompositeLit); ok {
				m.labels = labels(t, list.Elts)
			}
		}
		all = append(all, m)
		return true
	})
	return all
}

func funPackage(fun *ast.SelectorExpr) (string, bool) {
	if fun == nil {
		return "", false
	}
	pkg, ok := fun.X.(*ast.Ident)
	if !ok {
		return "", false
	}
	return pkg.Name, true
}

// field returns a string field of a composite literal.
func field(t *testing.T, lit *ast.CompositeLit, name string) string {
	t.Helper()
	for _, e := range lit.Elts {
		if kv, ok := e.(*ast.KeyValueExpr); ok && kv.Key.(*ast.Ident).Name == name {
			return text(t, kv.Value)
		}
	}
	t.Errorf("a metric has no %s", name)
	return ""
}

func labels(t *testing.T, list []ast.Expr) string {
	t.Helper()
	var all []string
	for _, e := range list {
		all = append(all, "`"+text(t, e)+"`")
	}
	return strings.Join(all, ", ")
}

// text returns the value of a string literal.
func text(t *testing.T, e ast.Expr) string {
	t.Helper()
	lit, ok := e.(*ast.BasicLit)
	if !ok {
		t.Errorf("name, help and labels of a metric are string literals, not %T", e)
		return ""
	}
	s, err := strconv.Unquote(lit.Value)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

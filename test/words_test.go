// SPDX-License-Identifier: Apache-2.0

package test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Limits on the words of a sentence.
const (
	mostWords       = 35 // of any sentence
	mostWordsReadme = 17 // of the sentences of README.md, on average
)

// banned holds phrases that docs/glossary.md replaces, and what to write instead.
var banned = []struct {
	phrase  *regexp.Regexp
	instead string
}{
	{phrase(`(?:some|no|any)body(?:s|'s)?|whoever`), "name the process, pod, caller or component"},
	{phrase(`mend(?:s|ed|ing)?`), "repair, fix"},
	{phrase(`anew`), "again, recreate"},
	{phrase(`past (?:the|its) (?:\S+ )?stacks?|pass(?:es|ed|ing)? (?:\S+ ){1,3}by`), "bypass the host stack, fast path"},
	{phrase(`behind (?:the|its) translation|what is translated`), "post-DNAT"},
	{phrase(`tells? whether`), "reports whether"},
	{phrase(`(?:is|are|was|were|be) told(?: of)?`), "emit, report"},
	{phrase(`lets? nothing (?:in|out|through)`), "drops everything"},
	{phrase(`grant(?:s|ed)? (?:a )?roles?|asks? again|asked again`), "authorise, revalidate"},
	{phrase(`looks? again|looked again`), "retry, resync"},
	{phrase(`(?:is|are|was|were|be) asked`), "is evaluated, decides, requests"},
	{phrase(`programmes?`), "ruleset"},
	{phrase(`cohorts?`), "address group"},
	{phrase(`terrains?`), "prefix tree"},
	{phrase(`witness(?:es)?`), "placeholder pod"},
	{phrase(`spared|sparing`), "exempt"},
	{phrase(`takes? nothing in`), "drops packets"},
	{phrase(`speaks? of`), "name, refer to"},
}

func phrase(alternatives string) *regexp.Regexp {
	return regexp.MustCompile(`(?i)\b(?:` + alternatives + `)\b`)
}

// quotes names documents that are about the banned phrases themselves.
var quotes = []string{"docs/glossary.md"}

// TestWords checks the language of documents, of comments in Go, C and YAML, of descriptions in YAML, of names that Go
// files declare, and of the introductions of corpus cases: no banned phrase, and no sentence of more
// than mostWords words. Messages of the product have no banned phrase, but may be tables.
func TestWords(t *testing.T) {
	check := func(name string, paragraphs []string) {
		for _, fault := range faults(name, paragraphs) {
			t.Error(fault)
		}
	}
	for _, f := range sources(t, ".md") {
		if !slices.Contains(quotes, f.name) {
			check(f.name, markdown(f.text))
		}
	}
	for _, suffix := range []string{".go", ".c", ".h"} {
		for _, f := range sources(t, suffix) {
			if f.generated || f.name == "test/words_test.go" {
				continue
			}
			for _, c := range comments(t, f, suffix) {
				check(f.name, c)
			}
			if suffix == ".go" {
				check(f.name, names(t, f))
			}
			if suffix == ".go" && !strings.HasSuffix(f.name, "_test.go") && !strings.HasPrefix(f.name, "test/") {
				for _, fault := range bannedIn(f.name, messages(t, f)) {
					t.Error(fault)
				}
			}
		}
	}
	for _, f := range sources(t, ".yaml") {
		check(f.name, yamlTexts(f.text))
	}
	for _, f := range sources(t, ".txtar") {
		introduction, _, _ := strings.Cut(f.text, "\n-- ")
		if strings.Contains(f.name, "/script/") {
			introduction = remarks(introduction)
		}
		check(f.name, paragraphs(strings.Split(introduction, "\n")))
	}
}

// yamlTexts returns the paragraphs of the comments and the descriptions of a YAML file.
func yamlTexts(text string) []string {
	var lines []string
	inside := -1 // the indentation of a description that has several lines
	for line := range strings.SplitSeq(text, "\n") {
		content := strings.TrimSpace(line)
		indent := len(line) - len(strings.TrimLeft(line, " "))
		comment, isComment := strings.CutPrefix(content, "#")
		description, isDescription := strings.CutPrefix(content, "description: ")
		switch {
		case inside >= 0 && indent > inside:
			lines = append(lines, content)
		case isComment:
			inside, lines = -1, append(lines, comment)
		case isDescription && strings.HasPrefix(description, ">"):
			inside, lines = indent, append(lines, "")
		case isDescription:
			inside, lines = -1, append(lines, "", description, "")
		default:
			inside, lines = -1, append(lines, "")
		}
	}
	return paragraphs(lines)
}

// remarks keeps the comments of a script of commands, each as a paragraph.
func remarks(script string) string {
	var kept []string
	for line := range strings.Lines(script) {
		if text, ok := strings.CutPrefix(line, "#"); ok {
			kept = append(kept, text, "\n")
		}
	}
	return strings.Join(kept, "")
}

// TestWordsOfREADME checks that the sentences of README.md are short.
func TestWordsOfREADME(t *testing.T) {
	raw, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	var words, count int
	for _, s := range sentences(markdown(string(raw))) {
		// Cells and headings of one or two words are no sentences and would lower the mean.
		if n := len(strings.Fields(s)); n > 4 {
			words += n
			count++
		}
	}
	if count < 10 {
		t.Fatalf("README.md has %d sentences: is it read as Markdown?", count)
	}
	if mean := float64(words) / float64(count); mean > mostWordsReadme {
		t.Errorf("sentences of README.md have %.1f words on average, at most %d are allowed", mean, mostWordsReadme)
	}
}

// TestFaultsAreFound checks the checker: each rule finds the text that breaks it,
// also over the end of a line, and finds nothing in code.
func TestFaultsAreFound(t *testing.T) {
	long := strings.Repeat("word ", mostWords+1) + "end."
	for text, want := range map[string]int{
		"The agent repairs the route.":                                            0,
		"Somebody changed it.":                                                    1,
		"The packet goes past the\nhost's stack.":                                 1,
		"A [link](docs/x-anew.md) and `made anew` in code.":                       0,
		"It is made anew\n\n```\nmade anew\n```":                                  1,
		"<!-- x begin -->\n\nnobody\n\n<!-- x end -->\n\nnobody":                  1,
		"| cell | nobody reads | it |":                                            1,
		long:                                                                      1,
		strings.Repeat("word ", mostWords-1) + "end. Next.":                       0,
		"- " + strings.Repeat("word ", 30) + "\n- " + strings.Repeat("word ", 30): 0,
	} {
		if got := faults("x.md", markdown(text)); len(got) != want {
			t.Errorf("%q: faults %q, want %d", text, got, want)
		}
	}
	named := source{name: "x.go", text: "package x\n\nfunc TestFloodTakesNobodysFlows() {}\n\nfunc TestIsMadeAnew() {}\n\nfunc emend() { anew := 1; _ = anew }\n"}
	if got := faults("x.go", names(t, named)); len(got) != 2 {
		t.Errorf("faults in names %q, want 2", got)
	}
	spoken := source{name: "x.go", text: "package x\n\nvar a, b, c = \"nobody\", \"nobody listens here\", `one\n\nit was made anew`\n"}
	if got := bannedIn("x.go", messages(t, spoken)); len(got) != 2 {
		t.Errorf("faults in messages %q, want 2", got)
	}
	manifest := "# Read by\n# somebody.\na: nobody\nb:\n  description: >-\n    Made\n    anew.\n  c: nobody\n  description: It is made anew.\n"
	if got := faults("x.yaml", yamlTexts(manifest)); len(got) != 3 {
		t.Errorf("faults in YAML %q, want 3", got)
	}
	for name, text := range map[string]string{
		"x.go": "package x\n\n// F is read by somebody.\nfunc F() {}\n\nvar s = \"nobody\"\n\n// Output: nobody\n",
		"x.c":  "/* somebody\n * reads */\nint x; /* fine */\nchar *s = \"nobody\";\n",
	} {
		n := 0
		for _, c := range comments(t, source{name: name, text: text}, path.Ext(name)) {
			n += len(faults(name, c))
		}
		if n != 1 {
			t.Errorf("%s: %d faults, want 1", name, n)
		}
	}
}

// faults returns what is wrong with paragraphs of text: banned phrases and long sentences.
func faults(name string, paragraphs []string) []string {
	all := bannedIn(name, paragraphs)
	for _, s := range sentences(paragraphs) {
		if n := len(strings.Fields(s)); n > mostWords {
			all = append(all, fmt.Sprintf("%s: a sentence of %d words, at most %d: %.120s", name, n, mostWords, s))
		}
	}
	return all
}

// bannedIn returns the banned phrases in paragraphs of text.
func bannedIn(name string, paragraphs []string) []string {
	var all []string
	for _, p := range paragraphs {
		for _, b := range banned {
			if m := b.phrase.FindString(p); m != "" {
				all = append(all, fmt.Sprintf("%s: %q: write %s: %.120s", name, m, b.instead, p))
			}
		}
	}
	return all
}

var sentenceEnd = regexp.MustCompile(`[.!?][)"”]*\s+`)

// sentences divides paragraphs at full stops.
func sentences(paragraphs []string) []string {
	var all []string
	for _, p := range paragraphs {
		all = append(all, sentenceEnd.Split(p, -1)...)
	}
	return slices.DeleteFunc(all, func(s string) bool { return strings.TrimSpace(s) == "" })
}

var (
	fromCode   = regexp.MustCompile(`(?s)<!-- ([^>]*) begin -->\n.*?<!-- [^>]* end -->`)
	fence      = regexp.MustCompile("(?s)(?:^|\n)```.*?\n```")
	codeSpan   = regexp.MustCompile("(?s)`[^`]*`")
	linkTarget = regexp.MustCompile(`\]\([^)]*\)`)
	itemStart  = regexp.MustCompile(`^\s*(?:[-*+]|\d+\.)\s`)
)

// markdown returns the paragraphs, list items and table cells of a document on one
// line each, without code, the targets of links, and parts that are generated from
// code. A code span counts as a word.
func markdown(text string) []string {
	text = fromCode.ReplaceAllString(text, "")
	text = fence.ReplaceAllString(text, "\n")
	text = codeSpan.ReplaceAllString(text, "code")
	text = linkTarget.ReplaceAllString(text, "]")
	var lines []string
	for line := range strings.SplitSeq(text, "\n") {
		switch {
		case strings.HasPrefix(strings.TrimSpace(line), "|"):
			for cell := range strings.SplitSeq(line, "|") {
				lines = append(lines, "", cell)
			}
			lines = append(lines, "")
		case strings.HasPrefix(line, "#"):
			lines = append(lines, "", line, "")
		default:
			lines = append(lines, line)
		}
	}
	return paragraphs(lines)
}

// paragraphs joins lines up to the next empty line or list item.
func paragraphs(lines []string) []string {
	var all []string
	var now []string
	for _, line := range append(lines, "") {
		empty := strings.TrimSpace(line) == ""
		if (empty || itemStart.MatchString(line)) && len(now) > 0 {
			all = append(all, strings.Join(now, " "))
			now = nil
		}
		if !empty {
			now = append(now, strings.Join(strings.Fields(line), " "))
		}
	}
	return all
}

var cComment = regexp.MustCompile(`(?s)/\*.*?\*/|//[^\n]*`)

var camel = regexp.MustCompile(`[A-Z]?[a-z0-9]+|[A-Z]+`)

// names returns the names of the functions, methods, types, variables and constants that a Go
// file declares outside of functions, each as words: "TestRunsAnew" is "Test Runs Anew".
func names(t *testing.T, f source) []string {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Base(f.name), f.text, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	add := func(name *ast.Ident) { all = append(all, strings.Join(camel.FindAllString(name.Name, -1), " ")) }
	for _, d := range parsed.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			add(d.Name)
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.TypeSpec:
					add(s.Name)
				case *ast.ValueSpec:
					for _, name := range s.Names {
						add(name)
					}
				}
			}
		}
	}
	return all
}

// messages returns the texts of at least three words in a Go file, each string as a paragraph:
// errors, lines of the log, help, and what else users read.
func messages(t *testing.T, f source) []string {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Base(f.name), f.text, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	ast.Inspect(parsed, func(n ast.Node) bool {
		literal, ok := n.(*ast.BasicLit)
		if !ok || literal.Kind != token.STRING {
			return true
		}
		text, err := strconv.Unquote(literal.Value)
		if err != nil {
			t.Fatal(err)
		}
		if len(strings.Fields(text)) >= 3 {
			all = append(all, paragraphs(strings.Split(text, "\n"))...)
		}
		return true
	})
	return all
}

// comments returns the paragraphs of each comment of a file. Lines that are indented
// are code or drawings and left out.
func comments(t *testing.T, f source, suffix string) [][]string {
	t.Helper()
	var texts []string
	if suffix == ".go" {
		parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Base(f.name), f.text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range parsed.Comments {
			text := c.Text()
			if strings.HasPrefix(strings.ToLower(text), "output:") {
				continue // what an example prints
			}
			texts = append(texts, text)
		}
	} else {
		for _, c := range cComment.FindAllString(f.text, -1) {
			c = strings.TrimSuffix(strings.TrimLeft(c, "/*"), "*/")
			lines := strings.Split(c, "\n")
			for i, line := range lines {
				lines[i] = strings.TrimPrefix(strings.TrimPrefix(strings.TrimSpace(line), "*"), " ")
			}
			texts = append(texts, strings.Join(lines, "\n"))
		}
	}
	var all [][]string
	for _, text := range texts {
		lines := strings.Split(text, "\n")
		for i, line := range lines {
			if (strings.HasPrefix(line, "\t") || strings.HasPrefix(line, "    ")) && !itemStart.MatchString(line) {
				lines[i] = ""
			}
		}
		all = append(all, paragraphs(lines))
	}
	return all
}

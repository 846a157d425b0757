// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
)

// mutant is one mistake and the tests that must notice it.
type mutant struct {
	id, area   string
	what       string
	runs       []command
	equivalent string // the reason why no test can notice it
	ends       string // "", "panic" or "timeout"
	hunks      []hunk
}

// hunk replaces text of one file. The text must occur exactly once.
type hunk struct{ file, old, new string }

// command is a test to run: package, pattern of names, and how.
type command struct {
	pkg, run    string
	short, root bool
}

// String returns the command as a user would type it.
func (c command) String() string {
	words := []string{"go", "test"}
	if c.root {
		words = []string{"sudo", "go", "test"}
	}
	if c.short {
		words = append(words, "-short")
	}
	return strings.Join(append(words, c.pkg, "-run", "'"+c.run+"'"), " ")
}

// readLists reads every *.txt file of a directory, in order of their names.
func readLists(dir fs.FS) ([]mutant, error) {
	names, err := fs.Glob(dir, "*.txt")
	if err != nil {
		return nil, err
	}
	var all []mutant
	seen := make(map[string]string)
	for _, name := range names {
		text, err := fs.ReadFile(dir, name)
		if err != nil {
			return nil, err
		}
		list, err := readList(strings.TrimSuffix(path.Base(name), ".txt"), string(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		for _, m := range list {
			if other, ok := seen[m.id]; ok {
				return nil, fmt.Errorf("%s: %s is also in %s.txt: give it another id", name, m.id, other)
			}
			seen[m.id] = m.area
		}
		all = append(all, list...)
	}
	if len(all) == 0 {
		return nil, errors.New("no mutants are listed")
	}
	return all, nil
}

// readList reads one file.
func readList(area, text string) ([]mutant, error) {
	var all []mutant
	for i, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		var err error
		if header, ok := strings.CutPrefix(line, "== "); ok {
			id, what, _ := strings.Cut(header, " ")
			all = append(all, mutant{id: id, area: area, what: what})
		} else if len(all) > 0 {
			err = all[len(all)-1].read(line)
		} else if line != "" && !strings.HasPrefix(line, "#") {
			err = errors.New("want a comment or == before the first mutant")
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
	}
	for i := range all {
		if err := all[i].check(); err != nil {
			return nil, fmt.Errorf("%s: %w", all[i].id, err)
		}
	}
	return all, nil
}

// read takes in one line below a header.
func (m *mutant) read(line string) error {
	word, rest, _ := strings.Cut(line, " ")
	if word == "@@" {
		m.hunks = append(m.hunks, hunk{file: rest})
		return nil
	}
	if n := len(m.hunks); n > 0 && line != "" {
		return m.hunks[n-1].read(line)
	}
	switch word {
	case "", "#":
		return nil
	case "run":
		c, err := readCommand(rest)
		m.runs = append(m.runs, c)
		return err
	case "equivalent":
		m.equivalent = rest
		return nil
	case "ends":
		m.ends = rest
		return nil
	}
	return fmt.Errorf("%q: want run, equivalent, ends or @@", word)
}

// read takes in one line of a diff. A line that is empty in the file is written
// as a blank, a minus or a plus alone.
func (h *hunk) read(line string) error {
	text := line[1:] + "\n"
	switch line[0] {
	case ' ':
		h.old, h.new = h.old+text, h.new+text
	case '-':
		h.old += text
	case '+':
		h.new += text
	default:
		return fmt.Errorf("%q: want a blank, - or + first", line)
	}
	return nil
}

func readCommand(text string) (command, error) {
	var c command
	words := strings.Fields(text)
	for len(words) > 0 && (words[0] == "short" || words[0] == "root") {
		c.short, c.root = c.short || words[0] == "short", c.root || words[0] == "root"
		words = words[1:]
	}
	if len(words) != 2 || !strings.HasPrefix(words[0], "./") {
		return c, fmt.Errorf("%q: want run [short] [root] ./package regexp", text)
	}
	c.pkg, c.run = words[0], words[1]
	_, err := regexp.Compile(c.run)
	return c, err
}

func (m *mutant) check() error {
	switch {
	case m.what == "":
		return errors.New("say after the id what is wrong")
	case len(m.hunks) == 0:
		return errors.New("nothing is changed: add @@ and a diff")
	case (len(m.runs) == 0) == (m.equivalent == ""):
		return errors.New("want either tests to run or a reason why it is equivalent")
	case !slices.Contains([]string{"", "panic", "timeout"}, m.ends):
		return fmt.Errorf("ends %q: want panic or timeout", m.ends)
	}
	for _, h := range m.hunks {
		if h.old == "" || h.old == h.new || path.IsAbs(h.file) || !fs.ValidPath(h.file) {
			return fmt.Errorf("%s: want a file of the repository and a diff that changes it", h.file)
		}
	}
	return nil
}

// apply returns the files that the mutant changes, read from the sources.
func (m *mutant) apply(sources fs.FS) (map[string]string, error) {
	changed := make(map[string]string)
	for _, h := range m.hunks {
		text, ok := changed[h.file]
		if !ok {
			b, err := fs.ReadFile(sources, h.file)
			if err != nil {
				return nil, err
			}
			text = string(b)
		}
		if n := strings.Count("\n"+text, "\n"+h.old); n != 1 {
			return nil, fmt.Errorf("%s has the old text %d times, want once", h.file, n)
		}
		changed[h.file] = strings.Replace("\n"+text, "\n"+h.old, "\n"+h.new, 1)[1:]
	}
	return changed, nil
}

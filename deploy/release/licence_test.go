// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	classifier "github.com/google/licenseclassifier/v2"
	"github.com/google/licenseclassifier/v2/assets"
)

// TestProductLicences reads the licences of all modules of this checkout. Those of some
// modules are known: they hold code of others with another licence.
func TestProductLicences(t *testing.T) {
	src, err := findSource(t.Context(), "../..")
	if err != nil {
		t.Fatal(err)
	}
	r := &release{source: src, targets: targets()}
	if err := r.readLicences(t.Context()); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]terms{
		"github.com/cilium/ebpf":             {"MIT", "MIT", "from LICENSE"},
		"github.com/moby/spdystream":         {"Apache-2.0", "Apache-2.0 AND BSD-3-Clause", "from LICENSE, spdy/LICENSE"},
		"github.com/vishvananda/netns":       {"Apache-2.0", "Apache-2.0", "from LICENSE"},
		"go.yaml.in/yaml/v2":                 {"Apache-2.0 AND MIT", "Apache-2.0 AND MIT", "from LICENSE, LICENSE.libyaml"},
		"k8s.io/apimachinery":                {"Apache-2.0", "Apache-2.0 AND BSD-3-Clause", "from LICENSE, third_party/forked/golang/LICENSE"},
		"sigs.k8s.io/yaml":                   {"Apache-2.0 AND BSD-3-Clause AND MIT", "Apache-2.0 AND BSD-3-Clause AND MIT", "from LICENSE"},
		"github.com/davecgh/go-spew":         {"ISC", "ISC", "from LICENSE"},
		"github.com/Microsoft/hcsshim":       {"MIT", "MIT", "from LICENSE"},
		"github.com/munnerz/goautoneg":       {"BSD-3-Clause", "BSD-3-Clause", "from LICENSE"},
		"github.com/russross/blackfriday/v2": {"BSD-2-Clause", "BSD-2-Clause", "from LICENSE.txt"},
	} {
		var got terms
		for key, t := range r.terms {
			if strings.HasPrefix(key, path+"@") {
				got = t
			}
		}
		if got != want {
			t.Errorf("licence of %s is %+v, want %+v", path, got, want)
		}
	}
	for key, got := range r.terms {
		if strings.HasPrefix(key, "std@") && (got.concluded != "BSD-3-Clause" || !strings.HasSuffix(got.comment, exceptions["std: src/crypto/internal/boring/LICENSE"].reason)) {
			t.Errorf("licence of %s is %+v", key, got)
		}
	}
	var all []linked
	for target, list := range r.linked {
		all = append(all, list...)
		content, err := src.notices(list)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range list {
			if !bytes.Contains(content, []byte("\n"+l.path+" "+l.version+": LIC")) {
				t.Errorf("%s for %s does not name %s", noticesName, target, l.path)
			}
		}
		if n := bytes.Count(content, []byte("TERMS AND CONDITIONS FOR USE, REPRODUCTION, AND DISTRIBUTION")); n < 1 || n > 12 {
			t.Errorf("%s for %s has the Apache licence %d times", noticesName, target, n)
		}
	}
	// Without the exceptions, each is an error.
	_, err = classify(loadTexts(t), all, nil)
	for file := range exceptions {
		path, name, _ := strings.Cut(file, ": ")
		if err == nil || !strings.Contains(err.Error(), "module "+path+"@") || !strings.Contains(err.Error(), ": "+name+": ") {
			t.Errorf("no release needs the exception for %s: %v", file, err)
		}
	}
}

func loadTexts(t *testing.T) *classifier.Classifier {
	t.Helper()
	c, err := assets.DefaultClassifier()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// text returns the file of a licence, with lines before and after it.
func text(t *testing.T, name, before, after string) []byte {
	t.Helper()
	licence, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return []byte(before + string(licence) + after)
}

// TestUnknownLicences lists what a release refuses: licences that are unknown, or ask for
// more than their text, and conditions beside a known licence.
func TestUnknownLicences(t *testing.T) {
	texts, apache := loadTexts(t), "../../LICENSE"
	clause := strings.Repeat("The licence does not grant the right to sell the software or a service of it. ", 8)
	gpl := "This program is free software: you can redistribute it and/or modify it under the terms of the GNU General Public License as published by\n" +
		"the Free Software Foundation, either version 3 of the License, or (at your option) any later version.\n\n" +
		"This program is distributed in the hope that it will be useful, but WITHOUT ANY WARRANTY; without even the implied warranty of\n" +
		"MERCHANTABILITY or FITNESS FOR A PARTICULAR PURPOSE. See the GNU General Public License for more details.\n\n" +
		"You should have received a copy of the GNU General Public License along with this program. If not, see <https://www.gnu.org/licenses/>.\n"
	for name, c := range map[string]struct {
		files map[string][]byte
		want  string // of the error, or the expression
	}{
		"known":           {map[string][]byte{"LICENSE": text(t, apache, "", "")}, "Apache-2.0"},
		"a few words":     {map[string][]byte{"COPYING": text(t, apache, "The licence of this project:\n\n", "\nThe end.\n")}, "Apache-2.0"},
		"notice":          {map[string][]byte{"LICENSE": text(t, apache, "", ""), "NOTICE": []byte(clause)}, "Apache-2.0"},
		"two":             {map[string][]byte{"LICENSE": text(t, apache, "", ""), "x/LICENSE": text(t, bpfText, "", "")}, "Apache-2.0 AND BSD-2-Clause"},
		"clause after":    {map[string][]byte{"LICENSE": text(t, apache, "", "\n"+clause)}, "LICENSE: beside Apache-2.0 it has 128 words more"},
		"clause before":   {map[string][]byte{"LICENSE": text(t, apache, clause+"\n", "")}, "LICENSE: beside Apache-2.0 it has 128 words more"},
		"clause below":    {map[string][]byte{"LICENSE": text(t, apache, "", ""), "x/y/LICENSE": []byte(clause)}, "x/y/LICENSE: this is no licence that is known"},
		"own words":       {map[string][]byte{"LICENSE": []byte("Do what you like.\n")}, "LICENSE: this is no licence that is known"},
		"empty":           {map[string][]byte{"LICENSE": nil}, "LICENSE: this is no licence that is known"},
		"not at the top":  {map[string][]byte{"x/LICENSE": text(t, apache, "", "")}, "no file at the top"},
		"notice only":     {map[string][]byte{"NOTICE": text(t, apache, "", "")}, "no file at the top"},
		"copyleft":        {map[string][]byte{"LICENSE": []byte(gpl)}, "LICENSE: licence GPL-3.0 is none of Apache-2.0, "},
		"copyleft beside": {map[string][]byte{"LICENSE": text(t, apache, "", "\n"+gpl)}, "LICENSE: licence GPL-3.0 is none of Apache-2.0, "},
	} {
		m := linked{module: module{path: "example.org/x", version: "v1.0.0"}, files: c.files}
		all, err := classify(texts, []linked{m}, nil)
		if got := all["example.org/x@v1.0.0"].concluded; got != c.want && (err == nil || !strings.Contains(err.Error(), "module example.org/x@v1.0.0: "+c.want)) {
			t.Errorf("%s: %q, %v, want %q", name, got, err, c.want)
		}
	}
}

// bpfText is the licence of the BPF programs, as this package has it.
const bpfText = "bpf-licence.txt"

// TestExceptions checks that the stated licence of one file is used, with its reason, and
// that other files of the module, and licences that can be read, are not covered by it.
func TestExceptions(t *testing.T) {
	m := linked{module: module{path: "example.org/odd", version: "v1.0.0"}, files: map[string][]byte{
		"LICENSE": text(t, "../../LICENSE", "", ""), "x/LICENSE": []byte("ask the author")}}
	texts := loadTexts(t)
	for want, licence := range map[string]string{unknown: unknown, "Apache-2.0 AND MIT": "MIT"} {
		all, err := classify(texts, []linked{m}, map[string]exception{"example.org/odd: x/LICENSE": {licence, "the author agreed"}, "example.org/odd: LICENSE": {"MIT", "wrong"}})
		if err != nil {
			t.Fatal(err)
		}
		if got, want := all[m.key()], (terms{"Apache-2.0", want, "from LICENSE, x/LICENSE; x/LICENSE: the author agreed"}); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	if _, err := classify(texts, []linked{m}, map[string]exception{"example.org/odd: LICENSE": {"MIT", "wrong"}, "x/LICENSE": {"MIT", "wrong"}}); err == nil {
		t.Error("an exception covers another file")
	}
}

// TestLicencesOnly writes the licences for images in a checkout without git, from any
// directory, and expects those of the modules of each target.
func TestLicencesOnly(t *testing.T) {
	dir := checkout(t)
	if err := os.RemoveAll(filepath.Join(dir, ".git")); err != nil {
		t.Fatal(err)
	}
	t.Chdir(filepath.Join(dir, "deploy", "release"))
	out := t.TempDir()
	if err := run(t.Context(), []string{"-licences-only", out}, nil, nil); err != nil {
		t.Fatal(err)
	}
	for _, target := range targets() {
		content := string(read(t, out, target.String(), noticesName))
		for _, want := range []string{"\nIsthmus: LICENSE\n", "\nIsthmus, BPF programs: LICENSE\n", "\ngithub.com/spf13/pflag v1.0.10: LICENSE\n", "\nstd 1.", "Alex Ogier", "The Go Authors"} {
			if !strings.Contains(content, want) {
				t.Errorf("the licences for %s have no %q", target, want)
			}
		}
	}
	if err := run(t.Context(), []string{"-licences-only", out, "-version", "0.2.0"}, nil, nil); err == nil {
		t.Error("a flag beside -licences-only has no effect and is accepted")
	}
	t.Chdir(t.TempDir())
	if err := run(t.Context(), []string{"-licences-only", out}, nil, nil); err == nil || !strings.Contains(err.Error(), "not in a checkout") {
		t.Errorf("outside of a checkout: %v", err)
	}
}

// TestLinkedModules checks that licences below the top of a module are those of packages
// that are linked, and that a module that a binary has besides is refused.
func TestLinkedModules(t *testing.T) {
	l := linked{module: module{path: "example.org/x", version: "v1.0.0"}, dir: t.TempDir(), files: make(map[string][]byte)}
	for _, path := range []string{"LICENSE", "NOTICE.txt", "license.go", "LICENSES/LICENSE", "third_party/used/LICENSE", "third_party/used/deep/x.go", "third_party/unused/LICENSE"} {
		write(t, l.dir, path, path)
	}
	if err := l.addAbove(filepath.Join(l.dir, "third_party", "used", "deep"), make(map[string]bool)); err != nil {
		t.Fatal(err)
	}
	var got []string
	for name, content := range l.files {
		if string(content) != name {
			t.Errorf("%s has %q", name, content)
		}
		got = append(got, name)
	}
	slices.Sort(got)
	if want := []string{"LICENSE", "NOTICE.txt", "third_party/used/LICENSE"}; !slices.Equal(got, want) {
		t.Errorf("licence files %q, want %q", got, want)
	}
	if err := l.addAbove(filepath.Dir(l.dir), make(map[string]bool)); err == nil || !strings.Contains(err.Error(), "outside of its module") {
		t.Errorf("a package above its module: %v", err)
	}
	if err := sameModules("x", []module{l.module}, []linked{l}); err != nil {
		t.Error(err)
	}
	if err := sameModules("x", []module{l.module, {path: "example.org/y", version: "v1.0.0"}}, []linked{l}); err == nil {
		t.Error("a module without a licence is accepted")
	}
}

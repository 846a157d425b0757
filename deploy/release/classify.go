// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	classifier "github.com/google/licenseclassifier/v2"
)

// terms are the licence of a module, as SPDX expressions.
type terms struct {
	declared  string // by the files at its top
	concluded string // of the packages that are linked
	comment   string // the files, and reasons of exceptions
}

// unknown is the expression for a licence that is not known.
const unknown = "NOASSERTION"

// allowed are the licences that modules of a release may have. Each asks for no more than
// its text beside the binaries.
var allowed = []string{"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT"}

// exception states the licence of a file that does not show an allowed one.
type exception struct {
	licence string // SPDX expression without OR; NOASSERTION if it is unclear
	reason  string
}

// exceptions are by "module: file".
var exceptions = map[string]exception{
	"std: src/crypto/internal/boring/LICENSE": {"BSD-3-Clause", "OpenSSL is the licence of the object in syso, which only GOEXPERIMENT=boringcrypto links"},
}

// strayWords is how many words a licence file may have outside of the texts that are
// recognised: more could be another condition. The most today are those of sigs.k8s.io/yaml.
const strayWords = 100

// classify returns the terms of modules, by path@version.
func classify(c *classifier.Classifier, modules []linked, except map[string]exception) (map[string]terms, error) {
	merged := make(map[string]linked)
	for _, m := range modules {
		if _, ok := merged[m.key()]; !ok {
			merged[m.key()] = linked{module: m.module, files: make(map[string][]byte)}
		}
		maps.Copy(merged[m.key()].files, m.files) // systems differ in the packages of a module
	}
	reader := licenceReader{c, except, make(map[[sha256.Size]byte]found)}
	all, errs := make(map[string]terms), []error{}
	for _, key := range slices.Sorted(maps.Keys(merged)) {
		var err error
		if all[key], err = reader.terms(merged[key]); err != nil {
			errs = append(errs, fmt.Errorf("module %s: %w: remove the module, or add the file with the reason to exceptions in deploy/release/classify.go", key, err))
		}
	}
	return all, errors.Join(errs...)
}

// found are the licences of a text.
type found struct {
	names []string
	err   error
}

// licenceReader recognises texts, each once: most modules have the same ones.
type licenceReader struct {
	classifier *classifier.Classifier
	except     map[string]exception
	known      map[[sha256.Size]byte]found
}

func (r licenceReader) terms(m linked) (terms, error) {
	var top, all, from, reasons []string
	for _, name := range slices.Sorted(maps.Keys(m.files)) {
		if !isTerms(name) {
			continue
		}
		f := r.file(m.files[name])
		if e, ok := r.except[m.path+": "+name]; ok && f.err != nil {
			f = found{names: []string{e.licence}}
			reasons = append(reasons, name+": "+e.reason)
		}
		if f.err != nil {
			return terms{}, fmt.Errorf("%s: %w", name, f.err)
		}
		all, from = append(all, f.names...), append(from, name)
		if isTop(name) {
			top = append(top, f.names...)
		}
	}
	if len(top) == 0 {
		return terms{}, errors.New("no file at the top has a licence")
	}
	comment := strings.Join(append([]string{"from " + strings.Join(from, ", ")}, reasons...), "; ")
	return terms{declared: conjunction(top), concluded: conjunction(all), comment: comment}, nil
}

// file returns the licences of a text, which it reads once.
func (r licenceReader) file(content []byte) found {
	sum := sha256.Sum256(content)
	f, ok := r.known[sum]
	if !ok {
		f.names, f.err = r.read(content)
		r.known[sum] = f
	}
	return f
}

// read returns the licences that a text consists of.
func (r licenceReader) read(content []byte) ([]string, error) {
	var names []string
	covered := make(map[int]bool) // lines, from 1
	for _, m := range r.classifier.Match(content).Matches {
		for line := m.StartLine; line <= m.EndLine; line++ {
			covered[line] = true
		}
		if m.MatchType == "License" || m.MatchType == "Header" {
			names = append(names, m.Name)
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) == 0 {
		return nil, errors.New("this is no licence that is known")
	}
	for _, n := range names {
		if !slices.Contains(allowed, n) {
			return nil, fmt.Errorf("licence %s is none of %s", n, strings.Join(allowed, ", "))
		}
	}
	stray, n := 0, 0
	for line := range strings.Lines(string(content)) {
		if n++; !covered[n] {
			stray += len(strings.Fields(line))
		}
	}
	if stray > strayWords {
		return nil, fmt.Errorf("beside %s it has %d words more, which may be other conditions", strings.Join(names, ", "), stray)
	}
	return names, nil
}

// conjunction returns the expression by which all licences apply.
func conjunction(names []string) string {
	if slices.Contains(names, unknown) {
		return unknown // it cannot be a part of an expression
	}
	sorted := slices.Sorted(slices.Values(names))
	return strings.Join(slices.Compact(sorted), " AND ")
}

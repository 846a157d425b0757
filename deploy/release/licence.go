// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// linked is a module of which a target's commands contain packages, or Go's library "std".
type linked struct {
	module
	dir string
	// files are its licence files, by path below dir: those at its top, and those beside
	// and above the packages that are linked. Code of a third party in it has its own.
	files map[string][]byte
}

// listedPackage is what go list prints about a package.
type listedPackage struct {
	Dir      string
	Standard bool
	Module   *listedModule
}

type listedModule struct {
	Path, Version, Dir string
	Main               bool
	Replace            *listedModule
}

// linkedModules returns what the commands of a target contain, in the order of paths.
func (s source) linkedModules(ctx context.Context, t target) ([]linked, error) {
	root, err := output(s.goCommand(ctx, nil, "env", "GOROOT"))
	if err != nil {
		return nil, err
	}
	args := []string{"list", "-deps", "-json=Dir,Standard,Module"}
	for _, c := range t.commands {
		args = append(args, "./"+c)
	}
	text, err := output(s.goCommand(ctx, []string{"GOOS=" + t.os, "GOARCH=" + t.arch}, args...))
	if err != nil {
		return nil, fmt.Errorf("list packages for %s: %w", t, err)
	}
	std := listedModule{Path: "std", Version: strings.TrimPrefix(s.goVer, "go"), Dir: strings.TrimSpace(root)}
	all, seen := make(map[string]*linked), make(map[string]bool)
	for d := json.NewDecoder(strings.NewReader(text)); ; {
		var p listedPackage
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("read go list -json: %w", err)
		}
		m := p.Module
		switch {
		case p.Standard:
			m = &std
		case m == nil || m.Main:
			continue
		case m.Replace != nil:
			m = m.Replace
		}
		l := all[m.Path]
		if l == nil {
			l = &linked{module: module{path: m.Path, version: m.Version}, dir: m.Dir, files: make(map[string][]byte)}
			all[m.Path] = l
		}
		if err := l.addAbove(p.Dir, seen); err != nil {
			return nil, err
		}
	}
	var list []linked
	for _, path := range slices.Sorted(maps.Keys(all)) {
		l := all[path]
		if !slices.ContainsFunc(slices.Collect(maps.Keys(l.files)), isTop) {
			return nil, fmt.Errorf("module %s has no licence file in %s: a release may not contain it", path, l.dir)
		}
		list = append(list, *l)
	}
	return list, nil
}

func isTop(name string) bool { return !strings.Contains(name, "/") }

// addAbove adds the licence files of a directory of the module and of all above it in the module.
func (l *linked) addAbove(dir string, seen map[string]bool) error {
	for !seen[dir] {
		seen[dir] = true
		rel, err := filepath.Rel(l.dir, dir)
		if err != nil || !filepath.IsLocal(rel) {
			return fmt.Errorf("package in %s is outside of its module %s in %s", dir, l.path, l.dir)
		}
		if err := licencesIn(dir, filepath.ToSlash(rel), l.files); err != nil {
			return err
		}
		if rel == "." {
			break
		}
		dir = filepath.Dir(dir)
	}
	return nil
}

// licencesIn adds the licence files of a directory, by path below the module.
func licencesIn(dir, below string, files map[string][]byte) error {
	list, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("read licence: %w", err)
	}
	for _, f := range list {
		name := strings.ToUpper(f.Name())
		if f.IsDir() || strings.HasSuffix(name, ".GO") ||
			!isTerms(name) && !strings.HasPrefix(name, "NOTICE") && !strings.HasPrefix(name, "PATENTS") {
			continue
		}
		content, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			return fmt.Errorf("read licence: %w", err)
		}
		files[strings.TrimPrefix(below+"/"+f.Name(), "./")] = content
	}
	return nil
}

// isTerms reports whether a file has the text of a licence. Notices and grants of patents
// are shipped too, but say nothing about the licence.
func isTerms(name string) bool {
	name = strings.ToUpper(name[strings.LastIndexByte(name, '/')+1:])
	return strings.HasPrefix(name, "LICENSE") || strings.HasPrefix(name, "LICENCE") || strings.HasPrefix(name, "COPYING")
}

// sameModules checks that the licences are those of the modules in a binary, as the linker
// has recorded them.
func sameModules(binary string, contained []module, listed []linked) error {
	known := make(map[string]bool)
	for _, l := range listed {
		known[l.key()] = true
	}
	for _, m := range contained {
		if !known[m.key()] {
			return fmt.Errorf("%s contains module %s, which go list does not: its licence is unknown", binary, m.key())
		}
	}
	return nil
}

// bpfLicence is the licence of the BPF programs, which commands for Linux contain as objects.
const bpfLicence = "deploy/release/bpf-licence.txt"

// ownLicence returns the licence of the code of Isthmus in a command.
func (s source) ownLicence(content []byte) (string, error) {
	objects, err := filepath.Glob(filepath.Join(s.dir, "linux", "bpfobj", "*.o"))
	if err != nil {
		return "", err
	}
	for _, o := range objects {
		object, err := os.ReadFile(o)
		if err != nil {
			return "", fmt.Errorf("read BPF object: %w", err)
		}
		if bytes.Contains(content, object) {
			return "Apache-2.0 AND (GPL-2.0-only OR BSD-2-Clause)", nil
		}
	}
	return "Apache-2.0", nil
}

// noticesName is the file of a directory of commands that has all licences; images contain it.
const noticesName = "LICENCES.txt"

// notices returns all licences of a target as one text. Equal texts are one.
func (s source) notices(list []linked) ([]byte, error) {
	type text struct {
		of      []string
		content []byte
	}
	var texts []text
	add := func(of string, content []byte) {
		content = bytes.TrimSpace(bytes.ReplaceAll(content, []byte("\r\n"), []byte("\n")))
		i := slices.IndexFunc(texts, func(t text) bool { return bytes.Equal(t.content, content) })
		if i < 0 {
			i, texts = len(texts), append(texts, text{content: content})
		}
		texts[i].of = append(texts[i].of, of)
	}
	for _, own := range []struct{ name, path string }{{"Isthmus: LICENSE", "LICENSE"}, {"Isthmus, BPF programs: LICENSE", bpfLicence}} {
		content, err := os.ReadFile(filepath.Join(s.dir, own.path))
		if err != nil {
			return nil, fmt.Errorf("read licence: %w", err)
		}
		add(own.name, content)
	}
	for _, l := range list {
		for _, name := range slices.Sorted(maps.Keys(l.files)) {
			add(l.path+" "+l.version+": "+name, l.files[name])
		}
	}
	var b bytes.Buffer
	b.WriteString("Licences of Isthmus and of the Go modules that its commands contain.\n")
	for _, t := range texts {
		fmt.Fprintf(&b, "\n%s\n%s\n\n%s\n", strings.Repeat("=", 80), strings.Join(t.of, "\n"), t.content)
	}
	return b.Bytes(), nil
}

// writeNotices writes the licences of every target into DIR/SYSTEM-ARCHITECTURE, for the
// builder of images. The commands there are built by the Go of this machine, and the
// checkout may come without git.
func writeNotices(ctx context.Context, below, dir string) error {
	top, err := filepath.Abs(below)
	if err != nil {
		return err
	}
	for {
		if _, err := os.Stat(filepath.Join(top, bpfLicence)); err == nil {
			break
		} else if top == filepath.Dir(top) {
			return fmt.Errorf("%s is not in a checkout of Isthmus: no directory above has %s", below, bpfLicence)
		}
		top = filepath.Dir(top)
	}
	s := source{dir: top}
	if s.goEnv, err = goEnv(ctx, top); err != nil {
		return err
	}
	ver, err := output(exec.CommandContext(ctx, "go", "env", "GOVERSION"))
	if err != nil {
		return err
	}
	s.goVer = strings.TrimSpace(ver)
	for _, t := range targets() {
		list, err := s.linkedModules(ctx, t)
		if err != nil {
			return err
		}
		content, err := s.notices(list)
		if err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Join(dir, t.String()), 0o755); err != nil {
			return fmt.Errorf("create directory of licences: %w", err)
		}
		if err := writeFile(filepath.Join(dir, t.String(), noticesName), content); err != nil {
			return err
		}
	}
	return nil
}

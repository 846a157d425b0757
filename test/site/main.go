// SPDX-License-Identifier: Apache-2.0

// Command site builds the web site of the documents with Hugo, and checks it: each document has a page, and each link
// between pages leads to a file and to a heading of it. It prints
//
//	site: pages=N links=N broken=0
//
// and exits with 1 if a link is broken or a page is missing.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path"
	"strings"

	"golang.org/x/net/html"
)

func main() {
	out := flag.String("o", "build/site", "directory of the site; what it holds is replaced")
	flag.Parse()
	if err := run(*out); err != nil {
		fmt.Fprintln(os.Stderr, "site:", err)
		os.Exit(1)
	}
}

func run(out string) error {
	if err := os.RemoveAll(out); err != nil {
		return err
	}
	hugo := exec.Command("hugo", "--source", "docs/site", "--destination", "../../"+out, "--panicOnWarning", "--quiet")
	hugo.Stdout, hugo.Stderr = os.Stderr, os.Stderr
	if err := hugo.Run(); err != nil {
		return fmt.Errorf("hugo: %w", err)
	}
	s, err := read(os.DirFS(out))
	if err != nil {
		return err
	}
	wrong := s.broken()
	missing, err := s.missing(os.DirFS("."))
	if err != nil {
		return err
	}
	wrong = append(wrong, missing...)
	for _, w := range wrong {
		fmt.Fprintln(os.Stderr, w)
	}
	fmt.Printf("site: pages=%d links=%d broken=%d\n", len(s.pages), s.links, len(wrong))
	if len(wrong) > 0 {
		return errors.New("links are broken or pages missing")
	}
	return nil
}

// site is a built site.
type site struct {
	files map[string]bool
	pages map[string]*page // by path
	links int
}

// page holds what other pages may link to, and where this one leads.
type page struct {
	ids     map[string]bool
	targets []string
}

func read(root fs.FS) (*site, error) {
	s := &site{files: make(map[string]bool), pages: make(map[string]*page)}
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		s.files[name] = true
		if path.Ext(name) != ".html" {
			return nil
		}
		f, err := root.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		s.pages[name], err = parse(f)
		return err
	})
	return s, err
}

// parse reads the identifiers and the links of a page.
func parse(r io.Reader) (*page, error) {
	p := &page{ids: make(map[string]bool)}
	for z := html.NewTokenizer(r); ; {
		if z.Next() == html.ErrorToken {
			if err := z.Err(); !errors.Is(err, io.EOF) {
				return nil, err
			}
			return p, nil
		}
		for _, a := range z.Token().Attr {
			switch a.Key {
			case "id":
				p.ids[a.Val] = true
			case "href", "src":
				p.targets = append(p.targets, a.Val)
			}
		}
	}
}

// broken lists the links that lead nowhere within the site. Links to other sites are not followed.
func (s *site) broken() (all []string) {
	for name, p := range s.pages {
		for _, t := range p.targets {
			s.links++
			u, err := url.Parse(t)
			if err != nil {
				all = append(all, fmt.Sprintf("%s: link %q: %v", name, t, err))
				continue
			}
			if u.IsAbs() {
				continue
			}
			to := name
			if u.Path != "" {
				to = path.Join(path.Dir(name), u.Path)
			}
			switch at := s.pages[to]; {
			case !s.files[to]:
				all = append(all, fmt.Sprintf("%s: link %q: no such file in the site", name, t))
			case u.Fragment != "" && (at == nil || !at.ids[u.Fragment]):
				all = append(all, fmt.Sprintf("%s: link %q: no such heading", name, t))
			}
		}
	}
	return all
}

// missing lists the documents of the repository that have no page.
func (s *site) missing(repository fs.FS) (all []string, err error) {
	err = fs.WalkDir(repository, "docs", func(name string, _ fs.DirEntry, err error) error {
		if err != nil || path.Ext(name) != ".md" {
			return err
		}
		want := strings.TrimSuffix(name, ".md") + ".html"
		if path.Base(name) == "README.md" {
			want = path.Dir(name) + ".html"
		}
		if s.pages[want] == nil {
			all = append(all, fmt.Sprintf("%s has no page %s", name, want))
		}
		return nil
	})
	return all, err
}

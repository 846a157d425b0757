// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"testing"
	"testing/fstest"
)

func TestBroken(t *testing.T) {
	s, err := read(fstest.MapFS{
		"index.html":  {Data: []byte(`<h1 id="top"></h1><a href="docs/a.html#one">a</a> <a href="https://example.org/x">away</a> <img src="p.svg">`)},
		"docs/a.html": {Data: []byte(`<h1 id="one"></h1><a href="../index.html#top">up</a> <a href="#one">here</a> <a href="b.html">b</a> <a href="../index.html#gone">g</a> <a href="../p.svg#x">p</a>`)},
		"p.svg":       {},
	})
	if err != nil {
		t.Fatal(err)
	}
	got := s.broken()
	slices.Sort(got)
	want := []string{
		`docs/a.html: link "../index.html#gone": no such heading`,
		`docs/a.html: link "../p.svg#x": no such heading`,
		`docs/a.html: link "b.html": no such file in the site`,
	}
	if !slices.Equal(got, want) || s.links != 8 {
		t.Errorf("broken() = %q with %d links, want %q with 8", got, s.links, want)
	}
	missing, err := s.missing(fstest.MapFS{"docs/a.md": {}, "docs/README.md": {}, "docs/c/d.md": {}, "docs/x.txt": {}})
	if want := []string{"docs/README.md has no page docs.html", "docs/c/d.md has no page docs/c/d.html"}; err != nil || !slices.Equal(missing, want) {
		t.Errorf("missing() = %q, %v, want %q", missing, err, want)
	}
}

// SPDX-License-Identifier: Apache-2.0

package console

import (
	"reflect"
	"testing"
)

func TestCommands(t *testing.T) {
	got, err := Commands("# Title\n```\n$ other block\n```\n```console\n$ a b\nout\n...\n$ c\n```\n")
	want := []Command{{Line: 6, Text: "a b", Want: []string{"out", "..."}}, {Line: 9, Text: "c"}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("commands %+v, %v, want %+v", got, err, want)
	}
	for _, bad := range []string{"```console\nout\n```\n", "```console\n$ a\n"} {
		if got, err := Commands(bad); err == nil {
			t.Errorf("%q gives %+v, want an error", bad, got)
		}
	}
}

func TestMatches(t *testing.T) {
	for _, c := range []struct {
		want   []string
		output string
		match  bool
	}{
		{nil, "", true},
		{nil, "text\n", false},
		{[]string{"a  b"}, "a b\n", true},
		{[]string{"a b"}, "a c\n", false},
		{[]string{"pod-...  Running"}, "pod-x1   Running\n", true},
		{[]string{"pod-...  Running"}, "pod-x1   Pending\n", false},
		{[]string{"...", "last"}, "one\ntwo\nlast\n", true},
		{[]string{"...", "last"}, "last\nmore\n", false},
		{[]string{"first", "..."}, "first\n", true},
		{[]string{"a.c"}, "abc\n", false},
	} {
		if got := Matches(c.want, c.output); got != c.match {
			t.Errorf("%q beside %q: %t, want %t", c.want, c.output, got, c.match)
		}
	}
}

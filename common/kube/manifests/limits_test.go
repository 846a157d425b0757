// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"bytes"
	"context"
	"fmt"
	"github.com/isthmus-net/isthmus/common/kube/convert"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// bomb is a few hundred bytes of YAML that stand for a billion values.
func bomb() string {
	var b strings.Builder
	b.WriteString("apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n  annotations:\n    a: &a [x,x,x,x,x,x,x,x,x,x]\n")
	for c := 'b'; c <= 'i'; c++ {
		fmt.Fprintf(&b, "    %c: &%c [", c, c)
		for range 10 {
			fmt.Fprintf(&b, "*%c,", c-1)
		}
		b.WriteString("]\n")
	}
	return b.String()
}

// textBomb repeats one long text by alias: few values, many bytes.
func textBomb() string {
	return "x: &x " + strings.Repeat("y", 1<<20) + "\nl: [" + strings.Repeat("*x,", 4000) + "]\nkind: ConfigMap\n"
}

func TestLimits(t *testing.T) {
	pods := func(n int) string {
		var b strings.Builder
		for i := range n {
			b.WriteString(podText(fmt.Sprint("p", i), "10.0.0.1"))
		}
		return b.String()
	}
	nodes := ""
	for i := range 11 {
		nodes += fmt.Sprintf("---\n{apiVersion: v1, kind: Node, metadata: {name: n%d}}\n", i)
	}
	for name, c := range map[string]struct {
		files map[string]string
		set   func(*Limits)
		want  string
	}{
		"file bytes":  {map[string]string{"a.yaml": pods(100)}, func(l *Limits) { l.FileBytes = 1000 }, "more than 1000 bytes"},
		"total bytes": {map[string]string{"a.yaml": pods(5), "b.yaml": pods(5)}, func(l *Limits) { l.TotalBytes = 800 }, "more than 800 bytes in all files"},
		"files":       {map[string]string{"a.yaml": "", "b.yaml": "", "c.yaml": ""}, func(l *Limits) { l.Files = 2 }, "more than 2 files"},
		"directories": {map[string]string{"a/b/c/d.yaml": ""}, func(l *Limits) { l.Directories = 3 }, "more than 3 directories"},
		"objects":     {map[string]string{"a.yaml": pods(11)}, func(l *Limits) { l.Objects = 10 }, "more than 10 objects"},
		"listed objects": {map[string]string{"a.json": `{"kind":"PodList","apiVersion":"v1","items":[` + strings.Repeat(`{"metadata":{"name":"a"}},`, 10) + `{}]}`},
			func(l *Limits) { l.Objects = 10 }, "more than 10 objects"},
		"pods":   {map[string]string{"a.yaml": pods(11)}, func(l *Limits) { l.Pods = 10 }, "more than the limit of 10"},
		"scaled": {map[string]string{"a.yaml": "{apiVersion: apps/v1, kind: Deployment, metadata: {name: a}, spec: {replicas: 11}}"}, func(l *Limits) { l.Pods = 10 }, "limit of pods"},
		"per node": {map[string]string{"a.yaml": "{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: a}}\n" + nodes},
			func(l *Limits) { l.Pods = 10 }, "limit of pods"},
		"depth":       {map[string]string{"a.yaml": "kind: " + strings.Repeat("[", 100) + strings.Repeat("]", 100)}, nil, "nested too deeply"},
		"more depth":  {map[string]string{"a.yaml": "kind: " + strings.Repeat("[", 1000000)}, nil, "max depth"},
		"json depth":  {map[string]string{"a.json": `{"kind": ` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + "}"}, nil, "nested too deeply"},
		"lists":       {map[string]string{"a.json": strings.Repeat(`{"kind":"List","items":[`, 40) + strings.Repeat("]}", 40)}, nil, "nested too deeply"},
		"bomb":        {map[string]string{"a.yaml": bomb()}, nil, "aliasing"},
		"text bomb":   {map[string]string{"a.yaml": textBomb()}, nil, "aliases are replaced"},
		"not UTF-8":   {map[string]string{"a.yaml": "kind: \xff\xfe"}, nil, "UTF-8"},
		"UTF-16":      {map[string]string{"a.yaml": "\xff\xfek\x00i\x00n\x00d\x00"}, nil, "UTF-16, as Windows PowerShell 5.1"},
		"UTF-16 JSON": {map[string]string{"a.json": "\xfe\xff\x00{"}, nil, "UTF-16, as Windows PowerShell 5.1"},
		"broken JSON": {map[string]string{"a.json": `{"kind": "Pod"`}, nil, "write valid JSON"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for f, text := range c.files {
				write(t, dir, f, text)
			}
			l := DefaultLimits()
			if c.set != nil {
				c.set(&l)
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			begin := time.Now()
			_, _, errs := LoadDir(context.Background(), dir, l)
			took := time.Since(begin)
			runtime.ReadMemStats(&after)
			if len(errs) != 1 || !strings.Contains(errs[0].Error(), c.want) {
				t.Errorf("errors %v, want one with %q", errs, c.want)
			}
			if used := after.TotalAlloc - before.TotalAlloc; used > 512<<20 || took > 10*time.Second {
				t.Errorf("took %s and %d MiB", took, used>>20)
			}
		})
	}
}

func TestTooManyErrors(t *testing.T) {
	_, _, errs := Parse("a.yaml", []byte(strings.Repeat("---\nkind: Pod\n", 3000)), DefaultLimits())
	if len(errs) != convert.MaxRemarks+1 || !strings.Contains(errs[convert.MaxRemarks].Error(), "fix the first ones") {
		t.Errorf("%d errors, the last %v", len(errs), errs[len(errs)-1])
	}
	_, warnings, _ := Parse("a.yaml", []byte(strings.Repeat("---\n{kind: Namespace, apiVersion: v1, metadata: {name: a}}\n", 3000)), DefaultLimits())
	if len(warnings) != convert.MaxRemarks+1 {
		t.Errorf("%d warnings", len(warnings))
	}
}

func TestIrregularFiles(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "a.yaml", podText("a", "10.0.0.1"))
	for link, target := range map[string]string{"loop": ".", "deep/up": "..", "b.yaml": "nowhere.yaml", "gone": "nowhere", "again.yaml": "a.yaml"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, link)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			t.Skip("no symbolic links here:", err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "dir.yaml"), 0o755); err != nil {
		t.Fatal(err)
	}
	o, warnings, errs := LoadDir(context.Background(), dir, DefaultLimits())
	if len(o.Pods) != 1 || len(warnings) != 1 {
		t.Errorf("%d pods, warnings %v; want one pod that is there twice", len(o.Pods), warnings)
	}
	if len(errs) != 1 || errs[0].File != "b.yaml" || !strings.Contains(errs[0].Detail, "broken symbolic link") {
		t.Errorf("errors %v, want one about the broken link", errs)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, _, errs := LoadDir(ctx, dir, DefaultLimits()); len(errs) != 1 || !strings.Contains(errs[0].Error(), "was interrupted") {
		t.Errorf("cancelled: %v", errs)
	}
}

func TestSplitYAML(t *testing.T) {
	for _, c := range []struct {
		text string
		want string // number, line, text
	}{
		{"", ""},
		{"\n# nothing\n---\n# nothing\n...\n", ""},
		{"a: 1", `1,1,"a: 1"`},
		{"a: 1\n---\nb: 2\n", `1,1,"a: 1\n" 2,3,"---\nb: 2\n"`},
		{"---\n---\n\na: 1\n", `1,4,"---\n\na: 1\n"`},
		{"--- {a: 1}\n---\tb\n", `1,1,"--- {a: 1}\n" 2,2,"---\tb\n"`},
		{"a: |\n  ---\n   x\n----\n--- # c\nb: 2", `1,1,"a: |\n  ---\n   x\n----\n" 2,6,"--- # c\nb: 2"`},
		{"%YAML 1.1\n---\na: 1\n...\n%YAML 1.1\n# c\n---\nb: 2\n", `1,3,"%YAML 1.1\n---\na: 1\n" 2,8,"%YAML 1.1\n# c\n---\nb: 2\n"`},
		{"a: 1\r\n---\r\nb: 2\r\n", `1,1,"a: 1\r\n" 2,3,"---\r\nb: 2\r\n"`},
		{"\xef\xbb\xbfa: 1", `1,1,"a: 1"`},
		{"a: 1\n...\nb: 2\n", `1,1,"a: 1\n" 2,3,"b: 2\n"`},
	} {
		var got []string
		for _, d := range splitYAML([]byte(c.text)) {
			got = append(got, fmt.Sprintf("%d,%d,%q", d.number, d.line, d.text))
		}
		if g := strings.Join(got, " "); g != c.want {
			t.Errorf("%q:\n got %s\nwant %s", c.text, g, c.want)
		}
	}
	// Nothing of a text is lost, and no document holds another.
	text := []byte("a: 1\n---\nb: 2\n--- # x\nc: 3\n")
	var all []byte
	for _, d := range splitYAML(text) {
		all = append(all, d.text...)
	}
	if !bytes.Equal(all, text) {
		t.Errorf("lost something: %q", all)
	}
}

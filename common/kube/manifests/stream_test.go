// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/kube/convert"
)

// parsed reads a text as a whole or piece by piece.
func parsed(name, text string, stream bool, limits Limits) (string, []DocumentError) {
	f := File{Name: name, Data: []byte(text)}
	if stream {
		f = File{Name: name, Open: func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(text)), nil }}
	}
	o, _, errs := ParseFiles([]File{f}, limits)
	o.Places = nil
	var b strings.Builder
	for _, p := range o.Pods {
		fmt.Fprintf(&b, "%+v\n", *p)
	}
	for _, p := range o.Policies {
		fmt.Fprintf(&b, "%+v\n", *p)
	}
	for _, n := range o.Nodes {
		fmt.Fprintf(&b, "%+v\n", *n)
	}
	return b.String(), errs
}

const dumped = `apiVersion: v1
items:
- apiVersion: v1
  kind: Pod
  metadata:
    name: web
    namespace: shop
    labels: {app: web}
    annotations:
      text: |
        items:
        - kind: Pod
      long: "one
        two"
  spec: {nodeName: n1, containers: []}
  status: {podIPs: [{ip: 10.0.0.1}]}
# a comment

-   apiVersion: v1
    kind: Node
    metadata:
      name: n1
- apiVersion: networking.k8s.io/v1
  kind: NetworkPolicy
  metadata: {name: db, namespace: shop}
  spec:
    podSelector: {}
    ingress:
    - from:
      - podSelector: {}
kind: List
metadata:
  resourceVersion: ""
`

// What is read piece by piece equals what is read as a whole.
func TestStreamEqualsWhole(t *testing.T) {
	limits := DefaultLimits()
	indented := strings.ReplaceAll(strings.ReplaceAll(dumped, "\n", "\n  "), "\n  kind: List\n  metadata:\n    resourceVersion: \"\"\n  ", "\nkind: List\n")
	indented = strings.Replace(indented, "\n  items:", "\nitems:", 1)
	for name, text := range map[string]string{
		"list.yaml":           dumped,
		"indented.yaml":       indented,
		"crlf.yaml":           strings.ReplaceAll(dumped, "\n", "\r\n"),
		"two.yaml":            "---\n" + dumped + "---\n" + podText("a", "10.0.0.2") + "...\n# end\n---\n" + podText("b", "10.0.0.3"),
		"kind-first.yaml":     "kind: PodList\napiVersion: v1\nitems:\n- metadata: {name: a}\n  spec: {containers: []}\n- metadata: {name: b}\n  spec: {containers: []}\n",
		"no-items.yaml":       "apiVersion: v1\nkind: List\nitems: []\n",
		"null.yaml":           "apiVersion: v1\nkind: List\nitems:\n",
		"flow-items.yaml":     "apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: Node, metadata: {name: n}}]\n",
		"last-line.yaml":      strings.TrimSuffix(podText("a", "10.0.0.2"), "\n"),
		"bom.yaml":            "\xef\xbb\xbf" + dumped,
		"empty.yaml":          "",
		"list.json":           `{"apiVersion":"v1","items":[{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","namespace":"s"},"spec":{"containers":[]}}],"kind":"List"}`,
		"typed.json":          `{"kind":"PodList","apiVersion":"v1","items":[{"metadata":{"name":"a"},"spec":{"containers":[]}}, {"metadata":{"name":"b"},"spec":{"containers":[]}}]}`,
		"two.json":            `{"apiVersion":"v1","kind":"Node","metadata":{"name":"a"}}` + "\n" + `{"apiVersion":"v1","kind":"Node","metadata":{"name":"b"}}`,
		"null.json":           `{"apiVersion":"v1","kind":"List","items":null}`,
		"bad-item.yaml":       strings.Replace(dumped, "kind: Node", "kind: [", 1),
		"bad-object.yaml":     strings.Replace(dumped, "podSelector: {}\n    ingress", "podSelector: 7\n    ingress", 1),
		"no-kind.yaml":        "a: 1\n",
		"no-object.json":      "[]",
		"open.json":           `{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1"`,
		"twice.json":          `{"apiVersion":"v1","kind":"List","items":[],"items":[]}`,
		"unknown-anchor.yaml": strings.Replace(dumped, "labels: {app: web}", "labels: *x", 1),
	} {
		whole, wholeErrs := parsed(name, text, false, limits)
		stream, streamErrs := parsed(name, text, true, limits)
		if name == "twice.json" { // the reading of whole files takes the last
			wholeErrs = streamErrs
		}
		if len(wholeErrs) > 0 != (len(streamErrs) > 0) {
			t.Errorf("%s: whole %v, stream %v", name, wholeErrs, streamErrs)
		}
		if len(wholeErrs) == 0 && whole != stream {
			t.Errorf("%s: whole\n%sstream\n%s", name, whole, stream)
		}
	}
}

// Errors and places name the line of the item, of a small file and of one that is read piece by piece.
func TestLinesOfItems(t *testing.T) {
	misfit := "# dump\n" + strings.Replace(dumped, "podSelector: {}\n    ingress", "podSelector: 7\n    ingress", 1)
	for name, c := range map[string]struct {
		text string
		line int
	}{
		"dump.yaml":   {misfit, 24},
		"crlf.yaml":   {strings.ReplaceAll(misfit, "\n", "\r\n"), 24},
		"second.yaml": {"a: 1\n---\n" + misfit, 26},
		"flow.yaml":   {"apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Node, metadata: {name: a}}\n\n# b\n- {apiVersion: v1, kind: Node, metadata: {name: 7}}\n", 7},
		"dump.json": {"{\"apiVersion\":\"v1\",\"kind\":\"List\",\n\"metadata\":{\"items\":[]},\"items\":[\n{\"apiVersion\":\"v1\",\"kind\":\"Node\",\"metadata\":{\"name\":\"a\"}},\n\n " +
			"{\"apiVersion\":\"v1\",\"kind\":\"Node\",\"metadata\":{\"name\":7}}]}", 5},
	} {
		for _, stream := range []bool{false, true} {
			_, errs := parsed(name, c.text, stream, DefaultLimits())
			if n := len(errs) - 1; n < 0 || errs[n].Line != c.line {
				t.Errorf("%s, piece by piece %t: errors %v, want one on line %d", name, stream, errs, c.line)
			}
		}
	}
	// Where the items are not found line by line, their line is that of the list.
	_, errs := parsed("items.yaml", "apiVersion: v1\nkind: List\nitems: [\n {apiVersion: v1, kind: Node, metadata: {name: 7}}]\n", false, DefaultLimits())
	if len(errs) != 1 || errs[0].Line != 1 {
		t.Errorf("errors %v, want one on line 1", errs)
	}
}

// Pieces and objects are bounded, and a list that is not one is refused.
func TestStreamLimits(t *testing.T) {
	limits := DefaultLimits()
	limits.FileBytes, limits.Objects = 1<<12, 3
	node := "- apiVersion: v1\n  kind: Node\n  metadata: {name: n%d, annotations: {a: %q}}\n"
	nodes := func(n int, text string) string {
		var b strings.Builder
		b.WriteString("apiVersion: v1\nitems:\n")
		for i := range n {
			fmt.Fprintf(&b, node, i, text)
		}
		return b.String() + "kind: List\n"
	}
	for name, c := range map[string]struct{ file, text, want string }{
		"item":            {"a.yaml", nodes(1, strings.Repeat("x\n", 2000)), "more than 4096 bytes"},
		"line":            {"a.yaml", nodes(1, strings.Repeat("x", 1<<17)), "more than 4096 bytes in one line"},
		"document":        {"a.yaml", "a: 1\n" + strings.Repeat("# comment\n", 1000), "more than 4096 bytes"},
		"objects":         {"a.yaml", nodes(5, ""), "more than 3 objects"},
		"value":           {"a.json", `{"kind":"List","apiVersion":"v1","items":[{"a":"` + strings.Repeat("x", 1<<20) + `"}]}`, "more than 4096 bytes"},
		"objects of JSON": {"a.json", `{"kind":"NodeList","apiVersion":"v1","items":[` + strings.Repeat(`{"metadata":{"name":"n"}},`, 5) + `{}]}`, "more than 3 objects"},
		"depth":           {"a.json", `{"kind":"List","apiVersion":"v1","items":[` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `]}`, "nested too deeply"},
		"no list":         {"a.yaml", "apiVersion: x/v1\nitems:\n- {apiVersion: v1, kind: Node, metadata: {name: n}}\nkind: Other\n", "which is not a list"},
		"UTF-16":          {"a.yaml", "\xff\xfe" + strings.Repeat("a\x00\n\x00", 1<<12), "UTF-16, as Windows PowerShell 5.1"},
		"items twice":     {"a.yaml", "apiVersion: v1\nitems:\n- {}\nkind: List\nitems:\n- {}\n", "is there twice"},
	} {
		_, errs := parsed(c.file, c.text, true, limits)
		if text := fmt.Sprint(errs); !strings.Contains(text, c.want) {
			t.Errorf("%s: errors %.300s, want %q", name, text, c.want)
		}
	}
}

// dump is a list of pods as kubectl prints it, made while it is read.
type dump struct {
	left, n int
	buffer  bytes.Buffer
}

func (d *dump) Read(p []byte) (int, error) {
	for d.buffer.Len() < len(p) && d.n < d.left {
		d.n++
		fmt.Fprintf(&d.buffer, "- apiVersion: v1\n  kind: Pod\n  metadata:\n    name: p%d\n    namespace: s\n    annotations:\n      note: %q\n  spec: {nodeName: n1, containers: []}\n",
			d.n, strings.Repeat("x", 8000))
		if d.n == d.left {
			d.buffer.WriteString("kind: List\n")
		}
	}
	return d.buffer.Read(p)
}

// Memory does not grow with the size of a dump, but with its objects: 40 MB of text need less than a quarter of that.
func TestStreamMemory(t *testing.T) {
	const pods = 5_000
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	in := io.MultiReader(strings.NewReader("apiVersion: v1\nitems:\n"), &dump{left: pods})
	highest := uint64(0)
	watched := &watchedReader{in, func() {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		highest = max(highest, m.HeapAlloc)
	}, 0}
	o, _, errs := ParseFiles([]File{{Name: "dump.yaml", Open: func() (io.ReadCloser, error) { return io.NopCloser(watched), nil }}}, DefaultLimits())
	runtime.ReadMemStats(&after)
	if len(errs) > 0 || len(o.Pods) != pods {
		t.Fatalf("%d pods, errors %v", len(o.Pods), errs)
	}
	used := int64(highest) - int64(before.HeapAlloc)
	t.Logf("text of %d MB, at most %d MB of heap", watched.n>>20, used>>20)
	if watched.n < 40_000_000 || used > watched.n/4 {
		t.Errorf("%d bytes of heap for %d bytes of text", used, watched.n)
	}
}

// watchedReader calls a function every few MB.
type watchedReader struct {
	io.Reader
	each func()
	n    int64
}

func (w *watchedReader) Read(p []byte) (int, error) {
	n, err := w.Reader.Read(p)
	if (w.n+int64(n))>>23 != w.n>>23 {
		w.each()
	}
	w.n += int64(n)
	return n, err
}

// A large file of a directory is streamed, a small one is not.
func TestStreamOfDirectory(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "dump.yaml"), []byte(dumped), 0o600); err != nil {
		t.Fatal(err)
	}
	limits := DefaultLimits()
	whole, _, errs := LoadDir(t.Context(), dir, limits)
	limits.StreamBytes = int64(len(dumped)) - 1
	stream, _, more := LoadDir(t.Context(), dir, limits)
	if errs = append(errs, more...); len(errs) > 0 || !reflect.DeepEqual(whole.Pods, stream.Pods) {
		t.Errorf("errors %v, pods %v and %v", errs, whole.Pods, stream.Pods)
	}
	key := "NetworkPolicy shop/db"
	if whole.Places[key].Line != 23 || stream.Places[key].Line != 23 {
		t.Errorf("places %v and %v", whole.Places[key], stream.Places[key])
	}
}

// FuzzStream compares reading in pieces with reading as a whole: what both accept is the same, and nothing panics.
func FuzzStream(f *testing.F) {
	f.Add(dumped, false)
	f.Add("---\n"+podText("a", "10.0.0.1")+"---\nitems:\n - a\nkind: List\napiVersion: v1\n", false)
	f.Add(`{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"Node","metadata":{"name":"b"}}]}`, true)
	limits := DefaultLimits()
	limits.FileBytes = 1 << 16
	f.Fuzz(func(t *testing.T, text string, isJSON bool) {
		name := "a.yaml"
		if isJSON {
			name = "a.json"
		}
		whole, wholeErrs := parsed(name, text, false, limits)
		stream, streamErrs := parsed(name, text, true, limits)
		if len(wholeErrs) == 0 && len(streamErrs) == 0 && whole != stream {
			t.Errorf("whole\n%sstream\n%s", whole, stream)
		}
		if len(streamErrs) > convert.MaxRemarks+1 {
			t.Errorf("%d errors", len(streamErrs))
		}
	})
}

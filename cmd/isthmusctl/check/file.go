// SPDX-License-Identifier: Apache-2.0

package check

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/kube/manifests"
)

// Limits on the content of a test file. Sizes are in bytes, after decompression.
const (
	maxTestFile = 4 << 30
	maxLine     = 64 << 20
	maxYAML     = 8 << 20
	maxCases    = 1_000_000
	maxQueries  = 1_000_000 // of one case
)

// reader reads test files and sends their cases on, until its context ends.
type reader struct {
	ctx context.Context
	out chan<- *testCase
	// stdin is what the path "-" means.
	stdin io.Reader
	next  int
	// unknown holds the unknown fields that a warning has named, by file.
	unknown map[string]bool
}

// send numbers a case and passes it on.
func (r *reader) send(c *testCase) bool {
	c.number = r.next
	r.next++
	select {
	case r.out <- c:
		return true
	case <-r.ctx.Done():
		return false
	}
}

// file reads one file. It sends an error in the file as a case.
func (r *reader) file(path string) {
	r.unknown = make(map[string]bool)
	var err error
	if path == "-" {
		err = r.read(path, r.stdin)
	} else {
		err = r.open(path)
	}
	if err != nil {
		var pe *fs.PathError
		if errors.As(err, &pe) {
			err = pe.Err
		}
		r.send(&testCase{at: path, bad: fmt.Errorf("%s: %w", path, err)})
	}
}

func (r *reader) open(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.IsDir() {
		return errors.New("is a directory: name its files")
	}
	return r.read(path, f)
}

var gzipMagic = []byte{0x1f, 0x8b}

// read decompresses the file if necessary and detects the format: by the name, or else by
// the first character.
func (r *reader) read(path string, f io.Reader) error {
	in := bufio.NewReaderSize(f, 1<<16)
	if head, _ := in.Peek(len(gzipMagic)); bytes.Equal(head, gzipMagic) {
		z, err := gzip.NewReader(in)
		if err != nil {
			return fmt.Errorf("decompress: %w: compress the file with gzip again", err)
		}
		defer z.Close()
		in = bufio.NewReaderSize(z, 1<<16)
	}
	format := filepath.Ext(strings.TrimSuffix(path, ".gz"))
	if !slices.Contains([]string{".yaml", ".yml", ".jsonl", ".ndjson", ".json"}, format) {
		head, _ := in.Peek(1)
		if string(head) != "{" {
			format = ".yaml"
		}
	}
	if format == ".yaml" || format == ".yml" {
		text, err := io.ReadAll(io.LimitReader(in, maxYAML+1))
		if err != nil {
			return fmt.Errorf("read: %w", err)
		}
		if len(text) > maxYAML {
			return fmt.Errorf("more than %d bytes: split the tests into several files", maxYAML)
		}
		return r.yaml(path, text)
	}
	return r.lines(path, &bounded{in, maxTestFile})
}

// bounded returns an error for input that is too long, instead of truncating it.
type bounded struct {
	io.Reader
	left int64
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, fmt.Errorf("more than %d bytes: split the cases into several files", int64(maxTestFile))
	}
	return n, err
}

// lines reads JSON Lines. It continues after an invalid line.
func (r *reader) lines(path string, in io.Reader) error {
	s := bufio.NewScanner(in)
	s.Buffer(make([]byte, 1<<16), maxLine)
	cases, n := 0, 0
	for s.Scan() {
		n++
		line := bytes.TrimSpace(s.Bytes())
		if len(line) == 0 {
			continue
		}
		if cases++; cases > maxCases {
			return fmt.Errorf("more than %d cases: split them into several files", maxCases)
		}
		c := r.line(path, fmt.Sprintf("%s:%d", path, n), bytes.Clone(line))
		if !r.send(c) {
			return nil
		}
	}
	if err := s.Err(); errors.Is(err, bufio.ErrTooLong) {
		return fmt.Errorf("line %d: more than %d bytes: split the case into several", n+1, maxLine)
	} else if err != nil {
		return fmt.Errorf("line %d: %w", n+1, err)
	}
	if cases == 0 {
		return errors.New("the file has no cases: write one JSON object per line")
	}
	return nil
}

// jsonCase is a line. The first members belong to a case with verdicts, the others to an
// object to validate.
type jsonCase struct {
	Name       string            `json:"name"`
	Source     string            `json:"source"`
	ExpectedBy string            `json:"expected_by"`
	Objects    []json.RawMessage `json:"objects"`
	Queries    []jsonQuery       `json:"queries"`

	File      string          `json:"file"`
	Object    json.RawMessage `json:"object"`
	Valid     *bool           `json:"valid"`
	Errors    []string        `json:"errors"`
	Strict    []string        `json:"strict"`
	Defaulted json.RawMessage `json:"defaulted"`
}

type jsonQuery struct {
	Src   string `json:"src"`
	Dst   string `json:"dst"`
	Proto string `json:"proto"`
	Port  *int   `json:"port"`
	Want  string `json:"want"`
}

// line reads one case.
func (r *reader) line(path, at string, text []byte) *testCase {
	c := &testCase{at: at}
	fail := func(err error) *testCase {
		c.bad = fmt.Errorf("%s: %w", at, err)
		return c
	}
	var v jsonCase
	if err := r.decode(path, c, text, &v); err != nil {
		return fail(err)
	}
	switch {
	case v.Object != nil && v.Valid != nil:
		c.title = v.File
		c.validation = &validation{object: v.Object, valid: *v.Valid, errors: v.Errors, strict: v.Strict, defaulted: v.Defaulted}
		return c
	case v.Object != nil:
		return fail(errors.New("valid: missing: say whether the API server accepts the object: true or false"))
	case v.Objects == nil:
		return fail(errors.New("objects: missing: a case has objects and queries, or object and valid"))
	case v.Queries == nil:
		return fail(errors.New("queries: missing: a case has objects and queries"))
	case len(v.Queries) > maxQueries:
		return fail(fmt.Errorf("queries: %d are more than %d: split the case into several", len(v.Queries), maxQueries))
	}
	c.title = v.title()
	list, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": v.Objects})
	if err != nil {
		return fail(err)
	}
	c.files = []manifests.File{{Name: "objects.json", Data: list}}
	for i, q := range v.Queries {
		query, err := q.query()
		if err != nil {
			return fail(fmt.Errorf("queries[%d].%w", i, err))
		}
		c.queries = append(c.queries, query)
	}
	return c
}

// title names the case, its source, and the implementation that gave the expected result.
func (v *jsonCase) title() string {
	title := v.Name
	if v.Source != "" {
		title += " (" + v.Source + ")"
	}
	if v.ExpectedBy != "" {
		title += ", expected by " + v.ExpectedBy
	}
	return title
}

func (q jsonQuery) query() (testQuery, error) {
	t := testQuery{from: q.Src, to: q.Dst}
	for _, end := range []struct{ name, text string }{{"src", q.Src}, {"dst", q.Dst}} {
		if end.text == "" {
			return t, fmt.Errorf(`%s: missing: give "namespace/pod", "namespace/pod@ADDRESS" or "ip:ADDRESS"`, end.name)
		}
	}
	var err error
	if t.protocol, t.port, err = protocolAndPort(q.Proto, q.Port); err != nil {
		return t, err
	}
	t.want, err = verdict(q.Want)
	return t, err
}

// decode reads JSON. It warns once per file about each unknown field.
func (r *reader) decode(path string, c *testCase, text []byte, into *jsonCase) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	err := d.Decode(into)
	if err == nil && d.InputOffset() < int64(len(text)) {
		return errors.New("more than one JSON value: write one per line")
	}
	if name, unknown := strings.CutPrefix(fmt.Sprint(err), "json: unknown field "); unknown {
		if key := path + name; !r.unknown[key] {
			r.unknown[key] = true
			c.warnings = append(c.warnings, fmt.Sprintf("%s: field %s is unknown and ignored", c.at, name))
		}
		*into = jsonCase{}
		err = json.Unmarshal(text, into)
	}
	var wrong *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &wrong):
		return fmt.Errorf("%s: %s: want %s", wrong.Field, wrong.Value, jsonType(wrong.Type.Kind().String()))
	case errors.As(err, &syntax):
		return fmt.Errorf("column %d: %w: write valid JSON", syntax.Offset, err)
	case err != nil:
		return fmt.Errorf("%w: write valid JSON", err)
	}
	return nil
}

// jsonType returns the name that users know a Go type by.
func jsonType(kind string) string {
	switch kind {
	case "slice":
		return "a list"
	case "struct", "map":
		return "an object"
	case "int":
		return "a number"
	case "bool":
		return "true or false"
	}
	return "a " + kind
}

// SPDX-License-Identifier: Apache-2.0

package check

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cluster"
	"github.com/isthmus-net/isthmus/common/kube/manifests"
)

// yamlFile is a test file that is being read.
type yamlFile struct {
	*reader
	path  string
	lines [][]byte
	// shared are the manifests that all tests of the file use.
	shared []manifests.File
}

// yaml reads tests in the format of docs/testing-policies.md.
func (r *reader) yaml(path string, text []byte) error {
	f := &yamlFile{reader: r, path: path, lines: bytes.Split(text, []byte("\n"))}
	d := yaml.NewDecoder(bytes.NewReader(text))
	var doc, more yaml.Node
	if err := d.Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			return errors.New("the file has no tests: see docs/testing-policies.md")
		}
		return fmt.Errorf("%s: write valid YAML", strings.TrimPrefix(strings.Join(strings.Fields(err.Error()), " "), "yaml: "))
	}
	if err := d.Decode(&more); !errors.Is(err, io.EOF) {
		return errors.New("more than one YAML document: write one, and put manifests under objects or into separate files")
	}
	fields, err := f.fields(doc.Content[0], "manifests", "objects", "tests")
	if err != nil {
		return err
	}
	if err := f.manifests(fields["manifests"]); err != nil {
		return err
	}
	if f.shared, err = f.objects(f.shared, fields["objects"]); err != nil {
		return err
	}
	tests, err := f.items(fields["tests"], "tests")
	if err != nil {
		return err
	}
	if len(tests) == 0 || len(tests) > maxCases {
		return fmt.Errorf("tests: %d: give 1 to %d", len(tests), maxCases)
	}
	bad := 0
	for _, t := range tests {
		c, wrong := f.test(t)
		if len(wrong) == 0 && !r.send(c) {
			return nil
		}
		for _, err := range wrong {
			if bad++; bad > maxMistakes {
				return fmt.Errorf("more than %d mistakes: fix the first ones and try again", maxMistakes)
			}
			if !r.send(&testCase{at: path, bad: fmt.Errorf("%s: %w", path, err)}) {
				return nil
			}
		}
	}
	return nil
}

// maxMistakes is the number of mistakes in a file that are named.
const maxMistakes = 20

// wrong returns an error about the line of a node.
func (f *yamlFile) wrong(n *yaml.Node, format string, args ...any) error {
	return fmt.Errorf("line %d: %w", n.Line, fmt.Errorf(format, args...))
}

// real returns the target of an alias, or the node itself.
func real(n *yaml.Node) *yaml.Node {
	if n != nil && n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// fields returns the members of a mapping by name. It accepts only the given names, each
// once.
func (f *yamlFile) fields(n *yaml.Node, names ...string) (map[string]*yaml.Node, error) {
	n = real(n)
	if n.Kind != yaml.MappingNode {
		return nil, f.wrong(n, "want a mapping with %s", strings.Join(names, ", "))
	}
	found := make(map[string]*yaml.Node)
	for i := 0; i < len(n.Content); i += 2 {
		key := n.Content[i]
		if !slices.Contains(names, key.Value) {
			return nil, f.wrong(key, "field %q is unknown: want %s", key.Value, strings.Join(names, ", "))
		}
		if found[key.Value] != nil {
			return nil, f.wrong(key, "field %q occurs twice: write it once", key.Value)
		}
		found[key.Value] = real(n.Content[i+1])
	}
	return found, nil
}

// items returns the elements of a list; a missing list is empty.
func (f *yamlFile) items(n *yaml.Node, name string) ([]*yaml.Node, error) {
	if n == nil || n.Tag == "!!null" {
		return nil, nil
	}
	if n.Kind != yaml.SequenceNode {
		return nil, f.wrong(n, "%s: want a list", name)
	}
	return n.Content, nil
}

// text reads a scalar.
func (f *yamlFile) text(n *yaml.Node, name string) (string, error) {
	if n == nil {
		return "", nil
	}
	if n.Kind != yaml.ScalarNode {
		return "", f.wrong(n, "%s: want a string, not a list or a mapping", name)
	}
	return n.Value, nil
}

// texts reads a scalar or a list of scalars.
func (f *yamlFile) texts(n *yaml.Node, name string) ([]string, error) {
	if n == nil || n.Kind != yaml.SequenceNode {
		t, err := f.text(n, name)
		return []string{t}, err
	}
	var all []string
	for _, e := range n.Content {
		t, err := f.text(real(e), name)
		if err != nil {
			return nil, err
		}
		all = append(all, t)
	}
	return all, nil
}

// manifests reads the named files and directories. Paths are relative to the test file.
func (f *yamlFile) manifests(n *yaml.Node) error {
	list, err := f.items(n, "manifests")
	if err != nil {
		return err
	}
	for _, e := range list {
		path, err := f.text(real(e), "manifests")
		if err != nil {
			return err
		}
		if path == "" {
			return f.wrong(e, "manifests: empty: name a file or a directory")
		}
		if !filepath.IsAbs(path) {
			path = filepath.Join(filepath.Dir(f.path), filepath.FromSlash(path))
		}
		if err := cluster.Unbuilt(path); err != nil {
			return f.wrong(e, "manifests: %w", err)
		}
		files, errs := manifests.ReadFiles(f.ctx, path, manifests.DefaultLimits())
		switch {
		case len(errs) > 0:
			return f.wrong(e, "manifests: %w", errs[0])
		case len(files) == 0:
			return f.wrong(e, "manifests: %s: no manifests found: want .yaml, .yml or .json files", path)
		}
		f.shared = append(f.shared, files...)
	}
	return nil
}

// objects adds the objects that are written in the test file. Each becomes a manifest file
// whose name is the line on which the object begins.
func (f *yamlFile) objects(to []manifests.File, n *yaml.Node) ([]manifests.File, error) {
	list, err := f.items(n, "objects")
	if err != nil {
		return nil, err
	}
	to = slices.Clip(to)
	for _, e := range list {
		if e.Kind != yaml.MappingNode || n.Style&yaml.FlowStyle != 0 {
			return nil, f.wrong(e, "objects: want a list with one object after each dash, no aliases")
		}
		to = append(to, manifests.File{Name: fmt.Sprintf("%s:%d", f.path, e.Line), Data: f.source(e)})
	}
	return to, nil
}

// source returns the text of a list element without its indentation, so that it parses as it
// would in a manifest file.
func (f *yamlFile) source(n *yaml.Node) []byte {
	indent := n.Column - 1
	var out bytes.Buffer
	for i := n.Line - 1; i < len(f.lines); i++ {
		line := f.lines[i]
		if i == n.Line-1 {
			line = line[min(indent, len(line)):]
		} else {
			rest := bytes.TrimLeft(line, " ")
			spaces := len(line) - len(rest)
			if content := bytes.TrimSpace(rest); spaces < indent && len(content) > 0 && content[0] != '#' {
				break
			}
			line = line[min(indent, spaces):]
		}
		out.Write(line)
		out.WriteByte('\n')
	}
	return out.Bytes()
}

// test reads one test. It returns every mistake in it.
func (f *yamlFile) test(n *yaml.Node) (c *testCase, wrong []error) {
	fields, err := f.fields(n, "name", "objects", "queries")
	if err != nil {
		return nil, []error{err}
	}
	note := func(err error) {
		if err != nil {
			wrong = append(wrong, err)
		}
	}
	c = &testCase{at: fmt.Sprintf("%s:%d", f.path, real(n).Line), complete: true}
	c.title, err = f.text(fields["name"], "name")
	if err == nil && c.title == "" {
		err = f.wrong(real(n), "name: missing: describe what the test shows")
	}
	note(err)
	c.files, err = f.objects(f.shared, fields["objects"])
	note(err)
	queries, err := f.items(fields["queries"], "queries")
	note(err)
	for _, q := range queries {
		more, err := f.queries(q)
		note(err)
		if c.queries = append(c.queries, more...); len(wrong) > maxMistakes {
			return nil, wrong
		}
	}
	if len(wrong) == 0 && (len(c.queries) == 0 || len(c.queries) > maxQueries) {
		note(f.wrong(real(n), "queries: %d: give 1 to %d", len(c.queries), maxQueries))
	}
	return c, wrong
}

// queries reads one entry; lists in it mean every combination.
func (f *yamlFile) queries(n *yaml.Node) ([]testQuery, error) {
	fields, err := f.fields(n, "from", "to", "port", "protocol", "want")
	if err != nil {
		return nil, err
	}
	n = real(n)
	var lists [4][]string
	for i, name := range []string{"from", "to", "port", "protocol"} {
		if lists[i], err = f.texts(fields[name], name); err != nil {
			return nil, err
		}
		if i < 2 && (len(lists[i]) == 0 || slices.Contains(lists[i], "")) {
			return nil, f.wrong(n, "%s: missing: give namespace/pod, node:NAME or an address", name)
		}
	}
	want, err := f.text(fields["want"], "want")
	if err != nil {
		return nil, err
	}
	if count := len(lists[0]) * len(lists[1]) * len(lists[2]) * len(lists[3]); count == 0 || count > maxQueries {
		return nil, f.wrong(n, "queries: %d combinations: give 1 to %d", count, maxQueries)
	}
	var all []testQuery
	for _, protocol := range lists[3] {
		for _, port := range lists[2] {
			q, err := yamlQuery(protocol, port, want)
			if err != nil {
				return nil, f.wrong(n, "%w", err)
			}
			q.at = fmt.Sprintf("%s:%d", f.path, n.Line)
			for _, q.from = range lists[0] {
				for _, q.to = range lists[1] {
					all = append(all, q)
				}
			}
		}
	}
	return all, nil
}

func yamlQuery(protocol, port, want string) (q testQuery, err error) {
	var number *int
	n, err := strconv.Atoi(port)
	switch {
	case err == nil:
		number = &n
	case port != "": // a name: what it means depends on the destination
		q.portName, number = port, new(int)
	}
	if q.protocol, q.port, err = protocolAndPort(protocol, number); err != nil {
		return q, err
	}
	if q.portName != "" && !q.protocol.HasPorts() {
		return q, fmt.Errorf("port: %q: %s has no ports: remove the field", q.portName, q.protocol)
	}
	q.want, err = verdict(want)
	return q, err
}

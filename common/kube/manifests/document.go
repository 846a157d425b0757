// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	yamlv2 "go.yaml.in/yaml/v2"
	"sigs.k8s.io/yaml"
)

// document is one document of a file, as text.
type document struct {
	number int // from 1
	line   int // line of the file where its content begins; from 1
	base   int // line of the file where its text begins; from 1
	text   []byte
}

// splitYAML divides a stream into its documents: at every line that begins with "---" or "...". It skips
// documents without content and does not count them.
func splitYAML(data []byte) []document {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	var docs []document
	var doc document // its text begins at start
	start, marked := 0, false
	begin := func(at, line int, mark bool) {
		doc = document{base: line}
		start, marked = at, mark
	}
	flush := func(end int) {
		if doc.line > 0 {
			doc.number, doc.text = len(docs)+1, data[start:end]
			docs = append(docs, doc)
		}
	}
	begin(0, 1, false)
	for at, line := 0, 1; at < len(data); line++ {
		end := len(data)
		if i := bytes.IndexByte(data[at:], '\n'); i >= 0 {
			end = at + i + 1
		}
		text := bytes.TrimRight(data[at:end], "\r\n")
		switch {
		case isMarker(text, "..."):
			flush(at)
			begin(end, line+1, false)
			at = end
			continue
		case isMarker(text, "---"):
			// Directives before the marker belong to the document that follows it.
			if doc.line > 0 || marked {
				flush(at)
				begin(at, line, true)
			}
			marked, text = true, text[3:]
		case !marked && doc.line == 0 && len(text) > 0 && text[0] == '%':
			text = nil
		}
		if doc.line == 0 && hasContent(text) {
			doc.line = line
		}
		at = end
	}
	flush(len(data))
	return docs
}

// errUTF16 is about what users of Windows save without noticing.
var errUTF16 = errors.New("the text is UTF-16, as Windows PowerShell 5.1 writes it to files: save the file as UTF-8, such as by '| Out-File -Encoding utf8 FILE'")

// isUTF16 reports whether a text begins with the byte order mark of UTF-16.
func isUTF16(text []byte) bool {
	return bytes.HasPrefix(text, []byte("\xff\xfe")) || bytes.HasPrefix(text, []byte("\xfe\xff"))
}

func isMarker(line []byte, marker string) bool {
	return bytes.HasPrefix(line, []byte(marker)) && (len(line) == 3 || line[3] == ' ' || line[3] == '\t')
}

// hasContent reports whether a line has content other than a comment.
func hasContent(line []byte) bool {
	line = bytes.TrimSpace(line)
	return len(line) > 0 && line[0] != '#'
}

// splitJSON divides a stream of JSON values.
func splitJSON(data []byte) ([]document, error) {
	if isUTF16(data) {
		return nil, errUTF16
	}
	var docs []document
	d := json.NewDecoder(bytes.NewReader(data))
	for {
		var raw json.RawMessage
		err := d.Decode(&raw)
		if errors.Is(err, io.EOF) {
			return docs, nil
		}
		end := int(d.InputOffset())
		if err != nil {
			begin := len(data) - len(bytes.TrimLeft(data[end:], " \t\r\n"))
			return docs, fmt.Errorf("%w (in the value that begins on line %d): write valid JSON", err, 1+bytes.Count(data[:begin], []byte("\n")))
		}
		line := 1 + bytes.Count(data[:end-len(raw)], []byte("\n"))
		docs = append(docs, document{number: len(docs) + 1, line: line, base: line, text: raw})
	}
}

// toJSON converts a YAML document, within the limits.
func (d document) toJSON(limits Limits) ([]byte, error) {
	switch {
	case isUTF16(d.text):
		return nil, errUTF16
	case !utf8.Valid(d.text):
		return nil, errors.New("the text is not UTF-8: save the file as UTF-8")
	}
	if bytes.IndexByte(d.text, '&') >= 0 {
		if err := checkAliases(d.text, limits); err != nil {
			return nil, err
		}
	}
	out, err := yaml.YAMLToJSONStrict(d.text)
	if err != nil {
		return nil, d.explain(err)
	}
	return out, checkDepth(out, limits.Depth)
}

var yamlLine = regexp.MustCompile(`line (\d+)`)

// explain formats an error of the YAML library on one line, with line numbers of the file instead of the
// document.
func (d document) explain(err error) error {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	text = strings.TrimPrefix(text, "unmarshal errors:\n  ")
	text = yamlLine.ReplaceAllStringFunc(text, func(s string) string {
		n, _ := strconv.Atoi(strings.TrimPrefix(s, "line "))
		return "line " + strconv.Itoa(n+d.base-1)
	})
	if strings.HasPrefix(text, "invalid map key") { // the rest is a value of Go
		text = "a key is a list or an object"
	}
	remedy := "write valid YAML"
	switch {
	case strings.Contains(text, `key "apiVersion" already set`) && strings.Contains(text, `key "kind" already set`):
		// Typical of files that a shell joined.
		text, remedy = yamlLine.FindString(text)+": a second object begins in the same document", "separate objects by a line with ---"
	case strings.Contains(text, "already set in map"):
		remedy = "write every key once"
	case bytes.Contains(d.text, []byte("{{")):
		remedy = "write valid YAML; if it is a template of Helm or another program, render it first"
	}
	return fmt.Errorf("%s: %s", strings.Join(strings.Fields(text), " "), remedy)
}

// checkAliases returns an error for documents that grow too much when their aliases are expanded: ten lines
// can expand to gigabytes. The library bounds the number of values but not the length of texts.
func checkAliases(text []byte, limits Limits) error {
	var v any
	if err := yamlv2.Unmarshal(text, &v); err != nil {
		return nil // the conversion returns a better error
	}
	left := limits.FileBytes
	return measure(v, limits.Depth, &left)
}

// measure subtracts the size of the value from left.
func measure(v any, depth int, left *int64) error {
	if depth < 0 {
		return errDepth
	}
	*left -= 8
	if s, ok := v.(string); ok {
		*left -= int64(len(s))
	}
	if *left < 0 {
		return errors.New("too large after its aliases are replaced: write the values out, in several files")
	}
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			if err := measure(e, depth-1, left); err != nil {
				return err
			}
		}
	case map[any]any:
		for k, e := range v {
			if err := errors.Join(measure(k, depth-1, left), measure(e, depth-1, left)); err != nil {
				return err
			}
		}
	}
	return nil
}

var errDepth = errors.New("nested too deeply: no Kubernetes object needs that")

// checkDepth returns an error for JSON that is nested too deeply. The text must be valid.
func checkDepth(text []byte, depth int) error {
	quoted, level := false, 0
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			if level++; level > depth {
				return errDepth
			}
		case c == '}' || c == ']':
			level--
		}
	}
	return nil
}

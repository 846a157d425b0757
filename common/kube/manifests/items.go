// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"bytes"
	"encoding/json"
)

// itemLines returns the lines of the file on which the n items of a list begin. It returns nil if it does not find them,
// as in a YAML list in flow style.
func (d document) itemLines(n int) []int {
	find := d.yamlItems
	if bytes.HasPrefix(bytes.TrimSpace(d.text), []byte("{")) {
		find = d.jsonItems
	}
	if lines := find(); len(lines) == n {
		return lines
	}
	return nil
}

// yamlItems finds items in block style, as yamlPieces does.
func (d document) yamlItems() (lines []int) {
	listed, indent := false, -1
	line := d.base
	for text := range bytes.Lines(d.text) {
		bare := bytes.TrimRight(text, "\r\n")
		spaces, dash := dashOf(bare)
		switch {
		case isItems(bare):
			listed = true
		case !listed || !hasContent(bare):
		case dash && (indent < 0 || spaces == indent):
			indent, lines = spaces, append(lines, line)
		case spaces == 0:
			listed = false // the next key
		}
		line++
	}
	return lines
}

// isItems reports whether a line of a document has only the key of a list's items.
func isItems(line []byte) bool { return string(bytes.TrimRight(line, " ")) == "items:" }

// dashOf returns the indentation of a line, and whether an item of a list begins there.
func dashOf(line []byte) (spaces int, dash bool) {
	spaces = len(line) - len(bytes.TrimLeft(line, " "))
	return spaces, spaces < len(line) && line[spaces] == '-' && (spaces+1 == len(line) || line[spaces+1] == ' ')
}

func (d document) jsonItems() (lines []int) {
	j := json.NewDecoder(bytes.NewReader(d.text))
	line, passed := d.base, 0
	if _, err := j.Token(); err != nil {
		return nil
	}
	for j.More() {
		key, err := j.Token()
		if err != nil {
			return nil
		}
		if key != "items" {
			var other json.RawMessage
			if j.Decode(&other) != nil {
				return nil
			}
			continue
		}
		if first, err := j.Token(); err != nil || first != json.Delim('[') {
			return nil
		}
		for j.More() {
			var item json.RawMessage
			if j.Decode(&item) != nil {
				return nil
			}
			begin := int(j.InputOffset()) - len(item)
			line, passed = line+bytes.Count(d.text[passed:begin], []byte("\n")), begin
			lines = append(lines, line)
		}
		return lines
	}
	return nil
}

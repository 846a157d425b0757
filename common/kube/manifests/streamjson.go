// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/isthmus-net/isthmus/common/kube/convert"
)

// meter bounds how far a decoder reads beyond what it has decoded, and knows the lines of offsets.
type meter struct {
	io.Reader
	limit, read, decoded int64
	// lines are the offsets of the line ends that were read and not yet passed; passed counts the others.
	lines  []int64
	passed int
}

func (m *meter) Read(p []byte) (int, error) {
	if m.read-m.decoded > m.limit {
		return 0, fmt.Errorf("a value has more than %d bytes: split it", m.limit)
	}
	n, err := m.Reader.Read(p)
	for i, b := range p[:n] {
		if b == '\n' {
			m.lines = append(m.lines, m.read+int64(i))
		}
	}
	m.read += int64(n)
	return n, err
}

// at records that everything before an offset is decoded, and returns the line of the offset.
func (m *meter) at(offset int64) int {
	m.decoded = offset
	n, _ := slices.BinarySearch(m.lines, offset)
	m.lines, m.passed = m.lines[n:], m.passed+n
	return m.passed + 1
}

// jsonPieces divides a stream of JSON values.
type jsonPieces struct {
	*loader
	*json.Decoder
	m *meter
}

// errNoObject ends reading: what follows cannot be found.
var errNoObject = errors.New("must be a Kubernetes object: write valid JSON")

func (l *loader) streamJSON(in io.Reader) error {
	m := &meter{Reader: in, limit: l.limits.FileBytes}
	j := &jsonPieces{l, json.NewDecoder(m), m}
	for number := 1; ; number++ {
		first, err := j.Token()
		if errors.Is(err, io.EOF) {
			return nil
		}
		l.at = DocumentError{File: l.at.File, Document: number, Line: m.at(j.InputOffset())}
		if err == nil && first != json.Delim('{') {
			err = errNoObject
		}
		if err == nil {
			err = j.object()
		}
		if err != nil {
			return fmt.Errorf("line %d: %w", m.at(j.InputOffset()), err)
		}
	}
}

// object takes the value whose first brace was read. It returns an error if reading cannot continue.
func (j *jsonPieces) object() error {
	begin := j.loader.at
	fields := make(map[string]json.RawMessage)
	listed := false
	for j.More() {
		key, err := j.Token()
		if err != nil {
			return err
		}
		j.m.at(j.InputOffset())
		name, _ := key.(string)
		if name == "items" && !listed {
			listed = true
			if err := j.items(fields); err != nil {
				return err
			}
			continue
		}
		var raw json.RawMessage
		if err := j.Decode(&raw); err != nil {
			return err
		}
		if fields[name] != nil || name == "items" {
			return fmt.Errorf("key %s is there twice: write every key once", convert.Quoted(name))
		}
		fields[name] = raw
	}
	if _, err := j.Token(); err != nil {
		return err
	}
	j.loader.at = begin
	whole, err := json.Marshal(fields)
	if err != nil {
		return err
	}
	if !listed {
		if err := checkDepth(whole, j.limits.Depth); err != nil {
			j.reject(convert.Remark{Detail: err.Error()})
			return nil
		}
		j.take(whole)
		return nil
	}
	if h, ok := j.unmarshalHeader(whole); ok {
		j.endList(h)
	}
	return nil
}

// items takes the items of a list, of which some fields are known.
func (j *jsonPieces) items(fields map[string]json.RawMessage) error {
	known, err := json.Marshal(fields)
	if err != nil {
		return err
	}
	var list header
	_ = json.Unmarshal(known, &list) // the whole header is checked at the end
	switch first, err := j.Token(); {
	case err != nil:
		return err
	case first == nil: // null
		return nil
	case first != json.Delim('['):
		return errors.New("items: must be a list of objects")
	}
	for j.More() {
		begin := j.InputOffset()
		j.m.at(begin)
		var raw json.RawMessage
		if err := j.Decode(&raw); err != nil {
			return err
		}
		j.loader.at.Line = j.m.at(j.InputOffset() - int64(len(raw)))
		raw = bytes.TrimSpace(raw)
		if err := checkDepth(raw, j.limits.Depth); err != nil {
			j.reject(convert.Remark{Detail: err.Error()})
			continue
		}
		j.takeItem(list, raw)
		if j.objects > j.limits.Objects {
			return errEnough
		}
	}
	_, err = j.Token()
	return err
}

// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"

	"github.com/isthmus-net/isthmus/common/kube/convert"
	kjson "sigs.k8s.io/json"
)

// stream reads a file piece by piece: the documents of YAML, the values of JSON, and the items of lists. Memory holds one
// piece at a time. Limits.FileBytes bounds a piece.
func (l *loader) stream(name string, open func() (io.ReadCloser, error)) {
	l.at = DocumentError{File: name}
	f, err := open()
	if err != nil {
		l.reject(convert.Remark{Detail: plain("open file", err).Error()})
		return
	}
	defer f.Close()
	in := bufio.NewReaderSize(f, 1<<16)
	switch head, _ := in.Peek(1 << 12); {
	case isUTF16(head):
		err = errUTF16
	case bytes.HasPrefix(bytes.TrimSpace(head), []byte("{")):
		err = l.streamJSON(in)
	default:
		err = l.streamYAML(in)
	}
	if err != nil {
		l.reject(convert.Remark{Detail: err.Error()})
	}
}

// opener returns a function that opens a file whose reading ends with the context.
func opener(ctx context.Context, path string) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) {
		f, err := os.Open(path)
		return &interruptible{f, ctx}, err
	}
}

type interruptible struct {
	io.ReadCloser
	ctx context.Context
}

func (r *interruptible) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, fmt.Errorf("reading was interrupted: %w", err)
	}
	return r.ReadCloser.Read(p)
}

// errEnough ends reading after too many objects, which is an error already.
var errEnough = errors.New("the rest of the file was not read")

// yamlPieces divides a stream of YAML.
type yamlPieces struct {
	*loader
	// text holds the current document, without the items of a list.
	text  bytes.Buffer
	begin int // line of text
	// listed is set after the key items of a document, items while the lines belong to it.
	listed, items bool
	// indent is the indentation of the items, -1 before the first.
	indent int
	item   bytes.Buffer
	line   int // of item
	kind   header
	number int
}

func (l *loader) streamYAML(in *bufio.Reader) error {
	y := &yamlPieces{loader: l, begin: 1}
	for line := 1; ; line++ {
		text, err := y.readLine(in)
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("line %d: %w", line, err)
		}
		if line == 1 {
			text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))
		}
		if len(text) > 0 {
			y.take(text, line)
		}
		if max(y.text.Len(), y.item.Len()) > int(l.limits.FileBytes) {
			return fmt.Errorf("line %d: a document or an item of a list has more than %d bytes: split it", line, l.limits.FileBytes)
		}
		if l.objects > l.limits.Objects {
			return errEnough
		}
		if err != nil {
			y.endDocument(line + 1)
			return nil
		}
	}
}

// readLine returns a line with its end.
func (y *yamlPieces) readLine(in *bufio.Reader) ([]byte, error) {
	var long []byte
	for {
		part, err := in.ReadSlice('\n')
		if err == nil && long == nil {
			return part, nil
		}
		if long = append(long, part...); !errors.Is(err, bufio.ErrBufferFull) {
			return long, err
		}
		if int64(len(long)) > y.limits.FileBytes {
			return nil, fmt.Errorf("more than %d bytes in one line: split it", y.limits.FileBytes)
		}
	}
}

// take adds a line.
func (y *yamlPieces) take(text []byte, line int) {
	bare := bytes.TrimRight(text, "\r\n")
	switch {
	case isMarker(bare, "---"), isMarker(bare, "..."):
		y.endDocument(line + 1)
		if rest := bare[3:]; hasContent(rest) {
			y.begin = line
			y.text.Write(append(bytes.Repeat([]byte(" "), 3), text[3:]...))
		}
		return
	case y.items && !hasContent(bare):
		y.item.Write(text)
		return
	}
	if y.items {
		spaces, dash := dashOf(bare)
		switch {
		case y.indent < 0 && dash, dash && spaces == y.indent:
			y.endItem()
			y.indent, y.line = spaces, line
			y.item.Write(text)
			y.item.Bytes()[spaces] = ' '
			return
		case spaces > 0 && y.indent >= 0:
			y.item.Write(text)
			return
		}
		y.endItem()
		y.items = false
	}
	if isItems(bare) {
		if y.listed {
			y.at = DocumentError{File: y.at.File, Document: y.number + 1, Line: line}
			y.reject(convert.Remark{Field: "items", Detail: "is there twice: write every key once"})
		}
		y.listed, y.items, y.indent = true, true, -1
		y.kind, _ = y.header(line)
		y.text.WriteByte('\n') // in its place, so that line numbers are right before the items
		return
	}
	y.text.Write(text)
}

// header reads the fields of the document so far that every object has.
func (y *yamlPieces) header(line int) (header, error) {
	var h header
	raw, err := document{line: line, base: y.begin, text: y.text.Bytes()}.toJSON(y.limits)
	if err == nil {
		err = kjson.UnmarshalCaseSensitivePreserveInts(raw, &h)
	}
	return h, err
}

// endItem takes the current item of a list.
func (y *yamlPieces) endItem() {
	defer y.item.Reset()
	if !hasContentIn(y.item.Bytes()) {
		return
	}
	y.at = DocumentError{File: y.at.File, Document: y.number + 1, Line: y.line}
	raw, err := document{line: y.line, base: y.line, text: y.item.Bytes()}.toJSON(y.limits)
	if err != nil {
		y.reject(convert.Remark{Detail: err.Error()})
		return
	}
	y.takeItem(y.kind, raw)
}

// endDocument takes the current document; the next begins on a line.
func (y *yamlPieces) endDocument(next int) {
	y.endItem()
	if y.listed || hasContentIn(y.text.Bytes()) {
		y.number++
		y.at = DocumentError{File: y.at.File, Document: y.number, Line: y.begin}
		if y.listed {
			h, err := y.header(y.begin)
			if err != nil {
				y.reject(convert.Remark{Detail: err.Error()})
			} else {
				y.endList(h)
			}
		} else if raw, err := (document{line: y.begin, base: y.begin, text: y.text.Bytes()}).toJSON(y.limits); err != nil {
			y.reject(convert.Remark{Detail: err.Error()})
		} else {
			y.loader.take(raw)
		}
	}
	y.text.Reset()
	y.begin, y.listed, y.items, y.kind = next, false, false, header{}
}

// takeItem takes an item of a list, of which the fields before its items are known.
func (l *loader) takeItem(list header, raw []byte) {
	if item, ok := strings.CutSuffix(list.Kind, "List"); ok && item != "" && l.isList(list, item) {
		raw = withType(raw, list.APIVersion, item)
	}
	l.take(raw)
}

// endList checks that what had items is a list.
func (l *loader) endList(h header) {
	item, ok := strings.CutSuffix(h.Kind, "List")
	if !ok || !l.isList(h, item) {
		l.at.Object = h.String()
		l.reject(convert.Remark{Field: "items", Detail: fmt.Sprintf("in %s %s, which is not a list: write the object to a smaller file", convert.Quoted(h.APIVersion), convert.Quoted(h.Kind))})
	}
}

// hasContentIn reports whether a text has more than comments.
func hasContentIn(text []byte) bool {
	for line := range bytes.Lines(text) {
		if hasContent(line) {
			return true
		}
	}
	return false
}

// unmarshalHeader reads the fields that every object has.
func (l *loader) unmarshalHeader(raw []byte) (header, bool) {
	var h header
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &h); err != nil {
		l.reject(convert.MisfitRemarks(raw, reflect.TypeFor[header](), err)...)
		return h, false
	}
	return h, true
}

// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
)

// writeMessage writes a message with apiVersion and kind, and every field under its protobuf name, including zeros, for
// scripts.
func writeMessage(out io.Writer, form, kind string, m proto.Message) error {
	text, err := messageJSON(m)
	if err != nil {
		return err
	}
	return cli.EncodeKind(out, form, kind, json.RawMessage(text))
}

// messageJSON returns a message as indented JSON. Numbers of 64 bits are numbers, as everywhere in Kubernetes,
// and not texts, as protobuf prints them. Times in nanoseconds stay texts: they exceed the precision of many readers.
func messageJSON(m proto.Message) ([]byte, error) {
	b, err := protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode answer: %w", err)
	}
	var text bytes.Buffer // protojson varies its spaces from build to build
	if err := json.Indent(&text, b, "", "  "); err != nil {
		return nil, fmt.Errorf("encode answer: %w", err)
	}
	wide := make(map[string]bool)
	wideFields(m.ProtoReflect().Descriptor(), wide, make(map[protoreflect.FullName]bool))
	return quotedNumber.ReplaceAllFunc(text.Bytes(), func(line []byte) []byte {
		parts := quotedNumber.FindSubmatch(line)
		if !wide[string(parts[2])] {
			return line
		}
		return fmt.Appendf(nil, "%s%q: %s%s", parts[1], parts[2], parts[3], parts[4])
	}), nil
}

// quotedNumber matches a field on a line of indented JSON. A text cannot contain such a line: its line ends are escaped.
var quotedNumber = regexp.MustCompile(`(?m)^( *)"([a-z0-9_]+)": "(-?[0-9]+)"(,?)$`)

// wideFields collects the names of the single fields of 64 bits in a message and in those inside of it.
func wideFields(d protoreflect.MessageDescriptor, found map[string]bool, seen map[protoreflect.FullName]bool) {
	if seen[d.FullName()] {
		return
	}
	seen[d.FullName()] = true
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		switch f.Kind() {
		case protoreflect.Int64Kind, protoreflect.Uint64Kind:
			if !f.IsList() && !strings.HasSuffix(string(f.Name()), "_unix_nano") && f.Name() != "unix_nano" {
				found[string(f.Name())] = true
			}
		case protoreflect.MessageKind:
			wideFields(f.Message(), found, seen)
		}
	}
}

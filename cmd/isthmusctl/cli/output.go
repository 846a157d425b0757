// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
)

// RegisterOutput registers --output; the first form is the default.
func RegisterOutput(c *cobra.Command, p *string, forms ...string) {
	c.Flags().StringVarP(p, "output", "o", forms[0], strings.Join(forms, ", "))
	CompleteFlag(c, "output", forms)
}

// CompleteFlag completes a flag with fixed values.
func CompleteFlag(c *cobra.Command, flag string, values []string) {
	if err := c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // the flag does not exist, or is completed already
	}
}

// Protocols are the values that shells complete for protocols.
func Protocols() []string { return []string{"tcp", "udp", "sctp", "icmp", "icmpv6"} }

// CheckOutput rejects a value of --output that is not one of the forms.
func CheckOutput(output string, forms ...string) error {
	if !slices.Contains(forms, output) {
		return Usagef("--output %q: give one of %s", output, strings.Join(forms, ", "))
	}
	return nil
}

// EncodeJSON writes a value as indented JSON.
func EncodeJSON(out io.Writer, value any) error {
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(value); err != nil {
		return fmt.Errorf("encode answer: %w", err)
	}
	return nil
}

// Encode writes a value as indented JSON, or as YAML with the same names in the same order.
func Encode(out io.Writer, form string, value any) error {
	if form != "yaml" {
		return EncodeJSON(out, value)
	}
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode answer: %w", err)
	}
	return WriteYAML(out, text)
}

// APIVersion is the version of the JSON and YAML forms. Within it fields may be added; a
// removed or renamed field, or another meaning, gets a new version.
const APIVersion = "isthmusctl.isthmus.dev/v1"

// Head returns the first fields of a JSON object of a kind, without the closing brace.
func Head(kind string) string {
	return fmt.Sprintf("{\n  \"apiVersion\": %q,\n  \"kind\": %q", APIVersion, kind)
}

// EncodeKind writes a struct as Encode does, with apiVersion and kind before its fields.
func EncodeKind(out io.Writer, form, kind string, value any) error {
	var text bytes.Buffer
	if err := EncodeJSON(&text, value); err != nil {
		return err
	}
	fields, ok := bytes.CutPrefix(text.Bytes(), []byte("{"))
	if !ok {
		return fmt.Errorf("encode answer: %s is not an object", kind)
	}
	comma := ","
	if bytes.HasPrefix(fields, []byte("}")) {
		comma = "\n"
	}
	all := slices.Concat([]byte(Head(kind)+comma), fields)
	if form == "yaml" {
		return WriteYAML(out, all)
	}
	_, err := out.Write(all)
	return err
}

// WriteYAML writes JSON as YAML.
func WriteYAML(out io.Writer, text []byte) error {
	var n yaml.Node
	if err := yaml.Unmarshal(text, &n); err != nil { // JSON is YAML
		return fmt.Errorf("encode answer: %w", err)
	}
	unstyle(&n)
	enc := yaml.NewEncoder(out)
	enc.SetIndent(2)
	if err := enc.Encode(&n); err != nil {
		return fmt.Errorf("encode answer: %w", err)
	}
	return enc.Close()
}

// unstyle lets the encoder choose how nodes are written.
func unstyle(n *yaml.Node) {
	n.Style = 0
	for _, c := range n.Content {
		unstyle(c)
	}
}

// OrNone returns the text, or "none" for an empty one.
func OrNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// Shorten lists a few names in full and counts the rest.
func Shorten(names []string, few int) string {
	if len(names) <= few {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:few], ", "), len(names)-few)
}

// Plain writes what f writes without control characters: a text of a node must not control the terminal of the user.
func Plain(out io.Writer, f func(io.Writer) error) error {
	var text bytes.Buffer
	if err := f(&text); err != nil {
		return err
	}
	_, err := io.WriteString(out, strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' {
			return unicode.ReplacementChar
		}
		return r
	}, text.String()))
	return err
}

// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"io"
)

// Printable returns a writer that replaces control characters other than line feeds and tabs by "?". Names in the
// manifests of other people, and in test files, must not control the terminal of who reads the answer.
func Printable(out io.Writer) io.Writer { return printable{out} }

type printable struct{ out io.Writer }

func (p printable) Write(text []byte) (int, error) {
	if bytes.IndexFunc(text, isControl) < 0 {
		return p.out.Write(text)
	}
	clean := bytes.Map(func(r rune) rune {
		if isControl(r) {
			return '?'
		}
		return r
	}, text)
	if _, err := p.out.Write(clean); err != nil {
		return 0, err
	}
	return len(text), nil
}

// isControl reports whether a character belongs to the sets C0 or C1 of control characters, or is a DEL.
func isControl(r rune) bool { return r < ' ' && r != '\n' && r != '\t' || r >= 0x7f && r < 0xa0 }

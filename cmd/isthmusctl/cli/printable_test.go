// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"strings"
	"testing"
)

func TestPrintable(t *testing.T) {
	for text, want := range map[string]string{
		"a\tb\nc":         "a\tb\nc",
		"a\x1b[31mb":      "a?[31mb",
		"é\u009b2J\x7f\r": "é?2J??",
		"ÿ 10 % <b> ↔":    "ÿ 10 % <b> ↔",
		"":                "",
	} {
		var b strings.Builder
		if n, err := Printable(&b).Write([]byte(text)); n != len(text) || err != nil || b.String() != want {
			t.Errorf("%q: %d, %v, %q, want %q", text, n, err, b.String(), want)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"strings"
	"testing"
)

func TestDenyListEntries(t *testing.T) {
	for _, c := range []struct{ text, taken, problem string }{
		{"192.0.2.7", "192.0.2.7/32", ""},
		{"198.51.100.0/24", "198.51.100.0/24", ""},
		{"2001:DB8::/32", "2001:db8::/32", ""},
		{"198.51.100.9/24", "198.51.100.0/24", "is enforced as 198.51.100.0/24"},
		{"0.0.0.0/0", "", "cut every node off"},
		{"::/0", "", "cut every node off"},
		{"fe80::1", "", "link-local"},
		{"fe80::/9", "", "link-local"},
		{"fe80::1%eth0", "", "without a zone"},
		{"::ffff:192.0.2.7", "", "IPv4 as such"},
		{"::ffff:192.0.2.0/120", "", "write an address"},
		{"192.0.2.0/33", "", "write an address"},
		{"192.0.2", "", "write an address"},
		{"example.com", "", "write an address"},
		{"", "", "write an address"},
	} {
		p, problem := denyEntry(c.text)
		taken := ""
		if p.IsValid() {
			taken = p.String()
		}
		if taken != c.taken || (problem == "") != (c.problem == "") || !strings.Contains(problem, c.problem) {
			t.Errorf("%q: %q %q, want %q %q", c.text, taken, problem, c.taken, c.problem)
		}
	}
}

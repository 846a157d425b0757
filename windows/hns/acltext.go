// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"fmt"
	"strings"
)

// FormatACLs formats one line per ACL, in the given order.
func FormatACLs(indent string, acls []ACL) string {
	var b strings.Builder
	for _, a := range acls {
		a = a.Normal()
		fmt.Fprintf(&b, "%s%5d %-3s %-6s %-5s proto=%s", indent, a.Priority, a.Direction, a.RuleType, a.Action, a.Protocols)
		for _, m := range []struct{ name, value string }{
			{"local", a.LocalAddresses}, {"remote", a.RemoteAddresses}, {"lports", a.LocalPorts}, {"rports", a.RemotePorts},
		} {
			if m.value != "" {
				fmt.Fprintf(&b, " %s=%s", m.name, m.value)
			}
		}
		fmt.Fprintf(&b, " id=%s\n", a.ID)
	}
	return b.String()
}

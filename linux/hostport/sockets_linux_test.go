// SPDX-License-Identifier: Apache-2.0

package hostport

import (
	"fmt"
	"testing"
)

// TestParseEndpoints parses the kernel's format of SCTP endpoints (net/sctp/proc.c).
func TestParseEndpoints(t *testing.T) {
	const text = ` ENDPT     SOCK   STY SST HBKT LPORT   UID INODE LADDRS
ffff8800 ffff8801 2   10  29   3868      0 31005 0.0.0.0
ffff8802 ffff8803 2   10  57   36412     0 31009 192.0.2.1 2001:db8::1
ffff8804 ffff8805 0   7   12   4000      0 31010 192.0.2.1
ffff8806 ffff8807 2   10  12   x         0 31010 192.0.2.1
`
	want := "[SCTP 0.0.0.0:3868 SCTP 192.0.2.1:36412 SCTP [2001:db8::1]:36412]"
	if got := fmt.Sprint(parseEndpoints(text)); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestShortSocket(t *testing.T) {
	if _, _, err := parseSocket(make([]byte, 71)); err == nil {
		t.Error("a message that is cut short is read")
	}
}

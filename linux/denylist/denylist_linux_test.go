// SPDX-License-Identifier: Apache-2.0

package denylist_test

import (
	"fmt"
	"testing"

	"github.com/isthmus-net/isthmus/linux/denylist"
)

func TestParseDevices(t *testing.T) {
	for text, want := range map[string]string{"auto": "{true []}", "off": "{false []}", "eth0": "{false [eth0]}", "eth0,eth1": "{false [eth0 eth1]}"} {
		if d, err := denylist.ParseDevices(text); err != nil || fmt.Sprint(d) != want {
			t.Errorf("%q: %v %v, want %s", text, d, err, want)
		}
	}
	for _, text := range []string{"", ",", "eth0,", "eth0,eth0", "a/b", "..", "averyveryverylongname"} {
		if _, err := denylist.ParseDevices(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}

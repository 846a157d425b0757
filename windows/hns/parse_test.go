// SPDX-License-Identifier: Apache-2.0

package hns

import "testing"

func TestNormalAddresses(t *testing.T) {
	for text, want := range map[string]string{
		"":                              "",
		"10.0.0.2,10.0.0.1":             "10.0.0.1,10.0.0.2",
		"10.0.0.1/32,10.0.0.0/24":       "10.0.0.0/24,10.0.0.1",
		"FD00:0:0::1,fd00:0002::/64":    "fd00:2::/64,fd00::1",
		"FD00::1/128":                   "fd00::1",
		"10.0.0.1/24":                   "10.0.0.1/24", // not the prefix 10.0.0.0/24
		"::ffff:10.0.0.1":               "::ffff:10.0.0.1",
		"FE80::1%3":                     "FE80::1%3",
		"isthmus-8066869bf392ea27-v4":   "isthmus-8066869bf392ea27-v4",
		"Set-B,set-a,10.0.0.1/32,10.0 ": "10.0 ,10.0.0.1,Set-B,set-a",
	} {
		if got := NormalAddresses(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

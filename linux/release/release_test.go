// SPDX-License-Identifier: Apache-2.0

package release_test

import (
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/linux/release"
)

func TestSupported(t *testing.T) {
	for text, want := range map[string]bool{
		"5.14.0-427.el9.x86_64": false, "5.15.0-105-generic": false, "6.0.12": false,
		"6.1.0-35-amd64": true, "6.1": true, "6.18.44": true, "7.0": true, "10.0-rc1": true,
	} {
		v, err := release.Parse(text)
		if err != nil || v.Supported() != want {
			t.Errorf("%s: %s, supported %t, %v; want %t", text, v, v.Supported(), err, want)
		}
		if err := release.Check(text); (err == nil) != want || err != nil && !strings.Contains(err.Error(), text) {
			t.Errorf("%s: checked: %v", text, err)
		}
	}
	for _, text := range []string{"", "6", "six.one", ".1", "6."} {
		if v, err := release.Parse(text); err == nil {
			t.Errorf("%q is read as %s", text, v)
		}
		if err := release.Check(text); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}

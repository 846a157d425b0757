// SPDX-License-Identifier: Apache-2.0

package doctor

import "testing"

func TestBuilds(t *testing.T) {
	for _, c := range []struct {
		build, revision uint32
		want            Severity
	}{{14393, 1, Bad}, {17763, 100, Bad}, {17763, 5000, Warning}, {20348, 2582, Warning}, {20348, 3000, Good}, {26100, 1742, Warning}} {
		all := buildFindings(c.build, c.revision)
		if Worst(all) != c.want {
			t.Errorf("build %d.%d: %+v, want %s at worst", c.build, c.revision, all, c.want)
		}
		for _, f := range all {
			if f.Severity != Good && (f.Why == "" || f.Do == "") {
				t.Errorf("a finding without reason or remedy: %+v", f)
			}
		}
	}
	if Worst(nil) != Good {
		t.Error("nothing is not good")
	}
}

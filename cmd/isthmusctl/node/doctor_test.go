// SPDX-License-Identifier: Apache-2.0

package node

import "testing"

// TestDoctorMode checks the modes that agents have on each system.
func TestDoctorMode(t *testing.T) {
	for _, c := range []struct {
		mode, goos string
		want       bool
	}{{"", "linux", true}, {"full", "windows", true}, {"policy", "linux", true}, {"policy", "windows", true}, {"observe", "linux", true}, {"observe", "windows", false}, {"chained", "linux", false}} {
		if err := checkMode(c.mode, c.goos); (err == nil) != c.want {
			t.Errorf("--mode %s on %s: %v", c.mode, c.goos, err)
		}
	}
}

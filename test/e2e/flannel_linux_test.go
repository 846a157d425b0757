// SPDX-License-Identifier: Apache-2.0

package main

import "testing"

// TestValidateNetwork checks the values of -network, and that flannel has IPv4 only.
func TestValidateNetwork(t *testing.T) {
	for c, want := range map[[2]string]bool{
		{"isthmus", "4"}: true, {"isthmus", "6"}: true, {"isthmus", "dual"}: true, {"flannel", "4"}: true,
		{"flannel", "6"}: false, {"flannel", "dual"}: false, {"calico", "4"}: false, {"", "4"}: false,
	} {
		if err := (config{podNetwork: c[0], ip: c[1]}).validateNetwork(); (err == nil) != want {
			t.Errorf("-network %q -ip %s: %v, want accepted: %t", c[0], c[1], err, want)
		}
	}
}

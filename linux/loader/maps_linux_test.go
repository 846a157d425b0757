// SPDX-License-Identifier: Apache-2.0

package loader

import "testing"

// TestFullBarrier calls the kernel twice: the registration is of the process, and once only.
func TestFullBarrier(t *testing.T) {
	for range 2 {
		if err := fullBarrier(); err != nil {
			t.Fatal(err)
		}
	}
}

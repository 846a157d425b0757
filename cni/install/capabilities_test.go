// SPDX-License-Identifier: Apache-2.0

package install

import (
	"fmt"
	"testing"
)

// TestCapabilities checks that the data path configures resolvers on Windows, and the runtime on
// Linux.
func TestCapabilities(t *testing.T) {
	for system, want := range map[string]string{
		"linux":   "map[bandwidth:true portMappings:true]",
		"windows": "map[bandwidth:true dns:true portMappings:true]",
	} {
		if got := fmt.Sprint(capabilities(system)); got != want {
			t.Errorf("%s: %s, want %s", system, got, want)
		}
	}
}

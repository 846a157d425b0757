// SPDX-License-Identifier: Apache-2.0

package beside_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/isthmus-net/isthmus/test/beside/programs"
)

// build compiles programs of other projects into a directory, unless they are there.
func build(t *testing.T, bin string, wanted ...string) {
	t.Helper()
	if err := programs.Build(t.Context(), ".", bin, wanted...); err != nil {
		t.Fatal(err)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func write(t *testing.T, path string, text []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
}

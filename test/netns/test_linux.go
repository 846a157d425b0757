// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// ForTest returns a prepared namespace that is removed with the test.
func ForTest(t testing.TB) *NS {
	t.Helper()
	dir, err := os.MkdirTemp("", "isthmus-ns")
	if err != nil {
		t.Fatal(err)
	}
	ns, err := Prepared(filepath.Join(dir, "ns"))
	if err != nil {
		t.Fatal(errors.Join(err, os.RemoveAll(dir)))
	}
	t.Cleanup(func() {
		if err := errors.Join(ns.Close(), os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	return ns
}

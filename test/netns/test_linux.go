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

// Missing ends a test because of a missing tool. In the suites that install every tool (test/run sets ISTHMUS_TOOLS) the
// test fails; otherwise it is skipped.
func Missing(t testing.TB, why string) {
	t.Helper()
	if os.Getenv("ISTHMUS_TOOLS") != "" {
		t.Fatal(why)
	}
	t.Skip(why)
}

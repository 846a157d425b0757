// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/policy"
)

// TestPublicManifests loads real directories, from public test data that is not
// part of the repository: make corpora CORPORA=dir. Some files are bad on
// purpose; none may be taken in silently or end the program.
func TestPublicManifests(t *testing.T) {
	root := os.Getenv("CORPORA")
	if root == "" {
		t.Skip("needs public test data: make corpora CORPORA=dir runs it")
	}
	root = filepath.Join(root, "manifests")
	dirs, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range dirs {
		o, warnings, errs := LoadDir(context.Background(), filepath.Join(root, d.Name()), DefaultLimits())
		t.Logf("%s: policies=%d pods=%d namespaces=%d warnings=%d errors=%d", d.Name(), len(o.Policies), len(o.Pods), len(o.Namespaces), len(warnings), len(errs))
		for _, e := range errs {
			if e.File == "" || e.Detail == "" || strings.ContainsAny(e.Error(), "\n\r") {
				t.Errorf("not a useful error: %q", e.Error())
			}
			if testing.Verbose() {
				t.Log("  ", e)
			}
		}
		policy.NewEvaluator(o.Snapshot())
	}
}

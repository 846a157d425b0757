// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestCampaign tries four mutants of a small module: one that its test notices,
// one that it does not, one that does not compile, and one that nothing can notice.
// The module stays as it was.
func TestCampaign(t *testing.T) {
	root := t.TempDir()
	files := map[string]string{
		"go.mod":      "module m\n\ngo 1.26\n",
		"x/x.go":      "package x\n\nfunc Double(n int) int {\n\treturn n + n\n}\n\nfunc Other() int {\n\treturn 1\n}\n",
		"x/x_test.go": "package x\n\nimport \"testing\"\n\nfunc TestDouble(t *testing.T) {\n\tif Double(3) != 6 {\n\t\tt.Error(\"no\")\n\t}\n}\n",
	}
	for name, text := range files {
		if err := writeFile(filepath.Join(root, name), text); err != nil {
			t.Fatal(err)
		}
	}
	list, err := readList("x", `
== X1 three times
run ./x ^TestDouble$
@@ x/x.go
-	return n + n
+	return n + n + n
== X2 without a test
run ./x ^TestDouble$
@@ x/x.go
-	return 1
+	return 2
== X3 no Go
run ./x ^TestDouble$
@@ x/x.go
-	return 1
+	return "1"
== X4 the same
equivalent it is the same
@@ x/x.go
-	return n + n
+	return 2 * n
== X5 no test
run ./x ^TestNone$
@@ x/x.go
-	return 1
+	return 2
== X6 gone
run ./x ^TestDouble$
@@ x/x.go
-	return 7
+	return 2
`)
	if err != nil {
		t.Fatal(err)
	}
	c := newCampaign(&workshop{root: root, scratch: t.TempDir(), timeout: time.Minute}, list, options{jobs: 2})
	for i, want := range []fate{killed, survived, broken, equivalent, broken, broken} {
		if got, why := c.try(context.Background(), &list[i]); got != want {
			t.Errorf("%s: %s (%s), want %s", list[i].id, got, why, want)
		}
	}
	c = newCampaign(&workshop{root: root, scratch: t.TempDir(), timeout: time.Minute}, list, options{check: true})
	for i, want := range []fate{equivalent, equivalent, broken, equivalent, equivalent, broken} {
		if got, why := c.try(context.Background(), &list[i]); got != want {
			t.Errorf("only checked, %s: %s (%s), want %s", list[i].id, got, why, want)
		}
	}
	for name, text := range files {
		if b, err := os.ReadFile(filepath.Join(root, name)); err != nil || string(b) != text {
			t.Errorf("%s was changed: %v", name, err)
		}
	}
}

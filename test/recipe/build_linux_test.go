// SPDX-License-Identifier: Apache-2.0

package recipe

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const patchFile = "testdata/blackhole.patch"

// own are the files and directories that belong to the example alone.
var own = []string{"common/model/blackhole.go", "common/kube/convert/blackhole.go", "deploy/crds/blackholes.yaml",
	"linux/blackhole/", "windows/blackhole/", "test/recipe/blackhole/"}

// TestExampleFeature builds and runs the example. It checks that the example edits no other files than those
// that CONTRIBUTING.md lists, and creates only its own.
func TestExampleFeature(t *testing.T) {
	if os.Getuid() != 0 || testing.Short() {
		t.Skip("needs root and no -short: make test runs it")
	}
	edited, created := filesOf(t, patchFile)
	var listed []string
	for _, row := range table(t) {
		listed = append(listed, row.file)
	}
	slices.Sort(listed)
	if !slices.Equal(edited, listed) || len(edited) > mostFiles {
		t.Errorf("the example edits %d files %q; CONTRIBUTING.md lists %q, and at most %d are allowed", len(edited), edited, listed, mostFiles)
	}
	for _, file := range created {
		if !slices.ContainsFunc(own, func(o string) bool { return file == o || strings.HasSuffix(o, "/") && strings.HasPrefix(file, o) }) {
			t.Errorf("the example creates %s, which is not its own", file)
		}
	}

	dir := t.TempDir()
	overlay := applyPatch(t, dir, edited, created)
	role, err := os.ReadFile(filepath.Join(dir, "deploy/rbac/agent.yaml"))
	if err != nil || !strings.Contains(string(role), "blackholes") {
		t.Errorf("the role of agents does not name the kind: %v", err)
	}
	changed := []string{"./linux/...", "./windows/...", "./common/model", "./common/kube/convert", "./common/policy/compile"}
	run(t, []string{"GOOS=linux"}, append([]string{"build", "-overlay", overlay}, changed...)...)
	run(t, []string{"GOOS=windows"}, append([]string{"build", "-overlay", overlay}, changed...)...)
	run(t, []string{"GOFLAGS=-overlay=" + overlay}, "test", "-overlay", overlay, "-run", "^TestImports$", "./test")
	run(t, nil, "test", "-overlay", overlay, "-run", "^TestKinds$", "./common/kube/convert")
	// Vet does not read overlays: it looks for the directories of the new packages.
	binary := filepath.Join(dir, "blackhole.test")
	run(t, nil, "test", "-vet=off", "-overlay", overlay, "-c", "-o", binary, "./test/recipe/blackhole")
	cmd := exec.Command(binary, "-test.v")
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestManifestToPacket") {
		t.Errorf("the example does not work: %v\n%s", err, out)
	}
}

// filesOf returns the files that a patch edits, and those that it creates, sorted.
func filesOf(t *testing.T, patch string) (edited, created []string) {
	t.Helper()
	text, err := os.ReadFile(patch)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(text), "\n")
	for i, line := range lines {
		file, ok := strings.CutPrefix(line, "+++ b/")
		switch {
		case !ok:
		case lines[i-1] == "--- /dev/null":
			created = append(created, file)
		default:
			edited = append(edited, file)
		}
	}
	slices.Sort(edited)
	slices.Sort(created)
	return edited, created
}

// applyPatch applies the patch to copies in a directory, and returns a file for go build -overlay that puts
// them into the tree.
func applyPatch(t *testing.T, dir string, edited, created []string) (overlay string) {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	patch, err := filepath.Abs(patchFile)
	if err != nil {
		t.Fatal(err)
	}
	replace := make(map[string]string)
	for _, file := range append(slices.Clone(edited), created...) {
		replace[filepath.Join(root, file)] = filepath.Join(dir, file)
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, file)), 0o755); err != nil {
			t.Fatal(err)
		}
		if slices.Contains(created, file) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, file))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, file), text, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("git", "apply", "-C1", patch)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s does not fit the tree any more: apply it by hand, and write git diff -U2 there: %v\n%s", patchFile, err, out)
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	overlay = filepath.Join(dir, "overlay.json")
	if err == nil {
		err = os.WriteFile(overlay, text, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	return overlay
}

// run calls the go command at the top of the repository.
func run(t *testing.T, env []string, args ...string) {
	t.Helper()
	cmd := exec.Command("go", args...)
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
}

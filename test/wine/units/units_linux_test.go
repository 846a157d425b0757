// SPDX-License-Identifier: Apache-2.0

package units

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/isthmus-net/isthmus/test/netns"
	"github.com/isthmus-net/isthmus/test/wine"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// noUnixSockets is in the output of tests that fail because Wine 8 has no Unix sockets. They count as not run.
const noUnixSockets = "socket: winapi error #10047"

// notUnderWine lists other tests of the workflow that fail under Wine, by package, with the reason.
var notUnderWine = map[string]struct {
	tests []string
	why   string
}{
	"common/kube/manifests": {why: "Wine 8 makes no symbolic links, and a watched directory can neither be removed nor seen to be renamed", tests: []string{
		"TestDirectoryComesAndGoes", "TestDirectoryFollowsChanges", "TestDirectoryIsALink", "TestDirectoryNeverMixes", "TestDirectoryRescans", "TestIrregularFiles"}},
	"windows/hostroute": {why: "Wine has no route of loopback addresses; TestHostRoutes of test/wine runs it with another route", tests: []string{"TestSystem"}},
}

// TestUnitsUnderWine runs the tests that windows.yaml runs on Windows, with its own command line, under Wine. Those
// of notUnderWine must fail, and all others pass that need no Unix sockets.
func TestUnitsUnderWine(t *testing.T) {
	command, err := workflowStep("../../../.github/workflows/windows.yaml", "Unit tests")
	if err != nil {
		t.Fatal(err)
	}
	m, bin := machine(t)
	if err := m.StartEmulator(hns.Server2022); err != nil { // some read the routes of the host
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	plugin := "ISTHMUS_BUILT_PLUGIN=" + wine.Path(filepath.Join(bin, "isthmus-cni.exe"))
	began := time.Now()
	out, err := m.GoTest(ctx, "../../..", command[2:], plugin)
	if err != nil {
		t.Fatal(err)
	}
	results, err := decodeUnits(out)
	if err != nil {
		t.Fatal(err)
	}
	for _, wrong := range results.wrong() {
		t.Error(wrong)
	}
	line := results.line()
	t.Logf("%s seconds=%.0f", line, time.Since(began).Seconds())
	if dir := os.Getenv("ISTHMUS_WINDOWS_SUMMARY"); dir != "" && !t.Failed() {
		if err := os.WriteFile(filepath.Join(dir, "3-units"), []byte(line+"\n"), 0o600); err != nil {
			t.Error(err)
		}
	}
}

// limit bounds the whole run: most of it is processor time.
const limit = 18 * time.Minute

// machine returns a node under Wine, and the directory of the executables.
func machine(t *testing.T) (*wine.Machine, string) {
	t.Helper()
	switch missing := wine.Missing(); {
	case os.Getenv("ISTHMUS_WINE_UNITS") == "":
		t.Skip("takes minutes of processor time: make test-windows runs it")
	case os.Geteuid() != 0:
		t.Skip("needs root, to make a network namespace")
	case missing != "":
		netns.Missing(t, missing)
	}
	dir := t.TempDir()
	bin, node := filepath.Join(dir, "bin"), filepath.Join(dir, "node")
	if err := errors.Join(wine.Build(t.Context(), "../../..", bin), os.Mkdir(node, 0o700)); err != nil {
		t.Fatal(err)
	}
	m, err := wine.New(t.Context(), node, bin)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Errorf("close the machine: %v", err)
		}
	})
	return m, bin
}

// workflowStep returns the command that a step of a workflow runs, which must be one line of go test.
func workflowStep(file, name string) ([]string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var workflow struct {
		Jobs map[string]struct {
			Steps []struct{ Name, Run string }
		}
	}
	if err := yaml.Unmarshal(text, &workflow); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	var found []string
	for _, job := range workflow.Jobs {
		for _, step := range job.Steps {
			if step.Name == name {
				found = append(found, strings.TrimSpace(step.Run))
			}
		}
	}
	if len(found) != 1 {
		return nil, fmt.Errorf("%s has %d steps %q, want 1", file, len(found), name)
	}
	words := strings.Fields(found[0])
	if len(words) < 3 || words[0] != "go" || words[1] != "test" || strings.ContainsAny(found[0], "\n;&|$'\"\\") {
		return nil, fmt.Errorf("%s: step %q runs %q, which is not one command go test", file, name, found[0])
	}
	return words, nil
}

// unit is the result of the tests of a package.
type unit struct {
	action string // pass, fail or skip; empty if the run was cut off
	passed int
	failed []string
	// sockets has the tests whose output has noUnixSockets. notRun of them failed.
	sockets map[string]bool
	notRun  int
	ended   bool // the program wrote its last line
	output  strings.Builder
}

// units are results by package.
type units map[string]*unit

// decodeUnits reads what go test -json writes.
func decodeUnits(text []byte) (units, error) {
	results := make(units)
	for d := json.NewDecoder(bytes.NewReader(text)); ; {
		var event struct{ Action, Package, ImportPath, Test, Output string }
		if err := d.Decode(&event); errors.Is(err, io.EOF) {
			return results, nil
		} else if err != nil {
			return nil, err
		}
		name := strings.TrimPrefix(event.Package, module)
		if event.Package == "" {
			name, _, _ = strings.Cut(strings.TrimPrefix(event.ImportPath, module), " ") // output of a build
		}
		u := results[name]
		if u == nil {
			u = &unit{sockets: make(map[string]bool)}
			results[name] = u
		}
		test, _, _ := strings.Cut(event.Test, "/")
		switch {
		case event.Output != "":
			u.output.WriteString(event.Output)
			if strings.Contains(event.Output, noUnixSockets) {
				u.sockets[test] = true
			}
			u.ended = u.ended || event.Test == "" && event.Output == "PASS\n"
		case event.Test == "" && slices.Contains([]string{"pass", "fail", "skip"}, event.Action):
			u.action = event.Action
		case event.Action == "pass":
			u.passed++
		case event.Action == "fail" && event.Test == test && test != "" && u.sockets[test]:
			u.notRun++
		case event.Action == "fail" && event.Test == test:
			u.failed = append(u.failed, test)
		}
	}
}

// module begins the import paths of packages.
const module = "github.com/isthmus-net/isthmus/"

// wrong compares results with notUnderWine, and returns the differences.
func (results units) wrong() (all []string) {
	for _, name := range slices.Sorted(maps.Keys(results)) {
		u, known := results[name], notUnderWine[name]
		if u.action == "fail" && u.ended && len(u.failed) == 0 {
			u.action = "pass" // Wine killed it after its last line
		}
		slices.Sort(u.failed)
		switch {
		case u.action == "":
			all = append(all, fmt.Sprintf("%s did not end:\n%s", name, u.output.String()))
		case !slices.Equal(u.failed, slices.Sorted(slices.Values(known.tests))):
			all = append(all, fmt.Sprintf("%s: %q fail, want %q (%s):\n%s", name, u.failed, known.tests, known.why, u.output.String()))
		case u.action == "fail" && len(known.tests) == 0 && u.notRun == 0:
			all = append(all, fmt.Sprintf("%s failed:\n%s", name, u.output.String()))
		}
	}
	for name := range notUnderWine {
		if results[name] == nil {
			all = append(all, fmt.Sprintf("%s is not in the workflow: remove it from notUnderWine", name))
		}
	}
	return all
}

// line summarises the results.
func (results units) line() string {
	packages, tests, not := 0, 0, 0
	for _, u := range results {
		if u.action == "pass" && u.passed > 0 {
			packages++
		}
		tests += u.passed
		not += len(u.failed) + u.notRun
	}
	return fmt.Sprintf("units packages=%d tests=%d not-under-wine=%d", packages, tests, not)
}

// TestComparison: an unexpected failure, a listed test that passes, a package that was cut off and one that is not in
// the workflow are reported. A program that Wine killed after its last line has passed.
func TestComparison(t *testing.T) {
	event := func(pkg, test, action, output string) string {
		return fmt.Sprintf("{\"Action\":%q,\"Package\":%q,\"Test\":%q,\"Output\":%q}\n", action, module+pkg, test, output)
	}
	fine := ""
	for name, known := range notUnderWine {
		for _, test := range known.tests {
			fine += event(name, test, "fail", "")
		}
		fine += event(name, "", "fail", "")
	}
	listed := event("windows/hostroute", "", "fail", "")
	socket := event("cni", "TestAdd/v4", "output", "listen: "+noUnixSockets+"\n") + event("cni", "TestAdd/v4", "fail", "") + event("cni", "TestAdd", "fail", "")
	for what, c := range map[string]struct{ text, want string }{
		"as listed":        {fine, ""},
		"other failure":    {fine + event("cni", "TestAdd", "fail", "") + event("cni", "", "fail", ""), `cni: ["TestAdd"] fail`},
		"build failure":    {fine + event("cni", "", "fail", ""), "cni failed"},
		"killed at exit":   {fine + event("cni", "TestAdd", "pass", "") + event("cni", "", "output", "PASS\n") + event("cni", "", "fail", ""), ""},
		"cut off":          {fine + event("cni", "TestAdd", "pass", ""), "cni did not end"},
		"no tests":         {fine + event("windows/etw", "", "skip", ""), ""},
		"passes after all": {strings.Replace(fine, event("windows/hostroute", "TestSystem", "fail", ""), event("windows/hostroute", "TestSystem", "pass", ""), 1), `windows/hostroute: [] fail, want ["TestSystem"]`},
		"not run":          {strings.ReplaceAll(strings.ReplaceAll(fine, listed, ""), "windows/hostroute", "windows/hostroutes"), "windows/hostroute is not in the workflow"},
		"no Unix sockets":  {fine + socket + event("cni", "", "fail", ""), ""},
		"other one, too":   {fine + socket + event("cni", "TestDel", "fail", "") + event("cni", "", "fail", ""), `cni: ["TestDel"] fail`},
	} {
		results, err := decodeUnits([]byte(c.text))
		if err != nil {
			t.Fatal(err)
		}
		if all := strings.Join(results.wrong(), "\n"); c.want == "" && all != "" || !strings.Contains(all, c.want) {
			t.Errorf("%s: %q, want %q", what, all, c.want)
		}
	}
	if _, err := decodeUnits([]byte("panic")); err == nil {
		t.Error("text that is no JSON is taken")
	}
}

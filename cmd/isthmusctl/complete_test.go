// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/clitest"
)

const policyHead = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: web, namespace: shop}\nspec: "

// No command exits with 0 or 1 if manifests were skipped or if there is nothing to examine.
func TestIncompleteInput(t *testing.T) {
	good := policyHead + "{podSelector: {}, ingress: [{}]}\n---\n" +
		"{apiVersion: v1, kind: Pod, metadata: {name: p, namespace: shop}, spec: {containers: [{name: c}]}}\n"
	bad := "---\n" + policyHead + "{podSelector: {}, ingress: [{from: [{}]}]}\n"
	whole, part, onlyBad := clitest.Directory(t, good), clitest.Directory(t, good+bad), clitest.Directory(t, bad)
	other, empty := clitest.Directory(t, "{apiVersion: v1, kind: Service, metadata: {name: s}}"), t.TempDir()
	commands := map[string][]string{
		"verify": {"verify -m DIR"}, "matrix": {"matrix -m DIR"}, "compile": {"compile -m DIR", "compile -m DIR --os linux"},
		"diff": {"diff DIR " + whole, "diff " + whole + " DIR", "diff DIR DIR"}, "explain": {"explain -m DIR --from shop/p --to 192.0.2.1 -p 80"},
	}
	for name, lines := range commands {
		for _, line := range lines {
			t.Run(name, func(t *testing.T) {
				run := func(dir string, more ...string) (int, string, string) {
					return ctl(append(strings.Fields(strings.ReplaceAll(line, "DIR", dir)), more...)...)
				}
				if status, _, errs := run(whole); status != 0 {
					t.Fatalf("whole: exit status %d, %s", status, errs)
				}
				for _, dir := range []string{part, onlyBad, other, empty} {
					if status, out, errs := run(dir); status != 2 || out != "" && name != "verify" {
						t.Errorf("exit status %d, %q, %q", status, out, errs)
					}
				}
				status, out, errs := run(part, "--skip-bad")
				if status != 2 || out == "" || !strings.Contains(errs, "skipped: m.yaml: document 3") || !strings.Contains(errs, "only a part of the manifests") {
					t.Errorf("a part: exit status %d, %q, %q", status, out, errs)
				}
			})
		}
	}
	for _, dir := range []string{other, empty} {
		if status, out, _ := ctl("lint", "-m", dir); status != 2 || out != "" {
			t.Errorf("lint of nothing: exit status %d, %q", status, out)
		}
	}
	for _, dir := range []string{part, onlyBad} {
		if status, out, _ := ctl("lint", "-m", dir, "--fail-on", "error"); status != 1 || !strings.Contains(out, "bad-document") {
			t.Errorf("lint: exit status %d, %q", status, out)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package query

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/clitest"
)

const hospital = "../../../deploy/examples/hospital"

var update = flag.Bool("update", false, "rewrite the golden files")

// table matches the numbers of tables, which vary with details of the compiler.
var table = regexp.MustCompile(`[0-9a-f]{32}`)

// ctl runs a command line of isthmusctl.
func ctl(args ...string) (status int, stdout, stderr string) { return clitest.Run(Commands, args...) }

// TestOfflineGolden runs the offline commands over whole directories and compares the output
// with the golden files.
func TestOfflineGolden(t *testing.T) {
	for name, c := range map[string]struct {
		args   string
		status int
	}{
		"compile.txt":          {"compile -m testdata/mixed", 0},
		"compile.json":         {"compile -m testdata/mixed --node win -o json", 0},
		"compile-linux.txt":    {"compile -m testdata/mixed --os linux", 0},
		"compile-windows.json": {"compile -m testdata/mixed --os windows --hns 9.5,13.3", 0},
		"compile-hospital.txt": {"compile -m HOSPITAL --node assumed-windows", 0},
		"explain-allowed.txt":  {"explain -m testdata/mixed --from shop/web --to shop/api-1 --port http", 0},
		"explain-denied.txt":   {"explain -m testdata/mixed --from audit/reader --to shop/api-2 --port 80 -o wide", 1},
		"explain-denied.json":  {"explain -m testdata/mixed --from 172.16.5.9 --to shop/api-2 --port 8005 -o json", 1},
		"explain-hospital.txt": {"explain -m HOSPITAL --from reception/portal-0 --to billing/tariff-engine-0 --port 80", 1},
		"explain-unknown.txt":  {"explain -m testdata/mixed --from shop/web --to fd00:1::99 --protocol icmpv6", 1},
		"explain-node.txt":     {"explain -m testdata/mixed --from 192.168.0.2 --to shop/api-1 --port 1", 0},
		"matrix.txt":           {"matrix -m testdata/mixed -o wide", 0},
		"matrix-port.txt":      {"matrix -m testdata/mixed --port 80 --outside", 0},
		"matrix.json":          {"matrix -m testdata/mixed -o json", 0},
		"matrix.html":          {"matrix -m testdata/mixed -o html", 0},
		"matrix-hospital.txt":  {"matrix -m HOSPITAL", 0},
		"matrix-hospital.csv":  {"matrix -m HOSPITAL --port 8080 --to-namespace records -o csv", 0},
		"diff.txt":             {"diff testdata/mixed testdata/mixed-changed", 1},
		"diff.md":              {"diff testdata/mixed testdata/mixed-changed -o markdown", 1},
		"diff-opened.txt":      {"diff testdata/mixed testdata/mixed-changed --only-opened", 1},
		"diff.json":            {"diff testdata/mixed testdata/mixed-changed -o json", 1},
		"diff-none.txt":        {"diff HOSPITAL HOSPITAL", 0},
		"lint.txt":             {"lint -m testdata/mixed -o wide", 1},
		"lint-mistakes.txt":    {"lint -m testdata/mistakes", 1},
		"lint-mistakes.json":   {"lint -m testdata/mistakes -o json --platform hns-9.5", 1},
		"lint-hospital.txt":    {"lint -m HOSPITAL", 0},
		"lint-old-kernel.txt":  {"lint -m testdata/mixed --platform linux-5.15 --fail-on never", 0},
	} {
		t.Run(name, func(t *testing.T) {
			args := strings.Fields(strings.ReplaceAll(c.args, "HOSPITAL", hospital))
			status, out, errs := ctl(args...)
			if status != c.status {
				t.Errorf("exit status %d, want %d; %s", status, c.status, errs)
			}
			if strings.HasSuffix(name, ".json") && !json.Valid([]byte(out)) {
				t.Errorf("not JSON: %s", out)
			}
			out = table.ReplaceAllString(out, strings.Repeat("f", 32))
			if _, again, _ := ctl(args...); table.ReplaceAllString(again, strings.Repeat("f", 32)) != out {
				t.Error("differs from run to run")
			}
			clitest.Golden(t, filepath.Join("testdata", "golden", name), out, *update)
		})
	}
}

// Each error is one line with a remedy, and the exit status is 2.
func TestOfflineErrors(t *testing.T) {
	empty, namespaces := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(namespaces, "n.yaml"), []byte("{apiVersion: v1, kind: Namespace, metadata: {name: shop}}"), 0o600); err != nil {
		t.Fatal(err)
	}
	kubeconfig := `{apiVersion: v1, kind: Config, current-context: c, clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}],
  users: [{name: u, user: {}}], contexts: [{name: c, context: {cluster: c, user: u}}]}`
	if err := os.WriteFile(filepath.Join(empty, "kubeconfig"), []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ args, text string }{
		"no source":         {"matrix", "give --manifests DIR or --kubeconfig FILE"},
		"two sources":       {"lint -m x --kubeconfig y", "give one of them"},
		"no directory":      {"compile -m testdata/none", "open directory"},
		"no kubeconfig":     {"compile --kubeconfig testdata/none", "read kubeconfig"},
		"no API server":     {"lint --kubeconfig EMPTY/kubeconfig --timeout 300ms", "connection refused"},
		"bad document":      {"matrix -m testdata/mistakes", "--skip-bad skips such documents"},
		"bad document diff": {"diff testdata/mistakes testdata/mixed", "testdata/mistakes: all.yaml"},
		"no end":            {"explain -m testdata/mixed --from shop/web --port 1", "give both --from and --to"},
		"no pod":            {"explain -m testdata/mixed --from shop/api --to shop/web --port 1", "no pod shop/api: namespace shop has api-1, api-2"},
		"no such address":   {"explain -m testdata/mixed --from shop/web@10.9.9.9 --to shop/api-1 --port 1", "does not have the address"},
		"no port":           {"explain -m testdata/mixed --from shop/web --to shop/api-1", "--port: give the destination port"},
		"no port name":      {"explain -m testdata/mixed --from shop/web --to shop/api-1 --port dns", "has no TCP port of that name"},
		"family":            {"explain -m testdata/mixed --from fd00:1::11 --to shop/api-1 --port 1", "the ends have no addresses of one family"},
		"no node":           {"compile -m testdata/mixed --node mac", "no such node; there are: lin, win"},
		"no os":             {"compile -m testdata/mixed --os plan9", "give linux or windows"},
		"hns mode":          {"compile -m testdata/mixed --os windows --hns-mode nat", "give l2bridge or overlay"},
		"old HNS":           {"compile -m testdata/mixed --os windows --hns 8.1", "older than 9.2"},
		"nothing there":     {"compile -m EMPTY", "no policies, pods, workloads, namespaces, nodes or deny lists"},
		"no pods":           {"matrix -m NAMESPACES", "there are no such pods to show; --placeholders adds a placeholder pod"},
		"no nodes":          {"compile -m NAMESPACES", "there are no nodes and no pods"},
		"skip bad":          {"matrix --kubeconfig x --skip-bad", "--skip-bad: works with --manifests only"},
		"skip bad in lint":  {"lint --kubeconfig x --skip-bad", "--skip-bad: works with --manifests only"},
		"stored":            {"lint --kubeconfig x --stored", "works with --manifests only"},
		"namespace":         {"matrix -m testdata/mixed -n shpo", "no namespace shpo"},
		"too many":          {"matrix -m testdata/mixed --max-groups 1", "narrow it with --namespace"},
		"matrix port":       {"matrix -m testdata/mixed --port http", "give a number"},
		"protocol":          {"matrix -m testdata/mixed --protocol tpc", "want TCP, UDP"},
		"one directory":     {"diff testdata/mixed", "give two directories"},
		"platform":          {"lint -m testdata/mixed --platform mac", "give linux, linux-6.1 or hns-13.3"},
		"fail-on":           {"lint -m testdata/mixed --fail-on info", "give error, warning, note or never"},
		"output":            {"diff testdata/mixed testdata/mixed -o xml", "give one of text, markdown, json, yaml"},
		"two and a cluster": {"diff testdata/mixed testdata/mixed --kubeconfig x", "work with one directory only"},
		"two and prune":     {"diff testdata/mixed testdata/mixed --prune", "works with one directory only"},
		"placeholders":      {"compile --kubeconfig x --placeholders", "works with --manifests only"},
	} {
		t.Run(name, func(t *testing.T) {
			status, out, errs := ctl(strings.Fields(strings.NewReplacer("EMPTY", empty, "NAMESPACES", namespaces).Replace(c.args))...)
			lines := strings.Split(strings.TrimSpace(errs), "\n")
			if last := lines[len(lines)-1]; status != 2 || !strings.Contains(last, c.text) || out != "" {
				t.Errorf("exit status %d, %q, %q, want 2 with %q", status, out, errs, c.text)
			}
		})
	}
}

// compile adds pods to a directory that holds only policies.
func TestPlaceholders(t *testing.T) {
	dir := t.TempDir()
	text, err := os.ReadFile("testdata/mixed/policies.yaml")
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "p.yaml"), text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	status, out, errs := ctl("compile", "-m", dir, "--placeholders")
	if status != 0 || !strings.Contains(out, "shop/placeholder-networkpolicy-api") {
		t.Errorf("exit status %d, %q, %q", status, out, errs)
	}
	status, out, errs = ctl("lint", "-m", dir)
	if status != 1 || !strings.Contains(out, "ipBlock IPv6: over-blocks") || strings.Contains(out, "selects-no-pod") {
		t.Errorf("exit status %d, %q, %q", status, out, errs)
	}
}

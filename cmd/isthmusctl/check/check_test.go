// SPDX-License-Identifier: Apache-2.0

package check

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/cmd/isthmusctl/clitest"
)

// ctl runs a command line of isthmusctl. A live comparison finds a difference, and prints its arguments.
func ctl(args ...string) (status int, stdout, stderr string) {
	return clitest.Run(func(e cli.Env) []*cobra.Command {
		return Commands(e, func(_ context.Context, socket string, timeout time.Duration) error {
			fmt.Fprintln(e.Stdout, "live", socket, timeout)
			return cli.ErrNo
		})
	}, args...)
}

// shop is the start of a case in JSON Lines. Pod web of namespace shop accepts only pod api
// on TCP port 80.
const shop = `{"name": "shop", "objects": [
 {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}},
 {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "shop", "labels": {"app": "web"}}, "spec": {"nodeName": "n1"}, "status": {"podIP": "10.0.0.1"}},
 {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "api", "namespace": "shop", "labels": {"app": "api"}}, "spec": {"nodeName": "n2"}, "status": {"podIP": "10.0.0.2"}},
 {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "new", "namespace": "shop"}},
 {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "web", "namespace": "shop"}, "spec": {"podSelector": {"matchLabels": {"app": "web"}},
  "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "api"}}}], "ports": [{"port": 80}]}]}}], `

// line returns a case in JSON Lines.
func line(queries string) string {
	return strings.ReplaceAll(shop+queries+"}", "\n", "") + "\n"
}

func compress(t *testing.T, text string) string {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

const rightQueries = `"queries": [{"src": "shop/api", "dst": "shop/web", "proto": "TCP", "port": 80, "want": "allow"},
 {"src": "shop/api", "dst": "shop/web@10.0.0.1", "proto": "TCP", "port": 81, "want": "deny"},
 {"src": "ip:192.0.2.1", "dst": "shop/web", "proto": "UDP", "port": 80, "want": "deny"},
 {"src": "shop/web", "dst": "ip:192.0.2.1", "proto": "SCTP", "port": 1, "want": "allow"}]`

func TestJSONLines(t *testing.T) {
	for name, path := range map[string]string{
		"plain":   clitest.Write(t, "t.jsonl", line(rightQueries)+"\n"+line(rightQueries)),
		"gzip":    clitest.Write(t, "t.jsonl.gz", compress(t, line(rightQueries)+line(rightQueries))),
		"no name": clitest.Write(t, "tests", line(rightQueries)+line(rightQueries)),
	} {
		t.Run(name, func(t *testing.T) {
			status, out, errs := ctl("test", path)
			if want := "test: cases=2 queries=8 engines=4 pass=8 fail=0\n"; status != 0 || out != want || errs != "" {
				t.Errorf("exit status %d, %q, %q", status, out, errs)
			}
		})
	}
}

// Each engine detects a wrong expectation, and the output names the rule that decided.
func TestFailing(t *testing.T) {
	wrong := strings.Replace(rightQueries, `"port": 81, "want": "deny"`, `"port": 81, "want": "allow"`, 1)
	path := clitest.Write(t, "t.jsonl", line(rightQueries)+line(wrong))
	engines := []string{"evaluate", "tables", "maps", "acl"}
	if os.Getuid() == 0 && !testing.Short() {
		engines = append(engines, "program")
	}
	for _, e := range engines {
		t.Run(e, func(t *testing.T) {
			status, out, errs := ctl("test", "--engine", e, path)
			want := fmt.Sprintf(`FAIL %s:2 shop: shop/api -> shop/web@10.0.0.1 TCP/81: want allow: %s says deny
  egress of shop/api, to 10.0.0.1
    evaluate: allow: no policy isolates the pod for egress
    tables:   allow: no policy isolates the pod for egress
  ingress of shop/web, from 10.0.0.2
    evaluate: deny: isolated for ingress by NetworkPolicy shop/web, no rule accepts
    tables:   deny: isolated for ingress by NetworkPolicy shop/web, no rule accepts
test: cases=2 queries=8 engines=1 pass=7 fail=1
`, path, e)
			if status != 1 || out != want || progress.ReplaceAllString(errs, "") != "" {
				t.Errorf("exit status %d, %q\n%s\nwant\n%s", status, errs, out, want)
			}
		})
	}
}

// progress matches the progress lines of long runs; on a busy machine any run may be long.
var progress = regexp.MustCompile(`(?m)^test: \d+ cases, \d+ queries after .*\n`)

// Cases that run at the same time are printed in order.
func TestOrder(t *testing.T) {
	wrong := strings.Replace(rightQueries, `"port": 81, "want": "deny"`, `"port": 81, "want": "allow"`, 1)
	path := clitest.Write(t, "t.jsonl", strings.Repeat(line(wrong), 40))
	_, once, _ := ctl("test", "--engine", "evaluate", "--jobs", "1", path)
	_, eight, _ := ctl("test", "--engine", "evaluate", "--jobs", "8", path)
	if once != eight || strings.Count(once, "FAIL") != 40 {
		t.Errorf("one by one\n%s\neight at a time\n%s", once, eight)
	}
}

// A flow between IPv4 and IPv6 has a verdict, but no packet.
func TestImpossible(t *testing.T) {
	path := clitest.Write(t, "t.jsonl", line(`"queries": [{"src": "shop/api", "dst": "ip:2001:db8::1", "proto": "TCP", "port": 80, "want": "allow"}]`))
	if status, out, errs := ctl("test", path); status != 0 || !strings.Contains(errs, "1 queries describe packets that cannot exist") {
		t.Errorf("exit status %d, %q, %q", status, out, errs)
	}
	if status, out, _ := ctl("test", "--engine", "acl", path); status != 1 || !strings.Contains(out, "no such packet can exist") {
		t.Errorf("exit status %d, %q: a skipped engine passed", status, out)
	}
}

func TestValidationLines(t *testing.T) {
	good := `{"file": "a.yaml", "object": {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "a", "namespace": "b"}, "spec": {"podSelector": {}, "egress": [{"ports": [{"port": 53}]}]}},
 "valid": true, "errors": null, "strict": null, "defaulted": {"podSelector": {}, "egress": [{"ports": [{"port": 53, "protocol": "TCP"}]}], "policyTypes": ["Ingress", "Egress"]}}`
	bad := `{"file": "b.yaml", "object": {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "a", "namespace": "b"}, "spec": {"podSelector": {}, "ingress": [{"ports": [{"port": 70000}]}], "typo": 1}},
 "valid": false, "errors": ["spec.ingress[0].ports[0].port: Invalid value: 70000: must be between 1 and 65535, inclusive"], "strict": ["strict: unknown field \"spec.typo\""], "defaulted": null}`
	one := func(s string) string { return strings.ReplaceAll(s, "\n", "") + "\n" }
	path := clitest.Write(t, "v.jsonl", one(good)+one(bad))
	if status, out, errs := ctl("test", path); status != 0 || out != "test: cases=2 queries=2 engines=4 pass=2 fail=0\n" || errs != "" {
		t.Errorf("exit status %d, %q, %q", status, out, errs)
	}
	for name, c := range map[string]struct{ line, want string }{
		"accepted":  {strings.Replace(good, `"valid": true`, `"valid": false`, 1), "want valid=false, got true"},
		"refused":   {strings.Replace(bad, `"valid": false`, `"valid": true`, 1), "want valid=true, got false"},
		"defaults":  {strings.Replace(good, `"protocol": "TCP"`, `"protocol": "UDP"`, 1), "defaults: want "},
		"no error":  {strings.Replace(bad, `["spec.ingress[0]`, `["spec.ingress[1]`, 1), "no error on spec.ingress[1].ports[0].port"},
		"no strict": {strings.Replace(bad, `spec.typo`, `spec.other`, 1), "no warning on spec.other"},
	} {
		t.Run(name, func(t *testing.T) {
			status, out, _ := ctl("test", clitest.Write(t, "v.jsonl", one(c.line)))
			if status != 1 || !strings.Contains(out, c.want) || !strings.Contains(out, "pass=0 fail=1\n") {
				t.Errorf("exit status %d, %q", status, out)
			}
		})
	}
}

// The example of the documentation passes.
func TestDocumentation(t *testing.T) {
	doc, err := os.ReadFile("../../../docs/testing-policies.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(doc), "```yaml\n")
	example, _, ok := strings.Cut(rest, "```")
	if !ok {
		t.Fatal("no example")
	}
	examples, err := filepath.Abs("../../../deploy/examples/hospital")
	if err != nil {
		t.Fatal(err)
	}
	path := clitest.Write(t, "tests.yaml", strings.Replace(example, "deploy/examples/hospital", examples, 1))
	status, out, errs := ctl("test", path)
	if status != 0 || errs != "" || out != "test: cases=3 queries=15 engines=4 pass=15 fail=0\n" {
		t.Errorf("exit status %d\n%s\n%s", status, out, errs)
	}
	verified := regexp.MustCompile(`(?m)^verify: policies=\d+ tables=\d+ `).FindString(string(doc))
	if _, out, _ := ctl("verify", "-m", examples); verified == "" || !strings.Contains(out, verified) {
		t.Errorf("verify says %q, the documentation %q", out, verified)
	}
}

const yamlStart = `manifests: [m]
tests:
- name: one
  objects:
  - apiVersion: v1
    kind: Pod
    metadata:
      name: p
      namespace: a
  queries:
`

// Errors name the file, line and field.
func TestBadTests(t *testing.T) {
	for name, c := range map[string]struct{ file, text, want string }{
		"empty":           {"t.jsonl", "", "t.jsonl: the file has no cases"},
		"empty YAML":      {"t.yaml", "", "t.yaml: the file has no tests"},
		"no JSON":         {"t.jsonl", line(rightQueries) + "{\"name\": }\n", "t.jsonl:2: column 10: invalid character '}'"},
		"two values":      {"t.jsonl", `{"objects": [], "queries": []} {}`, "t.jsonl:1: more than one JSON value"},
		"type":            {"t.jsonl", `{"objects": [], "queries": [{"port": "http"}]}`, "t.jsonl:1: queries.port: string: want a number"},
		"no objects":      {"t.jsonl", `{"queries": []}`, "objects: missing"},
		"no queries":      {"t.jsonl", `{"objects": []}`, "queries: missing"},
		"no valid":        {"t.jsonl", `{"object": {}}`, "valid: missing"},
		"no source":       {"t.jsonl", line(`"queries": [{"dst": "shop/web", "proto": "TCP", "port": 1, "want": "deny"}]`), "queries[0].src: missing"},
		"no port":         {"t.jsonl", line(`"queries": [{"src": "shop/api", "dst": "shop/web", "proto": "TCP", "want": "deny"}]`), "queries[0].port: missing"},
		"port":            {"t.jsonl", line(`"queries": [{"src": "shop/api", "dst": "shop/web", "proto": "TCP", "port": 65536, "want": "deny"}]`), "queries[0].port: 65536"},
		"port of ICMP":    {"t.jsonl", line(`"queries": [{"src": "shop/api", "dst": "shop/web", "proto": "ICMP", "port": 1, "want": "deny"}]`), "ICMP has no ports"},
		"protocol":        {"t.jsonl", line(`"queries": [{"src": "shop/api", "dst": "shop/web", "proto": "TLS", "port": 1, "want": "deny"}]`), `protocol "TLS"`},
		"verdict":         {"t.jsonl", line(`"queries": [{"src": "shop/api", "dst": "shop/web", "proto": "TCP", "port": 1, "want": "maybe"}]`), `want: "maybe": give allow or deny`},
		"no such pod":     {"t.jsonl", line(`"queries": [{"src": "shop/none", "dst": "shop/web", "proto": "TCP", "port": 1, "want": "deny"}]`), "t.jsonl:1: shop: from: no pod shop/none"},
		"no address":      {"t.jsonl", line(`"queries": [{"src": "shop/new", "dst": "shop/web", "proto": "TCP", "port": 1, "want": "deny"}]`), "pod shop/new has no address"},
		"cut gzip":        {"t.jsonl.gz", compress(t, strings.Repeat(line(rightQueries), 50))[:200], "unexpected EOF"},
		"YAML":            {"t.yaml", "tests: [", "write valid YAML"},
		"two documents":   {"t.yaml", "tests: []\n---\ntests: []\n", "more than one YAML document"},
		"no tests":        {"t.yaml", "objects: []\n", "tests: 0: give 1 to"},
		"unknown field":   {"t.yaml", "test: []\n", `t.yaml: line 1: field "test" is unknown: want manifests, objects, tests`},
		"twice":           {"t.yaml", "tests: []\ntests: []\n", `field "tests" occurs twice`},
		"no name":         {"t.yaml", "tests:\n- queries: []\n", "line 2: name: missing"},
		"empty test":      {"t.yaml", "tests:\n- name: x\n", "line 2: queries: 0: give 1 to"},
		"no manifests":    {"t.yaml", "manifests: [nowhere]\ntests: []\n", "line 1: manifests: "},
		"flow objects":    {"t.yaml", "objects: [{kind: Pod}]\n", "line 1: objects: want a list with one object after each dash"},
		"YAML want":       {"t.yaml", yamlStart[len("manifests: [m]\n"):] + "  - {from: a/p, to: 1.1.1.1, port: 1}\n", `line 10: want: "": give allow or deny`},
		"YAML port":       {"t.yaml", yamlStart[len("manifests: [m]\n"):] + "  - {from: a/p, to: 1.1.1.1, port: http, want: deny}\n", `t.yaml:10: one: port: "http": give a number from 1 to 65535; only pods have named ports`},
		"YAML to":         {"t.yaml", yamlStart[len("manifests: [m]\n"):] + "  - {from: a/p, port: 1, want: deny}\n", `line 10: to: missing`},
		"YAML pod":        {"t.yaml", yamlStart[len("manifests: [m]\n"):] + "  - {from: a/q, to: 1.1.1.1, port: 1, want: deny}\n", `t.yaml:10: one: from: no pod a/q`},
		"families":        {"t.yaml", yamlStart[len("manifests: [m]\n"):] + "  - {from: '::1', to: 1.1.1.1, port: 1, want: deny}\n", `t.yaml:10: one: `},
		"bad object":      {"t.yaml", strings.Replace(yamlStart[len("manifests: [m]\n"):], "name: p\n", "name: P_\n", 1) + "  - {from: a/p, to: 1.1.1.1, port: 1, want: deny}\n", `t.yaml:4: `},
		"object of lines": {"t.yaml", "objects:\n- &x\n  kind: Pod\n- *x\ntests: []\n", "line 4: objects: want a list"},
	} {
		t.Run(name, func(t *testing.T) {
			status, out, errs := ctl("test", clitest.Write(t, c.file, c.text))
			if status != 2 || !strings.Contains(errs, c.want) || !strings.HasPrefix(out, "test: cases=") {
				t.Errorf("exit status %d, %q, %q", status, out, errs)
			}
		})
	}
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"no file":   {[]string{"test"}, "name one or more files"},
		"missing":   {[]string{"test", "nowhere.yaml"}, "nowhere.yaml: no such file"},
		"directory": {[]string{"test", t.TempDir()}, "is a directory"},
		"engine":    {[]string{"test", "--engine", "maps,guess", "x"}, `no engine "guess": give evaluate, tables, maps, program, acl, or all`},
		"jobs":      {[]string{"test", "--jobs", "0", "x"}, "--jobs 0: give 1 to 64"},
	} {
		t.Run(name, func(t *testing.T) {
			if status, _, errs := ctl(c.args...); status != 2 || !strings.Contains(errs, c.want) {
				t.Errorf("exit status %d, %q", status, errs)
			}
		})
	}
}

// The command runs the cases after a bad case.
func TestBadCaseAmongGood(t *testing.T) {
	path := clitest.Write(t, "t.jsonl", "{}\n"+line(rightQueries))
	if status, out, errs := ctl("test", path); status != 2 || out != "test: cases=1 queries=4 engines=4 pass=4 fail=0\n" || !strings.Contains(errs, ":1: ") {
		t.Errorf("exit status %d, %q, %q", status, out, errs)
	}
	refused := strings.Replace(line(rightQueries), `{"port": 80}`, `{"port": 80, "endPort": 70}`, 1)
	if status, out, _ := ctl("test", clitest.Write(t, "t.jsonl", refused)); status != 1 || !strings.Contains(out, "all 4 queries: the objects are not accepted: ") || !strings.HasSuffix(out, "pass=0 fail=4\n") {
		t.Errorf("exit status %d, %q", status, out)
	}
	unknown := strings.Replace(line(rightQueries), `"name"`, `"colour": 1, "name"`, 1)
	if status, _, errs := ctl("test", clitest.Write(t, "t.jsonl", unknown+unknown)); status != 0 || strings.Count(errs, `field "colour" is unknown`) != 1 {
		t.Errorf("exit status %d, %q", status, errs)
	}
}

// A test file without queries does not pass.
func TestNoQueries(t *testing.T) {
	for name, path := range map[string]string{
		"no queries": clitest.Write(t, "t.jsonl", line(`"queries": []`)),
		"no objects": clitest.Write(t, "t.jsonl", `{"name": "x", "objects": [], "queries": []}`+"\n"),
		"no cases":   clitest.Write(t, "t.jsonl", "\n"),
		"no tests":   clitest.Write(t, "t.yaml", "tests: []\n"),
	} {
		t.Run(name, func(t *testing.T) {
			if status, out, errs := ctl("test", path); status != 2 || !strings.HasPrefix(errs, "isthmusctl: ") {
				t.Errorf("exit status %d, %q, %q", status, out, errs)
			}
		})
	}
}

// A case passes whose block has bits beyond the prefix length, if an API server already
// stores it.
func TestStoredVectors(t *testing.T) {
	text := strings.Replace(line(`"queries": [{"src": "ip:10.0.2.9", "dst": "shop/web", "proto": "TCP", "port": 80, "want": "allow"},
 {"src": "ip:10.0.3.1", "dst": "shop/web", "proto": "TCP", "port": 80, "want": "deny"}]`), `{"podSelector": {"matchLabels": {"app": "api"}}}`,
		`{"ipBlock": {"cidr": "10.0.2.77/24"}}`, 1)
	path := clitest.Write(t, "t.jsonl", text)
	if status, out, errs := ctl("test", "--stored", path); status != 0 || !strings.HasSuffix(out, "pass=2 fail=0\n") {
		t.Errorf("exit status %d, %q, %q", status, out, errs)
	}
	if status, out, _ := ctl("test", path); status != 1 || !strings.Contains(out, "must not have bits set beyond the prefix length") {
		t.Errorf("exit status %d, %q", status, out)
	}
}

// TestPublicVectors runs the cases and TestPublicManifests the manifests of the
// public test data, which is not part of the repository: make corpora CORPORA=dir.
func TestPublicVectors(t *testing.T) {
	files := corpora(t, "vectors/*.jsonl.gz")
	engines := "evaluate,tables,maps,acl"
	if os.Getuid() == 0 {
		engines = "all"
	}
	status, out, errs := ctl(append([]string{"test", "--engine", engines}, files...)...)
	if status != 0 || strings.Count(out, "\n") != 1 {
		t.Errorf("exit status %d\n%.5000s\n%.5000s", status, out, errs)
	}
	t.Log(out)
}

func TestPublicManifests(t *testing.T) {
	for _, dir := range corpora(t, "manifests/*") {
		status, out, errs := ctl("verify", "--manifests", dir)
		leftOut := strings.Contains(errs, "isthmusctl: skipped: ")
		if want := map[bool]int{false: 0, true: 2}[leftOut]; status != want || !regexp.MustCompile(`verify: policies=[1-9]\d* tables=[1-9]\d* cells=[1-9]\d* differ=0\n$`).MatchString(out) {
			t.Errorf("%s: exit status %d\n%.5000s\n%.5000s", dir, status, out, errs)
		}
		t.Log(filepath.Base(dir), out)
	}
}

func corpora(t *testing.T, pattern string) []string {
	t.Helper()
	dir := os.Getenv("CORPORA")
	if dir == "" {
		t.Skip("needs public test data: make corpora CORPORA=dir runs it")
	}
	found, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(found) == 0 {
		t.Fatalf("nothing in %s: %v", filepath.Join(dir, pattern), err)
	}
	return found
}

// SPDX-License-Identifier: Apache-2.0

package monitoring_test

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/isthmus-net/isthmus/test/console"
)

const (
	rulesFile = "../../deploy/helm/isthmus/files/rules.yaml"
	runbooks  = "../../docs/operate/alerts.md"
	runbookAt = "https://github.com/isthmus-net/isthmus/blob/main/docs/operate/alerts.md#"
)

// rules is a file of rules of Prometheus.
type rules struct {
	Groups []struct {
		Name  string
		Rules []rule
	}
}

type rule struct {
	Record, Alert, Expr, For string
	Labels, Annotations      map[string]string
}

// alerts reads the alerts of the chart, by name.
func alerts(t *testing.T) map[string]rule {
	t.Helper()
	raw, err := os.ReadFile(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	var r rules
	if err := yaml.Unmarshal(raw, &r); err != nil {
		t.Fatal(err)
	}
	all := make(map[string]rule)
	for _, g := range r.Groups {
		for _, rule := range g.Rules {
			if rule.Alert != "" {
				all[rule.Alert] = rule
			}
		}
	}
	return all
}

// tool returns the path of a program of Debian's package prometheus.
func tool(t *testing.T, name string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("needs the package prometheus: make test-alerts runs it")
	}
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("%v: install the Debian package prometheus, or run make test-alerts", err)
	}
	return path
}

// section holds the commands of a section of docs/operate/alerts.md, and its queries to Prometheus.
type section struct {
	commands []console.Command
	queries  []string
}

// sections reads the page.
func sections(t *testing.T) map[string]section {
	t.Helper()
	text, err := os.ReadFile(runbooks)
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]section)
	for _, part := range strings.Split(string(text), "\n### ")[1:] {
		name, body, _ := strings.Cut(part, "\n")
		var s section
		if s.commands, err = console.Commands(body); err != nil {
			t.Fatalf("%s: section %s: %v", runbooks, name, err)
		}
		for _, block := range strings.Split(body, "```promql\n")[1:] {
			block, _, _ = strings.Cut(block, "\n```")
			s.queries = append(s.queries, strings.Split(block, "\n")...)
		}
		all[name] = s
	}
	return all
}

// TestRunbooks checks that each alert has a section of docs/operate/alerts.md, and that no section is left
// of an alert that is gone.
func TestRunbooks(t *testing.T) {
	text, err := os.ReadFile(runbooks)
	if err != nil {
		t.Fatal(err)
	}
	all, parts := alerts(t), sections(t)
	if len(all) < 12 {
		t.Errorf("%d alerts, want at least 12", len(all))
	}
	for name, r := range all {
		if r.Annotations["runbook_url"] != runbookAt+strings.ToLower(name) {
			t.Errorf("%s: runbook_url is %q", name, r.Annotations["runbook_url"])
		}
		if r.Labels["severity"] == "" || r.Annotations["summary"] == "" {
			t.Errorf("%s has no severity or no summary", name)
		}
		_, section, ok := strings.Cut(string(text), "\n### "+name+"\n")
		section, _, _ = strings.Cut(section, "\n### ")
		if !ok || len(strings.Fields(section)) < 25 {
			t.Errorf("%s has no section of docs/operate/alerts.md, or one that says little", name)
		}
		if len(parts[name].commands)+len(parts[name].queries) == 0 {
			t.Errorf("%s: the section of docs/operate/alerts.md has no command that a test could follow", name)
		}
	}
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "### "); ok && all[name].Alert == "" {
			t.Errorf("docs/operate/alerts.md has a section %s of no alert", name)
		}
	}
}

// TestAlerts has promtool evaluate every alert on series that must fire it, and on others that must not.
func TestAlerts(t *testing.T) {
	promtool := tool(t, "promtool")
	if out, err := exec.Command(promtool, "check", "rules", rulesFile).CombinedOutput(); err != nil {
		t.Fatalf("check rules: %v\n%s", err, out)
	}
	all := alerts(t)
	absolute, err := filepath.Abs(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	var tests []any
	fires, silent := make(map[string]int), make(map[string]int)
	for _, c := range cases {
		r, ok := all[c.alert]
		if !ok {
			t.Fatalf("there is no alert %s", c.alert)
		}
		var series []any
		for _, name := range slices.Sorted(maps.Keys(c.series)) {
			series = append(series, map[string]string{"series": name, "values": c.series[name]})
		}
		expected := []any{}
		if c.summary != "" {
			labels := maps.Clone(c.labels)
			labels["severity"] = r.Labels["severity"]
			expected = append(expected, map[string]any{"exp_labels": labels, "exp_annotations": map[string]string{"summary": c.summary, "runbook_url": r.Annotations["runbook_url"]}})
			fires[c.alert]++
		} else {
			silent[c.alert]++
		}
		tests = append(tests, map[string]any{"interval": "1m", "input_series": series,
			"alert_rule_test": []any{map[string]any{"eval_time": c.at, "alertname": c.alert, "exp_alerts": expected}}})
	}
	for name := range all {
		if fires[name] == 0 || silent[name] == 0 {
			t.Errorf("%s fires in %d cases and is silent in %d: both are needed", name, fires[name], silent[name])
		}
	}
	raw, err := yaml.Marshal(map[string]any{"rule_files": []string{absolute}, "evaluation_interval": "1m", "tests": tests})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "cases.yaml")
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(promtool, "test", "rules", file).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "SUCCESS") {
		t.Fatalf("%v\n%s", err, out)
	}
	fmt.Printf("alerts: %d alerts, %d cases, 0 failed\n", len(all), len(cases))
}

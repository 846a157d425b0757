// SPDX-License-Identifier: Apache-2.0

package test

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

const chart = "../deploy/helm/isthmus"

// TestChartFiles checks that the chart consists of plain files, and that roles and kinds
// in it equal those of deploy/rbac and deploy/crds. Checkouts without symbolic links, and
// archives of the chart alone, then hold the same chart. With -update it copies them.
func TestChartFiles(t *testing.T) {
	copies := 0
	err := filepath.WalkDir(chart, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if !d.Type().IsRegular() {
			t.Errorf("%s is not a plain file: copy its target", path)
			return nil
		}
		name, _ := filepath.Rel(chart, path)
		if dir := filepath.Dir(name); dir != "crds" && dir != "rbac" {
			return nil
		}
		copies++
		want, err := os.ReadFile(filepath.Join("../deploy", name))
		if err != nil {
			return err
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) == string(want) {
			return err
		}
		if *update {
			return os.WriteFile(path, want, 0o644)
		}
		t.Errorf("%s differs from deploy/%s: go test ./test -run TestChartFiles -update", path, filepath.ToSlash(name))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if copies < 3 {
		t.Errorf("%d roles and kinds in the chart, want at least 3", copies)
	}
}

// TestChartReadme checks that the table in the chart's README has every value, with its
// default and the comment on it in values.yaml.
func TestChartReadme(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join(chart, "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	rows, err := valueRows(raw)
	if err != nil {
		t.Fatal(err)
	}
	if len(rows) < 50 {
		t.Errorf("%d values, want at least 50", len(rows))
	}
	generated(t, chart+"/README.md", "values", "\n| value | default | meaning |\n|---|---|---|\n"+strings.Join(rows, "")+"\n")
}

// TestValueRows checks that defaults keep their spelling, and that a value without a
// comment is an error.
func TestValueRows(t *testing.T) {
	rows, err := valueRows([]byte("# Of a.\na:\n  # Of b, in\n  # two lines.\n  b: {c: 1}\n  # Of d | e.\n  d: \"\"\n"))
	want := "| `a.b` | `{\"c\":1}` | Of b, in two lines. |\n| `a.d` | `\"\"` | Of d \\| e. |\n"
	if err != nil || strings.Join(rows, "") != want {
		t.Errorf("%v\n%s\nwant\n%s", err, strings.Join(rows, ""), want)
	}
	if _, err := valueRows([]byte("a: 1\n")); err == nil {
		t.Error("a value without a comment is accepted")
	}
}

// valueRows returns a row for each value: mappings in block style are groups of values.
func valueRows(raw []byte) ([]string, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(raw, &doc); err != nil {
		return nil, err
	}
	return rowsBelow("", doc.Content[0])
}

func rowsBelow(prefix string, mapping *yaml.Node) ([]string, error) {
	var rows []string
	for i := 0; i < len(mapping.Content); i += 2 {
		key, value := mapping.Content[i], mapping.Content[i+1]
		name := prefix + key.Value
		if value.Kind == yaml.MappingNode && value.Style&yaml.FlowStyle == 0 {
			below, err := rowsBelow(name+".", value)
			if err != nil {
				return nil, err
			}
			rows = append(rows, below...)
			continue
		}
		meaning := strings.Join(strings.Fields(regexp.MustCompile(`(?m)^#`).ReplaceAllString(key.HeadComment, "")), " ")
		if meaning == "" {
			return nil, fmt.Errorf("values.yaml:%d: %s has no comment above it", key.Line, name)
		}
		var v any
		if err := value.Decode(&v); err != nil {
			return nil, fmt.Errorf("values.yaml:%d: %w", key.Line, err)
		}
		preset, err := json.Marshal(v)
		if err != nil {
			return nil, fmt.Errorf("values.yaml:%d: %w", key.Line, err)
		}
		rows = append(rows, strings.ReplaceAll(fmt.Sprintf("| `%s` | `%s` | %s", name, preset, strings.ReplaceAll(meaning, "|", `\|`)), "\n", " ")+" |\n")
	}
	return rows, nil
}

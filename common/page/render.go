// SPDX-License-Identifier: Apache-2.0

package page

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html/template"
	"reflect"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/isthmus-net/isthmus/common/analysis/explain"
	"github.com/isthmus-net/isthmus/common/model"
)

// allPages are the links to all pages.
func allPages() []Link {
	return []Link{{"/", "Overview"}, {"/reach", "Who reaches whom"}, {"/explain", "Explain"}, {"/flows", "Denied flows"},
		{"/policies", "Policies"}, {"/nodes", "Nodes"}, {"/inexact", "Not exact"}}
}

// parseTemplates reads the templates. Each page has the links.
func parseTemplates(links []Link) (*template.Template, error) {
	t := template.New("")
	t.Funcs(template.FuncMap{
		"pages": func() []Link { return links },
		"current": func(l Link, path string) bool {
			return path == l.Path || l.Path != "/" && strings.HasPrefix(path, l.Path+"/")
		},
		"render": func(d *document) (template.HTML, error) {
			var b bytes.Buffer
			err := t.ExecuteTemplate(&b, d.Template, d)
			return template.HTML(b.String()), err // the output of a template
		},
		"stamp":     func(t time.Time) string { return t.UTC().Format(timeFormat) },
		"short":     func(most int, text string) string { return shorten(text, most) },
		"first":     first,
		"rest":      func(most int, list any) int { return max(0, reflect.ValueOf(list).Len()-most) },
		"suggested": suggested,
	})
	if _, err := t.Parse(templates); err != nil {
		return nil, fmt.Errorf("read templates of pages: %w", err)
	}
	return t, nil
}

// first returns the first items of a list.
func first(most int, list any) any {
	v := reflect.ValueOf(list)
	return v.Slice(0, min(most, v.Len())).Interface()
}

// suggested writes the rule of a suggestion as YAML, below the field that gets it.
func suggested(s *explain.Suggestion) (string, error) {
	field := model.Ingress.String()
	if len(s.Rule.To) > 0 {
		field = model.Egress.String()
	}
	text, err := json.Marshal(map[string]any{field: []explain.SuggestedRule{s.Rule}})
	if err != nil {
		return "", err
	}
	var n yaml.Node
	if err := yaml.Unmarshal(text, &n); err != nil { // JSON is YAML
		return "", err
	}
	unstyle(&n)
	var b strings.Builder
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	err = e.Encode(&n)
	return b.String(), err
}

// unstyle lets the encoder choose how nodes are written.
func unstyle(n *yaml.Node) {
	n.Style = 0
	for _, c := range n.Content {
		unstyle(c)
	}
}

// parts links the parts of a list.
type parts struct {
	Name, Before, After string
	Part, Parts         int
}

// newParts links the parts before and after one. name is what the list holds, and param the parameter of its parts.
func newParts(p *params, name, param string, part, all int) parts {
	x := parts{Name: name, Part: part, Parts: all}
	here := func(part int) string {
		if q := p.query(param, strconv.Itoa(part)); q != "" {
			return q
		}
		return "?" // the first part, without parameters
	}
	if part > 1 {
		x.Before = here(part - 1)
	}
	if part < all {
		x.After = here(part + 1)
	}
	return x
}

// The values that templates of a matrix read.

func (m *matrix) RowsText() string     { return m.rows }
func (m *matrix) ColumnsText() string  { return m.columns }
func (m *matrix) PortText() string     { return m.port }
func (m *matrix) ProtocolText() string { return m.protocol }
func (m *matrix) V6() bool             { return m.v6 }

// Up are the parameters of less detailed pages.
func (m *matrix) Up() string { return m.narrow() }

// RowParts and ColumnParts link the parts of the matrix.
func (m *matrix) RowParts() parts {
	return newParts(&m.params, "rows", "row", m.Rows.Part, m.Rows.Parts)
}
func (m *matrix) ColumnParts() parts {
	return newParts(&m.params, "columns", "column", m.Columns.Part, m.Columns.Parts)
}

// ListParts links the parts of a list.
func (l *listed[T]) ListParts() parts { return newParts(&l.params, "rows", "part", l.Part, l.Parts) }

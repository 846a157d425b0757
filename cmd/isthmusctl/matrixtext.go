// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/csv"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// heading says what the matrix is about.
func (m *matrix) heading() string {
	what := "all ports"
	if m.only != nil {
		what = m.only.String()
	}
	pods := 0
	seen := make(map[*group]bool)
	for _, g := range slices.Concat(m.rows, m.columns) {
		if !seen[g] {
			pods += len(g.pods)
		}
		seen[g] = true
	}
	return fmt.Sprintf("%s, %d pods in %d groups", what, pods, len(seen))
}

// signs are what cells show: one letter or number for every set of ports.
type signs struct {
	of     map[string]string // by the text of the ports
	legend []string          // "a  TCP 80"
}

func (m *matrix) signs() *signs {
	s := &signs{of: map[string]string{"": ".", "all": "*"}}
	if m.only != nil {
		return s
	}
	for _, row := range m.cells {
		for _, c := range row {
			text := portsText(c.ports)
			if c.outside || s.of[text] != "" {
				continue
			}
			sign := strconv.Itoa(len(s.legend))
			if len(s.legend) < 26 {
				sign = string(rune('a' + len(s.legend)))
			}
			s.of[text] = sign
			s.legend = append(s.legend, fmt.Sprintf("%s  %s", sign, text))
		}
	}
	return s
}

// sign is what one cell shows.
func (m *matrix) sign(s *signs, c matrixCell) string {
	switch {
	case c.itself:
		return "="
	case c.outside:
		return " "
	case m.only == nil:
		return s.of[portsText(c.ports)]
	case c.allows():
		return "x"
	}
	return "."
}

// writeText writes rows that are numbered as the columns are, where they are
// the same groups.
func (m *matrix) writeText(out io.Writer, wide bool) error {
	var b strings.Builder
	signs := m.signs()
	numbers := make(map[*group]int)
	var listed []*group
	for _, g := range slices.Concat(m.rows, m.columns) {
		if numbers[g] == 0 {
			listed = append(listed, g)
			numbers[g] = len(listed)
		}
	}
	name := len("from \\ to")
	for _, g := range m.rows {
		name = max(name, utf8.RuneCountInString(g.String()))
	}
	width := max(2, len(strconv.Itoa(len(listed))), len(strconv.Itoa(len(signs.legend))))
	fmt.Fprintf(&b, "%s\n\n%*s  %-*s", m.heading(), width, "", name, "from \\ to")
	for _, g := range m.columns {
		fmt.Fprintf(&b, " %*d", width, numbers[g])
	}
	b.WriteByte('\n')
	for i, g := range m.rows {
		line := fmt.Sprintf("%*d  %-*s", width, numbers[g], name, g)
		for _, c := range m.cells[i] {
			line += fmt.Sprintf(" %*s", width, m.sign(signs, c))
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	for _, g := range m.columns {
		if !slices.Contains(m.rows, g) {
			fmt.Fprintf(&b, "%*d  %s\n", width, numbers[g], g)
		}
	}
	b.WriteString("\n.  nothing\n")
	if m.only != nil {
		b.WriteString("x  allowed\n")
	} else {
		b.WriteString("*  everything\n")
	}
	b.WriteString("=  the pod itself\n")
	for _, l := range signs.legend {
		b.WriteString(l + "\n")
	}
	for _, g := range listed {
		if n := len(g.names()); n > 1 && wide {
			fmt.Fprintf(&b, "\n%d  %s\n", numbers[g], strings.Join(g.names(), "\n   "))
		}
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// text is a cell in words.
func (m *matrix) text(c matrixCell) string {
	switch {
	case c.outside:
		return ""
	case m.only != nil && c.allows():
		return "allow"
	case m.only != nil:
		return "deny"
	case c.itself:
		return "all"
	}
	return portsText(c.ports)
}

// writeCSV writes a line for every pair of groups.
func (m *matrix) writeCSV(out io.Writer) error {
	w := csv.NewWriter(out)
	last := "ports"
	if m.only != nil {
		last = m.only.String()
	}
	if err := w.Write([]string{"from", "to", "from_members", "to_members", last}); err != nil {
		return fmt.Errorf("write csv: %w", err)
	}
	for i, from := range m.rows {
		for j, to := range m.columns {
			line := []string{from.String(), to.String(), strconv.Itoa(len(from.names())), strconv.Itoa(len(to.names())), m.text(m.cells[i][j])}
			if err := w.Write(line); err != nil {
				return fmt.Errorf("write csv: %w", err)
			}
		}
	}
	w.Flush()
	return w.Error()
}

// The answer, as it is printed in JSON.
type (
	matrixReport struct {
		// Only is the port that was asked for.
		Only   string         `json:"only,omitempty"`
		Groups []matrixGroup  `json:"groups"`
		Cells  []matrixAnswer `json:"cells"`
	}
	matrixGroup struct {
		Name    string   `json:"name"`
		Members []string `json:"members"`
	}
	// matrixAnswer names groups by index.
	matrixAnswer struct {
		From   int       `json:"from"`
		To     int       `json:"to"`
		Itself bool      `json:"itself,omitempty"`
		Allow  *bool     `json:"allow,omitempty"`
		Ports  []portSet `json:"ports,omitempty"`
	}
)

func (m *matrix) report() *matrixReport {
	r := &matrixReport{Groups: []matrixGroup{}, Cells: []matrixAnswer{}}
	if m.only != nil {
		r.Only = m.only.String()
	}
	index := make(map[*group]int)
	for _, g := range slices.Concat(m.rows, m.columns) {
		if _, ok := index[g]; !ok {
			index[g] = len(r.Groups)
			r.Groups = append(r.Groups, matrixGroup{g.String(), g.names()})
		}
	}
	for i, from := range m.rows {
		for j, to := range m.columns {
			c := m.cells[i][j]
			if c.outside {
				continue
			}
			a := matrixAnswer{From: index[from], To: index[to], Itself: c.itself}
			if allows := c.allows(); m.only != nil {
				a.Allow = &allows
			} else {
				a.Ports = c.ports
			}
			r.Cells = append(r.Cells, a)
		}
	}
	return r
}

// writeHTML writes a page that needs nothing else.
func (m *matrix) writeHTML(out io.Writer) error {
	type cell struct{ Class, Text, Title string }
	type row struct {
		Name, Title string
		Cells       []cell
	}
	page := struct {
		Heading string
		Columns []row
		Rows    []row
	}{Heading: m.heading()}
	title := func(g *group) string { return shorten(g.names(), 50) }
	for _, g := range m.columns {
		page.Columns = append(page.Columns, row{Name: g.String(), Title: title(g)})
	}
	for i, g := range m.rows {
		r := row{Name: g.String(), Title: title(g)}
		for j, c := range m.cells[i] {
			one := cell{Class: "some", Text: m.text(c), Title: fmt.Sprintf("%s -> %s", g, m.columns[j])}
			switch {
			case c.itself:
				one.Class, one.Text = "self", "="
			case c.outside:
				one.Class = "self"
			case !c.allows():
				one.Class, one.Text = "none", ""
			case m.only != nil || everything(c.ports):
				one.Class = "all"
			}
			r.Cells = append(r.Cells, one)
		}
		page.Rows = append(page.Rows, r)
	}
	t, err := template.New("matrix").Parse(matrixPage)
	if err == nil {
		err = t.Execute(out, page)
	}
	if err != nil {
		return fmt.Errorf("write html: %w", err)
	}
	return nil
}

const matrixPage = `<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<title>Who reaches whom</title>
<style>
body { font: 14px sans-serif; margin: 1em }
table { border-collapse: collapse }
th, td { border: 1px solid #ccc; padding: 2px 6px; text-align: left; font-weight: normal }
thead th { position: sticky; top: 0; background: #fff; writing-mode: vertical-rl; transform: rotate(180deg) }
tbody th { position: sticky; left: 0; background: #fff; white-space: nowrap }
.all { background: #b7e1b1 } .some { background: #e6f3d8 } .none { background: #f6d5d5 } .self { background: #eee }
</style>
<h1>Who reaches whom</h1>
<p>{{.Heading}}. Rows open connections to columns.</p>
<table>
<thead><tr><td></td>{{range .Columns}}<th title="{{.Title}}">{{.Name}}</th>{{end}}</tr></thead>
<tbody>
{{range .Rows}}<tr><th title="{{.Title}}">{{.Name}}</th>{{range .Cells}}<td class="{{.Class}}" title="{{.Title}}">{{.Text}}</td>{{end}}</tr>
{{end}}</tbody>
</table>
</html>
`

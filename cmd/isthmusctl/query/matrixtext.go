// SPDX-License-Identifier: Apache-2.0

package query

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/common/analysis/reach"
)

// heading describes the subject of the matrix.
func (m *matrix) heading() string {
	what := "all ports"
	if m.only != nil {
		what = m.only.String()
	}
	pods := 0
	seen := make(map[*reach.Group]bool)
	for _, g := range slices.Concat(m.rows, m.columns) {
		if !seen[g] {
			pods += len(g.Pods)
		}
		seen[g] = true
	}
	return fmt.Sprintf("%s, %d pods in %d groups", what, pods, len(seen))
}

// signs are the contents of cells: one letter or number for every set of ports.
type signs struct {
	of     map[string]string // by the text of the ports
	legend []string          // "a  TCP 80"
}

func (m *matrix) signs() (*signs, error) {
	s := &signs{of: map[string]string{"": ".", "all": "*"}}
	if m.only != nil {
		return s, nil
	}
	return s, m.each(func(_ int, row []matrixCell) error {
		for _, c := range row {
			if c.outside || c.itself || s.of[c.text] != "" {
				continue
			}
			sign := strconv.Itoa(len(s.legend))
			if len(s.legend) < 26 {
				sign = string(rune('a' + len(s.legend)))
			}
			s.of[c.text] = sign
			s.legend = append(s.legend, fmt.Sprintf("%s  %s", sign, c.text))
		}
		return nil
	})
}

// sign returns the content of one cell.
func (m *matrix) sign(s *signs, c matrixCell) string {
	switch {
	case c.itself:
		return "="
	case c.outside:
		return " "
	case m.only == nil:
		return s.of[c.text]
	case c.allows():
		return "x"
	}
	return "."
}

// writeText writes the matrix as text. A row has the number of the column with the same
// group.
func (m *matrix) writeText(out io.Writer, wide bool) error {
	signs, err := m.signs()
	if err != nil {
		return err
	}
	numbers := make(map[*reach.Group]int)
	var listed []*reach.Group
	for _, g := range slices.Concat(m.rows, m.columns) {
		if numbers[g] == 0 {
			listed = append(listed, g)
			numbers[g] = len(listed)
		}
	}
	name := len("from \\ to")
	for _, g := range m.rows {
		name = max(name, utf8.RuneCountInString(title(names(g))))
	}
	width := max(2, len(strconv.Itoa(len(listed))), len(strconv.Itoa(len(signs.legend))))
	fmt.Fprintf(out, "%s\n\n%*s  %-*s", m.heading(), width, "", name, "from \\ to")
	for _, g := range m.columns {
		fmt.Fprintf(out, " %*d", width, numbers[g])
	}
	fmt.Fprintln(out)
	err = m.each(func(i int, row []matrixCell) error {
		g := m.rows[i]
		line := []byte(fmt.Sprintf("%*d  %-*s", width, numbers[g], name, title(names(g))))
		for _, c := range row {
			line = fmt.Appendf(line, " %*s", width, m.sign(signs, c))
		}
		_, err := fmt.Fprintf(out, "%s\n", bytes.TrimRight(line, " "))
		return err
	})
	if err != nil {
		return fmt.Errorf("write text: %w", err)
	}
	m.writeLegend(out, width, numbers, signs)
	for _, g := range listed {
		if all := names(g); len(all) > 1 && wide {
			fmt.Fprintf(out, "\n%d  %s\n", numbers[g], strings.Join(all, "\n   "))
		}
	}
	return nil
}

func (m *matrix) writeLegend(out io.Writer, width int, numbers map[*reach.Group]int, signs *signs) {
	rows := make(map[*reach.Group]bool, len(m.rows))
	for _, g := range m.rows {
		rows[g] = true
	}
	for _, g := range m.columns {
		if !rows[g] {
			fmt.Fprintf(out, "%*d  %s\n", width, numbers[g], title(names(g)))
		}
	}
	fmt.Fprint(out, "\n.  nothing\n")
	if m.only != nil {
		fmt.Fprint(out, "x  allowed\n")
	} else {
		fmt.Fprint(out, "*  everything\n")
	}
	fmt.Fprint(out, "=  the pod itself\n")
	for _, l := range signs.legend {
		fmt.Fprintln(out, l)
	}
}

// words describes a cell in words.
func (m *matrix) words(c matrixCell) string {
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
	return c.text
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
	type column struct{ title, members string }
	columns := make([]column, len(m.columns))
	for j, to := range m.columns {
		all := names(to)
		columns[j] = column{title(all), strconv.Itoa(len(all))}
	}
	err := m.each(func(i int, row []matrixCell) error {
		from := names(m.rows[i])
		line := []string{title(from), "", strconv.Itoa(len(from)), "", ""}
		for j, c := range row {
			line[1], line[3], line[4] = columns[j].title, columns[j].members, m.words(c)
			if err := w.Write(line); err != nil {
				return err
			}
		}
		return nil
	})
	if w.Flush(); err == nil {
		err = w.Error()
	}
	if err != nil {
		return fmt.Errorf("write csv: %w", err)
	}
	return nil
}

// The parts of the page.
type (
	htmlCell struct{ Class, Text, Title string }
	htmlRow  struct {
		Name, Title string
		Cells       []htmlCell
	}
	htmlHead struct {
		Heading string
		Columns []htmlRow
	}
)

// writeHTML writes a self-contained page.
func (m *matrix) writeHTML(out io.Writer) error {
	t, err := template.New("matrix").Parse(matrixPage)
	if err != nil {
		return fmt.Errorf("write html: %w", err)
	}
	titles := make([]string, len(m.columns))
	head := htmlHead{Heading: m.heading()}
	for j, g := range m.columns {
		titles[j] = title(names(g))
		head.Columns = append(head.Columns, htmlRow{Name: titles[j], Title: cli.Shorten(names(g), 50)})
	}
	if err := t.ExecuteTemplate(out, "head", head); err != nil {
		return fmt.Errorf("write html: %w", err)
	}
	err = m.each(func(i int, row []matrixCell) error {
		all := names(m.rows[i])
		r := htmlRow{Name: title(all), Title: cli.Shorten(all, 50), Cells: make([]htmlCell, len(row))}
		for j, c := range row {
			r.Cells[j] = m.htmlCell(c)
			r.Cells[j].Title = r.Name + " -> " + titles[j]
		}
		return t.ExecuteTemplate(out, "row", r)
	})
	if err == nil {
		err = t.ExecuteTemplate(out, "foot", nil)
	}
	if err != nil {
		return fmt.Errorf("write html: %w", err)
	}
	return nil
}

func (m *matrix) htmlCell(c matrixCell) htmlCell {
	switch {
	case c.itself:
		return htmlCell{Class: "self", Text: "="}
	case c.outside:
		return htmlCell{Class: "self", Text: m.words(c)}
	case !c.allows():
		return htmlCell{Class: "none"}
	case m.only != nil || reach.EveryPort(c.sets):
		return htmlCell{Class: "all", Text: m.words(c)}
	}
	return htmlCell{Class: "some", Text: m.words(c)}
}

const matrixPage = `{{define "head"}}<!DOCTYPE html>
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
{{end}}{{define "row"}}<tr><th title="{{.Title}}">{{.Name}}</th>{{range .Cells}}<td class="{{.Class}}" title="{{.Title}}">{{.Text}}</td>{{end}}</tr>
{{end}}{{define "foot"}}</tbody>
</table>
</html>
{{end}}`

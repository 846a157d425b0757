// SPDX-License-Identifier: Apache-2.0

package query

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/isthmus-net/isthmus/common/analysis/reach"
	"github.com/isthmus-net/isthmus/common/model"
)

// heading describes the subject of the matrix.
func (m *matrix) heading() string {
	what := "all ports"
	if m.only != nil {
		if what = m.only.String(); !m.only.protocol.HasPorts() {
			what = m.only.protocol.Words()
		}
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

// csvEnd is one member of a group. pod is its name without an address.
type csvEnd struct{ name, os, pod string }

// csvEnds lists the members of a group.
func csvEnds(g *reach.Group) []csvEnd {
	var all []csvEnd
	for i, name := range names(g) {
		one := csvEnd{name: name, os: string(osOf(g))}
		if i < len(g.Pods) {
			one.pod = g.Pods[i].ID.String()
		}
		all = append(all, one)
	}
	return all
}

// osOf is the operating system that enforces for the pods of a group; "" if it has none.
func osOf(g *reach.Group) model.OS {
	if len(g.Pods) == 0 {
		return ""
	}
	return g.OS[0]
}

// writeCSV writes a line for every pair of pods, or of other ends.
func (m *matrix) writeCSV(out io.Writer) error {
	w := csv.NewWriter(out)
	last := "ports"
	if m.only != nil {
		last = m.only.String()
	}
	if err := w.Write([]string{"from", "from_os", "to", "to_os", last}); err != nil {
		return fmt.Errorf("write csv: %w", err)
	}
	columns := make([][]csvEnd, len(m.columns))
	for j, to := range m.columns {
		columns[j] = csvEnds(to)
	}
	err := m.each(func(i int, row []matrixCell) error {
		for n, from := range csvEnds(m.rows[i]) {
			for j, c := range row {
				if c.outside {
					continue // an empty field means that nothing is allowed
				}
				for k, to := range columns[j] {
					words := m.words(c)
					if m.rows[i] == m.columns[j] && n == k && len(m.rows[i].Pods) > 0 {
						words = m.words(matrixCell{itself: true, allowedPorts: &allowedPorts{}})
					}
					if err := w.Write([]string{from.name, from.os, to.name, to.os, words}); err != nil {
						return err
					}
				}
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

// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"io"
	"strings"
)

// Cell is one cell of a matrix: the verdicts of the reference and of the cluster, for each address family that
// the pair has in common.
type Cell struct {
	Families          []string // "4", "6"
	Allowed, Expected []bool   // by family
}

// symbol is + for allowed, . for denied, a digit where only one family is
// allowed, ! where the cluster differs from the reference.
func (c *Cell) symbol() string {
	if c == nil {
		return " "
	}
	allowed := ""
	for i, f := range c.Families {
		if c.Allowed[i] != c.Expected[i] {
			return "!"
		}
		if c.Allowed[i] {
			allowed += f
		}
	}
	switch len(allowed) {
	case 0:
		return "."
	case len(c.Families):
		return "+"
	}
	return allowed
}

// Matrix is a table of the verdicts between sources and destinations.
type Matrix struct {
	rows, columns []string
	cells         map[[2]string]*Cell
}

// Add adds a verdict.
func (m *Matrix) Add(row, column, family string, allowed, expected bool) {
	if m.cells == nil {
		m.cells = make(map[[2]string]*Cell)
	}
	if !contains(m.rows, row) {
		m.rows = append(m.rows, row)
	}
	if !contains(m.columns, column) {
		m.columns = append(m.columns, column)
	}
	key := [2]string{row, column}
	if m.cells[key] == nil {
		m.cells[key] = &Cell{}
	}
	c := m.cells[key]
	c.Families = append(c.Families, family)
	c.Allowed = append(c.Allowed, allowed)
	c.Expected = append(c.Expected, expected)
}

func contains(list []string, s string) bool {
	for _, e := range list {
		if e == s {
			return true
		}
	}
	return false
}

// Print writes the matrix: a row for each source, a column for each
// destination, whose names are listed below.
func (m *Matrix) Print(w io.Writer) {
	width := 0
	for _, r := range m.rows {
		width = max(width, len(r))
	}
	fmt.Fprintf(w, "%*s  %s\n", width, "from \\ to", ruler(len(m.columns)))
	for _, r := range m.rows {
		var b strings.Builder
		for i, c := range m.columns {
			if i > 0 && i%10 == 0 {
				b.WriteByte(' ')
			}
			b.WriteString(m.cells[[2]string{r, c}].symbol())
		}
		fmt.Fprintf(w, "%*s  %s\n", width, r, b.String())
	}
	fmt.Fprintln(w, "columns:")
	for i, c := range m.columns {
		fmt.Fprintf(w, "  %2d %s\n", i+1, c)
	}
	fmt.Fprintln(w, "+ allowed   . denied   4 6 allowed in that family only   ! differs from the reference")
}

// ruler numbers the columns by their last digit.
func ruler(n int) string {
	var b strings.Builder
	for i := range n {
		if i > 0 && i%10 == 0 {
			b.WriteByte(' ')
		}
		b.WriteByte('0' + byte((i+1)%10))
	}
	return b.String()
}

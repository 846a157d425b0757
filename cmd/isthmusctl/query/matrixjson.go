// SPDX-License-Identifier: Apache-2.0

package query

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/common/analysis/reach"
)

// The JSON form of the answer.
type (
	matrixReport struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		// Only is the port that the matrix is limited to.
		Only   string         `json:"only,omitempty"`
		Groups []matrixGroup  `json:"groups"`
		Cells  []matrixAnswer `json:"cells"`
	}
	matrixGroup struct {
		Name    string   `json:"name"`
		Members []string `json:"members"`
		// Ranges are the members that are not pods.
		Ranges []rangeReport `json:"ranges,omitempty"`
	}
	// matrixAnswer names groups by index.
	matrixAnswer struct {
		From   int             `json:"from"`
		To     int             `json:"to"`
		Itself bool            `json:"itself,omitempty"`
		Allow  *bool           `json:"allow,omitempty"`
		Ports  []reach.PortSet `json:"ports,omitempty"`
	}
)

// writeJSON writes a matrixReport in the form of encodeJSON, cell by cell.
func (m *matrix) writeJSON(out io.Writer) error {
	r := matrixReport{APIVersion: cli.APIVersion, Kind: "Matrix", Groups: []matrixGroup{}, Cells: []matrixAnswer{}}
	if m.only != nil {
		r.Only = m.only.String()
	}
	index := make(map[*reach.Group]int)
	for _, g := range slices.Concat(m.rows, m.columns) {
		if _, ok := index[g]; !ok {
			index[g] = len(r.Groups)
			all := endNames(g)
			r.Groups = append(r.Groups, matrixGroup{title(all), all, reportRanges(g)})
		}
	}
	var head bytes.Buffer
	if err := cli.EncodeJSON(&head, r); err != nil {
		return err
	}
	const tail = "]\n}\n" // the end of a report without cells
	before, ok := bytes.CutSuffix(head.Bytes(), []byte(tail))
	if !ok {
		return fmt.Errorf("encode answer: %q does not end the report", tail)
	}
	if _, err := out.Write(before); err != nil {
		return err
	}
	w := cellWriter{ports: make(map[*allowedPorts][]byte)}
	err := m.each(func(i int, row []matrixCell) error {
		w.line = w.line[:0]
		for j, c := range row {
			if !c.outside {
				w.add(m, index[m.rows[i]], index[m.columns[j]], c)
			}
		}
		_, err := out.Write(w.line)
		return err
	})
	if err != nil {
		return fmt.Errorf("write json: %w", err)
	}
	end := tail
	if w.some {
		end = "\n  " + tail
	}
	_, err = io.WriteString(out, end)
	return err
}

// cellWriter renders the cells of a row.
type cellWriter struct {
	line []byte
	some bool
	// ports are sets that were rendered before.
	ports map[*allowedPorts][]byte
}

// add renders a matrixAnswer.
func (w *cellWriter) add(m *matrix, from, to int, c matrixCell) {
	if w.some {
		w.line = append(w.line, ',')
	}
	w.some = true
	w.line = append(w.line, "\n    {\n      \"from\": "...)
	w.line = strconv.AppendInt(w.line, int64(from), 10)
	w.line = append(w.line, ",\n      \"to\": "...)
	w.line = strconv.AppendInt(w.line, int64(to), 10)
	if c.itself {
		w.line = append(w.line, ",\n      \"itself\": true"...)
	}
	switch {
	case m.only != nil:
		w.line = append(w.line, ",\n      \"allow\": "...)
		w.line = strconv.AppendBool(w.line, c.allows())
	case len(c.sets) > 0:
		w.line = append(w.line, w.portsOf(c.allowedPorts)...)
	}
	w.line = append(w.line, "\n    }"...)
}

func (w *cellWriter) portsOf(a *allowedPorts) []byte {
	text, ok := w.ports[a]
	if !ok {
		list, err := json.MarshalIndent(a.sets, "      ", "  ")
		if err != nil { // a list of numbers and names of protocols
			panic(err)
		}
		text = append([]byte(",\n      \"ports\": "), list...)
		w.ports[a] = text
	}
	return text
}

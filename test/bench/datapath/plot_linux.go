// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"strings"
)

// Sizes of the picture, in pixels.
const (
	plotWidth  = 860
	nameWidth  = 230
	barHeight  = 18
	chartSpace = 46
)

// chart is one part of the table, drawn as bars.
type chart struct {
	title string
	rows  []row
}

// plot draws the paths as bars, with one chart for each part. It truncates bars that are far longer
// than the others, and labels them with their value.
func plot(rows []row, out io.Writer) error {
	var charts []chart
	height := 20
	for _, r := range rows {
		title, ok := strings.CutPrefix(r.Part, "paths: ")
		if !ok {
			continue
		}
		if len(charts) == 0 || charts[len(charts)-1].title != title {
			charts = append(charts, chart{title: title})
			height += chartSpace
		}
		c := &charts[len(charts)-1]
		if n := len(c.rows); n > 0 && c.rows[n-1].Path == r.Path {
			continue // a repetition with another floor
		}
		c.rows = append(c.rows, r)
		height += barHeight
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`+"\n", plotWidth, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/>`+"\n", plotWidth, height)
	y := 10
	for _, c := range charts {
		y = c.draw(&b, y)
	}
	b.WriteString("</svg>\n")
	_, err := out.Write(b.Bytes())
	return err
}

// draw adds the chart below y and returns where it ends.
func (c chart) draw(b *bytes.Buffer, y int) int {
	fmt.Fprintf(b, `<text x="10" y="%d" font-weight="bold">%s, %s</text>`+"\n", y+26, escape(c.title), escape(c.rows[0].Unit))
	y += 34
	limit := c.limit()
	const room = plotWidth - nameWidth - 80
	for _, r := range c.rows {
		colour := "#9aa5b1"
		if isOurs(r.Path) {
			colour = "#2f6fde"
		}
		width := r.Value / limit * room
		mark := ""
		if width > room {
			width, mark = room, " (cut)"
		}
		fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="end">%s</text>`, nameWidth-8, y+13, escape(r.Path))
		fmt.Fprintf(b, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/>`, nameWidth, y+2, width, barHeight-4, colour)
		fmt.Fprintf(b, `<text x="%.1f" y="%d">%.*f%s</text>`+"\n", nameWidth+width+4, y+13, digits(r.Value), r.Value, mark)
		y += barHeight
	}
	return y + chartSpace - 34
}

// limit is the value of a bar of full length: the largest value that is at most four times the
// median, so that an outlier does not compress the other bars.
func (c chart) limit() float64 {
	all := make(figure, 0, len(c.rows))
	for _, r := range c.rows {
		all = append(all, r.Value)
	}
	most := 0.0
	for _, v := range all {
		if v <= 4*all.median() {
			most = max(most, v)
		}
	}
	return most
}

func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a Builder returns no errors
	return b.String()
}

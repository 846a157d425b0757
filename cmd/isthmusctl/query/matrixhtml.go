// SPDX-License-Identifier: Apache-2.0

package query

import (
	"fmt"
	"html/template"
	"io"
	"net/netip"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/common/analysis/reach"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
)

// The parts of the page.
type (
	htmlCell struct{ Class, Text, Title string }
	htmlRow  struct {
		Name, Title string
		// OS is "linux", "windows" or "".
		OS model.OS
		// Namespace is set in the first row of a namespace, and of the ranges outside.
		Namespace string
		// Width is the number of columns.
		Width int
		Cells []htmlCell
	}
	htmlHead struct {
		Heading, Source string
		Columns         []htmlRow
		// Only: the matrix is about one port.
		Only bool
		// Services: the columns are ports of Services.
		Services bool
		// OwnNode are the ports of Services with internalTrafficPolicy Local.
		OwnNode []string
	}
)

// htmlGroup names a group.
func htmlGroup(g *reach.Group) htmlRow {
	all := names(g)
	return htmlRow{Name: title(all), Title: cli.Shorten(all, 50), OS: osOf(g)}
}

// writeHTML writes a self-contained page. source names the manifests and the program.
func (m *matrix) writeHTML(out io.Writer, source string) error {
	t, err := template.New("matrix").Parse(matrixPage)
	if err != nil {
		return fmt.Errorf("write html: %w", err)
	}
	head := htmlHead{Heading: m.heading(), Source: source, Only: m.only != nil}
	for _, g := range m.columns {
		head.Columns = append(head.Columns, htmlGroup(g))
	}
	if err := t.ExecuteTemplate(out, "head", head); err != nil {
		return fmt.Errorf("write html: %w", err)
	}
	before := ""
	err = m.each(func(i int, row []matrixCell) error {
		r := htmlGroup(m.rows[i])
		space := m.rows[i].Namespace
		if len(m.rows[i].Pods) == 0 {
			space = "outside of the cluster"
		}
		if space != before {
			r.Namespace, before = space, space
		}
		r.Width, r.Cells = len(row), make([]htmlCell, len(row))
		for j, c := range row {
			r.Cells[j] = m.htmlCell(c)
			r.Cells[j].Title = r.Name + " -> " + head.Columns[j].Name
			if why := m.reason(m.rows[i], m.columns[j], c); why != "" {
				r.Cells[j].Title += ": " + why
			}
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
		return htmlCell{Class: "none", Text: "no"}
	case m.only != nil:
		return htmlCell{Class: "all", Text: "yes"}
	case reach.EveryPort(c.sets):
		return htmlCell{Class: "all", Text: m.words(c)}
	}
	return htmlCell{Class: "some", Text: m.words(c)}
}

// reason names the policy that denies a cell, for one port of it and one address of each end. It is empty for allowed
// flows.
func (m *matrix) reason(from, to *reach.Group, c matrixCell) string {
	if m.reference == nil || c.itself || c.outside || c.allows() {
		return ""
	}
	dst := m.partition.Client(to, netip.Addr{})
	f := model.Flow{Src: m.partition.Client(from, dst), Dst: dst, Protocol: model.TCP}
	if m.only != nil {
		f.Protocol, f.Port = m.only.protocol, m.only.port
	}
	egress, ingress := m.reference.Flow(f)
	if egress.Verdict == model.Deny {
		return "egress: " + egress.Cause.String()
	}
	return "ingress: " + ingress.Cause.String()
}

// explainCells lets HTML name reasons.
func (m *matrix) explainCells(s *model.Snapshot) { m.reference = policy.NewEvaluator(s) }

const matrixPage = `{{define "head"}}<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<title>Who reaches whom</title>
<style>
body { font: 14px sans-serif; margin: 1em }
table { border-collapse: collapse }
th, td { border: 1px solid #ccc; padding: 2px 6px; text-align: left; font-weight: normal; overflow: hidden; text-overflow: ellipsis }
th, td.some { white-space: nowrap }
thead th { position: sticky; top: 0; background: #fff; writing-mode: vertical-rl; transform: rotate(180deg) }
thead div { max-height: 12em; overflow: hidden; text-overflow: ellipsis }
tbody th { position: sticky; left: 0; background: #fff }
tbody div { max-width: 22em; overflow: hidden; text-overflow: ellipsis }
td { max-width: 14em }
.all { background: #b7e1b1 } .some { background: #e6f3d8 } .none { background: #f6d5d5 } .self { background: #eee }
.ns th { background: #ddd; font-weight: bold } .os { color: #555; font-size: 80% } .key span { padding: 2px 6px; border: 1px solid #ccc }
.hide { display: none }
</style>
<h1>Who reaches whom</h1>
<p>{{.Heading}}. Rows open connections to columns. {{.Source}}</p>
<p class="key">{{if .Services}}<span class="all">yes</span> every backend
<span class="some">1 of 2</span> some backends{{else if .Only}}<span class="all">yes</span> allowed{{else}}<span class="all">all</span> every port
<span class="some">TCP 80</span> these ports{{end}} <span class="none">no</span> nothing {{if .Services}}<span class="self">-</span> no backends are known.{{else}}<span class="self">=</span> the pod itself.{{end}}
{{if .OwnNode}}Clients of a cluster IP reach only backends on their own node (internalTrafficPolicy Local) by:{{range .OwnNode}} {{.}};{{end}} cells count all backends.
{{end}}Point at a cell to see which policy denies. Names with +N stand for more pods; point at them to see all.</p>
<p><label>Show names with <input id="filter" placeholder="shop/"></label></p>
<table>
<thead><tr><td></td>{{range .Columns}}<th title="{{.Title}}"><div>{{.Name}}{{if .OS}} <span class="os">{{.OS}}</span>{{end}}</div></th>{{end}}</tr></thead>
<tbody>
{{end}}{{define "row"}}{{if .Namespace}}<tr class="ns"><th>{{.Namespace}}</th><td colspan="{{.Width}}"></td></tr>
{{end}}<tr><th title="{{.Title}}"><div>{{.Name}}{{if .OS}} <span class="os">{{.OS}}</span>{{end}}</div></th>{{range .Cells}}<td class="{{.Class}}" title="{{.Title}}">{{.Text}}</td>{{end}}</tr>
{{end}}{{define "foot"}}</tbody>
</table>
<script>
document.getElementById("filter").addEventListener("input", function () {
  var want = this.value, table = document.querySelector("table");
  var hit = function (cell) { return (cell.title || cell.textContent).indexOf(want) >= 0; };
  var shown = Array.prototype.map.call(table.tHead.rows[0].cells, function (c, i) { return i === 0 || hit(c); });
  var any = shown.indexOf(true, 1) > 0;
  Array.prototype.forEach.call(table.rows, function (row) {
    if (row.className.indexOf("ns") === 0) { row.classList.toggle("hide", want !== ""); return; }
    if (row.parentNode === table.tBodies[0]) { row.classList.toggle("hide", !hit(row.cells[0])); }
    Array.prototype.forEach.call(row.cells, function (c, i) { c.classList.toggle("hide", any && !shown[i]); });
  });
});
</script>
</html>
{{end}}`

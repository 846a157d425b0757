// SPDX-License-Identifier: Apache-2.0

package page

import (
	"context"
	"fmt"
	"net/http"
	"net/url"

	"github.com/isthmus-net/isthmus/common/analysis/ends"
	"github.com/isthmus-net/isthmus/common/analysis/explain"
	"github.com/isthmus-net/isthmus/common/model"
)

// The sizes of parts, so that a page has less than 80 KB even with the longest names.
const (
	matrixRows, matrixColumns = 20, 14
	matrixBytes               = 50_000 // of the cells of a matrix
	policyRows                = 40
	ruleRows                  = 200
	nodeRows                  = 30
	inexactRows               = 30
)

// matrixParams are the parameters of all pages with a matrix.
var matrixParams = []string{"rows", "columns", "row", "column", "port", "protocol", "family"}

func (h *Handler) overview(r *http.Request) (*document, error) {
	if _, err := parse(r.URL.RawQuery); err != nil {
		return nil, badRequest(err)
	}
	return &document{Template: "overview", Title: "Overview", Body: h.current().Counts()}, nil
}

// matrix is a part of a matrix.
type matrix struct {
	params
	Rows, Columns slice[End]
	Lines         []line
	// From and To are the namespaces, and FromWorkload and ToWorkload the workloads, whose parts are shown.
	From, To, FromWorkload, ToWorkload string
	// Port is the port that the matrix is about; empty for all.
	Port string
	// What are the ends: namespaces, workloads or pods.
	What string
}

// line is a row of a matrix.
type line struct {
	End
	Cells []linked
}

// linked is a cell with the address that explains it, relative to that of the matrix.
type linked struct {
	Cell
	Href string
}

// fill computes the lines of a matrix between two lists of ends.
func (m *matrix) fill(v *View, rows, columns []End, only *Port, href func(from, to End, c Cell) string) error {
	if only != nil {
		m.Port = only.String()
	}
	key := func(e End) string { return e.Key }
	rows, columns = filtered(rows, m.rows, key), filtered(columns, m.columns, key)
	m.Rows = cut(rows, m.row, matrixRows)
	m.Columns = cut(columns, m.column, m.width(rows, columns))
	cells, err := v.Cells(m.Rows.Items, m.Columns.Items, only)
	if err != nil {
		return err
	}
	for i, from := range m.Rows.Items {
		l := line{End: from}
		for j, to := range m.Columns.Items {
			c := linked{Cell: cells[i][j]}
			if c.Kind != Self {
				c.Href = href(from, to, c.Cell)
			}
			l.Cells = append(l.Cells, c)
		}
		m.Lines = append(m.Lines, l)
	}
	return nil
}

// width returns the number of columns: fewer if long names make long links.
func (m *matrix) width(rows, columns []End) int {
	cell := 120 + 2*(len(m.From)+len(m.To)) // bytes without the names of the ends
	for _, ends := range [][]End{rows, columns} {
		longest := 0
		for _, e := range ends {
			longest = max(longest, len(e.Key))
		}
		cell += longest
	}
	return max(1, min(matrixColumns, matrixBytes/matrixRows/cell))
}

// matrixOf reads the parameters of a page with a matrix.
func matrixOf(r *http.Request, what string, more ...string) (*matrix, *Port, error) {
	p, err := parse(r.URL.RawQuery, append(more, matrixParams...)...)
	if err != nil {
		return nil, nil, badRequest(err)
	}
	only, err := p.only()
	if err != nil {
		return nil, nil, badRequest(err)
	}
	return &matrix{params: p, What: what, From: r.PathValue("from"), To: r.PathValue("to")}, only, nil
}

// narrow are the parameters that a more detailed matrix keeps.
func (m *matrix) narrow(more ...string) string {
	keep := params{row: 1, column: 1, part: 1, port: m.port, protocol: m.protocol, v6: m.v6}
	return keep.query(more...)
}

func (h *Handler) namespaces(r *http.Request) (*document, error) {
	m, only, err := matrixOf(r, "namespaces")
	if err != nil {
		return nil, err
	}
	v, after := h.current(), m.narrow()
	all := v.Namespaces(m.v6)
	err = m.fill(v, all, all, only, func(from, to End, _ Cell) string {
		return "reach/" + url.PathEscape(from.Key) + "/" + url.PathEscape(to.Key) + after
	})
	return &document{Template: "matrix", Title: "Who reaches whom: namespaces", Body: m}, err
}

func (h *Handler) workloads(r *http.Request) (*document, error) {
	m, only, err := matrixOf(r, "workloads")
	if err != nil {
		return nil, err
	}
	v := h.current()
	rows, err := v.Workloads(m.v6, m.From)
	if err != nil {
		return nil, notFound(err)
	}
	columns, err := v.Workloads(m.v6, m.To)
	if err != nil {
		return nil, notFound(err)
	}
	err = m.fill(v, rows, columns, only, func(from, to End, _ Cell) string {
		return url.PathEscape(m.To) + "/pods" + m.narrow("from", from.Key, "to", to.Key)
	})
	return &document{Template: "matrix", Title: fmt.Sprintf("Who reaches whom: workloads of %s and %s", m.From, m.To), Body: m}, err
}

func (h *Handler) pods(r *http.Request) (*document, error) {
	m, only, err := matrixOf(r, "pods", "from", "to")
	if err != nil {
		return nil, err
	}
	v := h.current()
	m.FromWorkload, m.ToWorkload = m.from, m.to
	rows, err := v.Pods(m.v6, m.From, m.from)
	if err != nil {
		return nil, notFound(fmt.Errorf("from: %w", err))
	}
	columns, err := v.Pods(m.v6, m.To, m.to)
	if err != nil {
		return nil, notFound(fmt.Errorf("to: %w", err))
	}
	err = m.fill(v, rows, columns, only, func(from, to End, c Cell) string {
		p := params{row: 1, column: 1, part: 1, from: m.From + "/" + from.Key, to: m.To + "/" + to.Key, protocol: c.Port.Protocol.String()}
		if m.v6 {
			p.to = v.at(true, m.To, to.Key)
		}
		if c.Port.Protocol.HasPorts() {
			p.port = fmt.Sprint(c.Port.Number)
		}
		return "../../../explain" + p.query()
	})
	return &document{Template: "matrix", Title: fmt.Sprintf("Who reaches whom: pods of %s/%s and %s/%s", m.From, m.from, m.To, m.to), Body: m}, err
}

// at names a pod with its address of a family.
func (v *View) at(v6 bool, namespace, name string) string {
	text := namespace + "/" + name
	if p, ok := v.cluster.Snapshot.Pods.Get(model.PodID{Namespace: namespace, Name: name}); ok {
		for _, a := range p.IPs {
			if a.Is6() == v6 {
				return text + "@" + a.String()
			}
		}
	}
	return text
}

// explained is an explanation, or the form for one.
type explained struct {
	From, To, Port, Protocol string
	Protocols                []string
	Report                   *explain.Report
	// Problem says why there is no explanation.
	Problem string
}

func (h *Handler) explain(r *http.Request) (*document, error) {
	p, err := parse(r.URL.RawQuery, "from", "to", "port", "protocol")
	if err != nil {
		return nil, badRequest(err)
	}
	e := &explained{From: p.from, To: p.to, Port: p.port, Protocol: p.protocol, Protocols: []string{"TCP", "UDP", "SCTP", "ICMP", "ICMPv6"}}
	d := &document{Template: "explain", Title: "Explain a flow", Body: e}
	if p.from == "" && p.to == "" {
		return d, nil
	}
	c := h.config.Cluster()
	if h.config.Allow != nil {
		if err := h.config.Allow(r.Context(), c.Snapshot, p.from, p.to); err != nil {
			return nil, err
		}
	}
	f, err := p.flow(c.Snapshot)
	if err != nil {
		e.Problem, d.Status = err.Error(), http.StatusBadRequest
		return d, nil
	}
	if e.Report, err = h.report(r.Context(), c, f); err != nil {
		return nil, err
	}
	if other, ok := ends.OtherFamily(c.Snapshot, p.from, p.to, f); ok {
		x, err := h.report(r.Context(), c, other)
		if err != nil {
			return nil, err
		}
		e.Report.NoteOther(other, x.Verdict)
	}
	d.Title = fmt.Sprintf("%s to %s: %s", p.from, p.to, map[string]string{"allow": "allowed", "deny": "denied"}[e.Report.Verdict])
	return d, nil
}

// report explains a flow.
func (h *Handler) report(ctx context.Context, c *Cluster, f model.Flow) (*explain.Report, error) {
	if h.config.Explain != nil {
		return h.config.Explain(ctx, c, f)
	}
	var enforced explain.Enforced
	if h.config.Enforced != nil {
		enforced = h.config.Enforced(c.Snapshot, f)
	}
	x := explain.Flow(c.Snapshot, f, c.Services, enforced)
	x.Locate(c.Places)
	return x, nil
}

// listed is a part of a list.
type listed[T any] struct {
	params
	slice[T]
	Find string
	// Problem says why there is no list.
	Problem string
	// Note names what is missing in the list.
	Note string
}

func (h *Handler) nodes(r *http.Request) (*document, error) {
	p, err := parse(r.URL.RawQuery, "find", "part")
	if err != nil {
		return nil, badRequest(err)
	}
	note := "Reports of agents are not available: this list has the Node objects only."
	var agents map[string]Agent
	if h.config.Agents != nil {
		note = ""
		agents, err = h.config.Agents(r.Context())
		if _, ok := refused(err); ok {
			return nil, err
		}
		if err != nil {
			note = "The agents do not answer: " + err.Error()
		}
	}
	all := h.current().Nodes(p.find, agents)
	return &document{Template: "nodes", Title: "Nodes", Body: &listed[nodeRow]{params: p, slice: cut(all, p.part, nodeRows), Find: p.find, Note: note}}, nil
}

// timeFormat is how pages write times, which are in UTC.
const timeFormat = "2006-01-02 15:04:05 UTC"

// SPDX-License-Identifier: Apache-2.0

package query

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"html/template"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/common/analysis/service"
	"github.com/isthmus-net/isthmus/common/model"
)

func (m *serviceMatrix) heading() string {
	pods := 0
	for _, g := range m.rows {
		pods += len(g.Pods)
	}
	return fmt.Sprintf("ports of Services, %d pods in %d groups", pods, len(m.rows))
}

// writeText writes the cells, the backends, and what differs between the backends of a port.
func (m *serviceMatrix) writeText(out io.Writer, wide bool) error {
	name := len("from \\ to")
	for _, g := range m.rows {
		name = max(name, utf8.RuneCountInString(title(names(g))))
	}
	width := len(strconv.Itoa(len(m.routes)))
	for _, r := range m.routes {
		width = max(width, 1+2*len(strconv.Itoa(len(r.Targets))))
	}
	fmt.Fprintf(out, "%s\n\n%-*s", m.heading(), name, "from \\ to")
	for i := range m.routes {
		fmt.Fprintf(out, "  %*d", width, i+1)
	}
	fmt.Fprintln(out)
	var details bytes.Buffer
	err := m.each(func(i int, allowed [][]bool) error {
		fmt.Fprintf(out, "%-*s", name, title(names(m.rows[i])))
		for j, one := range allowed {
			fmt.Fprintf(out, "  %*s", width, m.sign(one))
			m.detail(&details, i, j, one, wide)
		}
		_, err := fmt.Fprintln(out)
		return err
	})
	if err != nil {
		return fmt.Errorf("write text: %w", err)
	}
	fmt.Fprintln(out)
	for i, r := range m.routes {
		fmt.Fprintf(out, "%*d  %s: %s\n", width, i+1, r, backendsText(r, wide))
	}
	fmt.Fprint(out, "\n.    no backend\nx    every backend\n1/2  one of two backends\n-    no backends are known\n")
	_, err = details.WriteTo(out)
	return err
}

// detail names the denied backends of a cell, if it allows others.
func (m *serviceMatrix) detail(b *bytes.Buffer, i, j int, allowed []bool, wide bool) {
	n := count(allowed)
	if n == len(allowed) || n == 0 && !wide {
		return
	}
	fmt.Fprintf(b, "\n%s -> %s\n", title(names(m.rows[i])), m.routes[j])
	for k, ok := range allowed {
		to := m.routes[j].Targets[k]
		if ok {
			fmt.Fprintf(b, "  allow  %s\n", to.Name)
		} else {
			fmt.Fprintf(b, "  deny   %s: %s\n", to.Name, m.why(m.rows[i], m.routes[j], to))
		}
	}
}

// backendsText lists the backends of a port.
func backendsText(r *service.Route, wide bool) string {
	if r.Missing != "" {
		return r.Missing
	}
	var all []string
	for _, t := range r.Targets {
		all = append(all, fmt.Sprintf("%s at %d", t.Name, t.Port))
	}
	few := 3
	if wide {
		few = len(all)
	}
	text := cli.Shorten(all, few)
	if near(r) {
		text += "; internalTrafficPolicy Local: each node leads to its own only"
	}
	return text
}

// near reports whether clients that call a cluster IP reach the backends on their own node only, of all in the matrix.
func near(r *service.Route) bool { return r.Service.OwnNode && !r.Service.Headless }

// writeCSV writes a line for every pair of a pod and a backend.
func (m *serviceMatrix) writeCSV(out io.Writer) error {
	w := csv.NewWriter(out)
	if err := w.Write([]string{"from", "from_os", "service", "service_port", "backend", "backend_port", "verdict", "internal_traffic_policy"}); err != nil {
		return fmt.Errorf("write csv: %w", err)
	}
	err := m.each(func(i int, allowed [][]bool) error {
		for _, from := range csvEnds(m.rows[i]) {
			for j, one := range allowed {
				r := m.routes[j]
				for k, ok := range one {
					to := r.Targets[k]
					if err := w.Write([]string{from.name, from.os, r.Service.Namespace + "/" + r.Service.Name, fmt.Sprintf("%s %d", r.Port.Protocol, r.Port.Port),
						to.Name, strconv.Itoa(int(to.Port)), verdictText(ok || from.pod == to.Name), trafficPolicy(r.Service)}); err != nil {
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

func verdictText(allowed bool) string {
	if allowed {
		return model.Allow.String()
	}
	return model.Deny.String()
}

// The JSON form of the answer.
type (
	serviceMatrixReport struct {
		Groups []matrixGroup `json:"groups"`
		// Ports are the columns.
		Ports []servicePortReport `json:"ports"`
		Cells []serviceCell       `json:"cells"`
	}
	servicePortReport struct {
		Service   string   `json:"service"`
		Addresses []string `json:"addresses"`
		Port      int      `json:"port"`
		PortName  string   `json:"port_name,omitempty"`
		Protocol  string   `json:"protocol"`
		Headless  bool     `json:"headless,omitempty"`
		// TrafficPolicy is "Local" if clients in the cluster that call a cluster IP reach the backends on their own node only.
		TrafficPolicy string          `json:"internal_traffic_policy"`
		Backends      []backendReport `json:"backends"`
		// Missing is the reason why no backends are known.
		Missing string `json:"missing,omitempty"`
	}
	backendReport struct {
		Name    string `json:"name"`
		Address string `json:"address"`
		Port    int    `json:"port"`
	}
	// serviceCell names a group and a port by index. Verdicts are in the order of the backends.
	serviceCell struct {
		From     int      `json:"from"`
		To       int      `json:"to"`
		Verdicts []string `json:"verdicts"`
	}
)

func (m *serviceMatrix) writeJSON(out io.Writer, form string) error {
	r := serviceMatrixReport{Groups: []matrixGroup{}, Ports: []servicePortReport{}, Cells: []serviceCell{}}
	for _, g := range m.rows {
		all := endNames(g)
		r.Groups = append(r.Groups, matrixGroup{title(all), all, reportRanges(g)})
	}
	for _, route := range m.routes {
		s := route.Service
		one := servicePortReport{Service: s.Namespace + "/" + s.Name, Addresses: []string{}, Port: int(route.Port.Port), PortName: route.Port.Name,
			Protocol: route.Port.Protocol.String(), Headless: s.Headless, TrafficPolicy: trafficPolicy(s), Backends: []backendReport{}, Missing: route.Missing}
		for _, a := range s.Addresses {
			one.Addresses = append(one.Addresses, a.String())
		}
		for _, t := range route.Targets {
			one.Backends = append(one.Backends, backendReport{t.Name, t.Addr.String(), int(t.Port)})
		}
		r.Ports = append(r.Ports, one)
	}
	err := m.each(func(i int, allowed [][]bool) error {
		for j, one := range allowed {
			c := serviceCell{From: i, To: j, Verdicts: make([]string, len(one))}
			for k, ok := range one {
				c.Verdicts[k] = verdictText(ok)
			}
			r.Cells = append(r.Cells, c)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return cli.EncodeKind(out, form, "ServiceMatrix", r)
}

// writeHTML writes a self-contained page.
func (m *serviceMatrix) writeHTML(out io.Writer, source string) error {
	t, err := template.New("matrix").Parse(matrixPage)
	if err != nil {
		return fmt.Errorf("write html: %w", err)
	}
	head := htmlHead{Heading: m.heading(), Source: source, Services: true}
	for _, r := range m.routes {
		column := htmlRow{Name: r.String(), Title: r.String() + ": " + backendsText(r, true)}
		if near(r) {
			column.Name += " (own node)"
			head.OwnNode = append(head.OwnNode, r.String())
		}
		head.Columns = append(head.Columns, column)
	}
	if err := t.ExecuteTemplate(out, "head", head); err != nil {
		return fmt.Errorf("write html: %w", err)
	}
	before := ""
	err = m.each(func(i int, allowed [][]bool) error {
		r := htmlGroup(m.rows[i])
		if space := m.rows[i].Namespace; space != before {
			r.Namespace, before = space, space
		}
		r.Width, r.Cells = len(allowed), make([]htmlCell, len(allowed))
		for j, one := range allowed {
			r.Cells[j] = m.htmlCell(i, j, one)
			r.Cells[j].Title = r.Name + " -> " + m.routes[j].String() + r.Cells[j].Title
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

// htmlCell renders a cell; its title continues the names of the ends.
func (m *serviceMatrix) htmlCell(i, j int, allowed []bool) htmlCell {
	var why []string
	for k, ok := range allowed {
		if to := m.routes[j].Targets[k]; !ok {
			why = append(why, fmt.Sprintf("%s: %s", to.Name, m.why(m.rows[i], m.routes[j], to)))
		}
	}
	text := ""
	if len(why) > 0 {
		text = ": " + strings.Join(why[:min(len(why), 10)], "; ")
	}
	switch n := count(allowed); {
	case len(allowed) == 0:
		return htmlCell{"self", "-", ": " + m.routes[j].Missing}
	case n == len(allowed):
		return htmlCell{"all", "yes", ""}
	case n == 0:
		return htmlCell{"none", "no", text}
	default:
		return htmlCell{"some", fmt.Sprintf("%d of %d", n, len(allowed)), text}
	}
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/isthmus-net/isthmus/common/model"
)

// matrixOptions are the flags of matrix.
type matrixOptions struct {
	source
	port, protocol         string
	namespaces, froms, tos []string
	outside, v6            bool
	output                 string
	maxGroups              int
}

func (e env) matrixCommand() *cobra.Command {
	o := &matrixOptions{}
	c := &cobra.Command{
		Use:   "matrix",
		Short: "Show who reaches whom",
		Long: `Show for every pair of pods whether new connections are allowed, on all ports that rules tell apart or
on one. Pods that no policy can tell apart are one row and one column.

With --outside the ranges of addresses that are no pod's are there too. Nodes are not shown: a pod's own node
always reaches it, and isthmusctl explain tells about any other flow.`,
		Args: noArgs,
		RunE: answering(func(c *cobra.Command, _ []string) error { return e.matrix(c.Context(), o) }),
	}
	o.register(c)
	o.registerWitnesses(c)
	f := c.Flags()
	f.StringVarP(&o.port, "port", "p", "", "look at this port only")
	f.StringVar(&o.protocol, "protocol", "tcp", "the protocol of --port; one without ports needs no --port")
	f.StringSliceVarP(&o.namespaces, "namespace", "n", nil, "show only pods of these namespaces")
	f.StringSliceVar(&o.froms, "from-namespace", nil, "rows: show only pods of these namespaces")
	f.StringSliceVar(&o.tos, "to-namespace", nil, "columns: show only pods of these namespaces")
	f.BoolVar(&o.outside, "outside", false, "show ranges of addresses outside, too")
	f.BoolVar(&o.v6, "ipv6", false, "show flows over IPv6 instead of IPv4")
	f.IntVar(&o.maxGroups, "max-groups", 0, "how many rows or columns there may be (default 60, for html 300, for csv and json 2000)")
	registerOutput(c, &o.output, "text", "wide", "csv", "html", "json")
	return c
}

func (e env) matrix(ctx context.Context, o *matrixOptions) error {
	if err := checkOutput(o.output, "text", "wide", "csv", "html", "json"); err != nil {
		return err
	}
	only, err := o.only()
	if err != nil {
		return err
	}
	s, err := e.open(ctx, &o.source)
	if err != nil {
		return err
	}
	survey := newSurvey(s)
	for _, u := range survey.variants[0].overBlocked {
		fmt.Fprintf(e.stderr, "isthmusctl: shown as it is enforced, which is less than the policies allow: %s: %s\n", u.Construct, u.Reason)
	}
	for _, name := range slices.Concat(o.namespaces, o.froms, o.tos) {
		if _, ok := s.Namespaces.Get(name); !ok {
			return usageError{fmt.Errorf("no namespace %s: look at the spelling", name)}
		}
	}
	m := &matrix{only: only, groups: len(survey.groups)}
	m.rows, m.columns = o.choose(survey, o.froms), o.choose(survey, o.tos)
	if err := o.bound(m); err != nil {
		return err
	}
	m.fill(survey)
	switch o.output {
	case "csv":
		return m.writeCSV(e.stdout)
	case "html":
		return m.writeHTML(e.stdout)
	case "json":
		return encodeJSON(e.stdout, m.report())
	}
	return m.writeText(e.stdout, o.output == "wide")
}

// onePort is what a matrix is limited to.
type onePort struct {
	protocol model.Protocol
	port     uint16
}

// String returns "TCP 80" or "ICMP".
func (p onePort) String() string {
	if !p.protocol.HasPorts() {
		return p.protocol.String()
	}
	return fmt.Sprintf("%s %d", p.protocol, p.port)
}

// only reads --port and --protocol; nil means all ports.
func (o *matrixOptions) only() (*onePort, error) {
	p, err := model.ParseProtocol(o.protocol)
	if err != nil {
		return nil, usageError{fmt.Errorf("--protocol: %w", err)}
	}
	switch {
	case o.port == "" && p.HasPorts() && p != model.TCP:
		return nil, usageError{fmt.Errorf("--protocol %s: give --port, too", p)}
	case o.port == "" && p.HasPorts():
		return nil, nil
	case o.port == "":
		return &onePort{protocol: p}, nil
	case !p.HasPorts():
		return nil, usageError{fmt.Errorf("--port %q: %s has no ports", o.port, p)}
	}
	n, err := strconv.ParseUint(o.port, 10, 16)
	if err != nil {
		return nil, usageError{fmt.Errorf("--port %q: give a number from 0 to 65535", o.port)}
	}
	return &onePort{p, uint16(n)}, nil
}

// choose lists the groups that rows, or columns, are for.
func (o *matrixOptions) choose(s *survey, namespaces []string) []*group {
	namespaces = slices.Concat(namespaces, o.namespaces)
	var chosen []*group
	for _, g := range s.groups {
		switch {
		case g.v6 != o.v6, len(g.pods) == 0 && !o.outside:
		case len(g.pods) > 0 && len(namespaces) > 0 && !slices.Contains(namespaces, g.namespace):
		default:
			chosen = append(chosen, g)
		}
	}
	return chosen
}

// bound refuses what nobody can read.
func (o *matrixOptions) bound(m *matrix) error {
	limit := map[string]int{"text": 60, "wide": 60, "html": 300, "csv": 2000, "json": 2000}[o.output]
	if o.maxGroups < 0 {
		return usageError{fmt.Errorf("--max-groups %d: give 1 or more", o.maxGroups)}
	}
	if o.maxGroups > 0 {
		limit = o.maxGroups
	}
	if n := max(len(m.rows), len(m.columns)); n > limit {
		return usageError{fmt.Errorf("%d groups of pods are more than %d in %s: narrow it with --namespace, --from-namespace or "+
			"--to-namespace, write csv, or raise --max-groups", n, limit, o.output)}
	}
	return nil
}

// matrix is who reaches whom.
type matrix struct {
	only          *onePort
	groups        int
	rows, columns []*group
	// cells are by row and column.
	cells [][]matrixCell
}

// matrixCell is what is allowed between two groups.
type matrixCell struct {
	// itself: the groups are the same single pod, which reaches itself.
	itself bool
	// outside: neither group is of pods, so that nobody decides.
	outside bool
	ports   []portSet
}

// allows reports whether anything is allowed.
func (c matrixCell) allows() bool { return c.itself || len(c.ports) > 0 }

// fill works out the cells.
func (m *matrix) fill(s *survey) {
	known := make(map[rows][]portSet)
	m.cells = make([][]matrixCell, len(m.rows))
	for i, from := range m.rows {
		m.cells[i] = make([]matrixCell, len(m.columns))
		for j, to := range m.columns {
			if from == to && from.selfOnly() {
				m.cells[i][j].itself = true
				continue
			}
			m.cells[i][j].outside = len(from.pods) == 0 && len(to.pods) == 0
			r := s.rows(0, from, to)
			sets, ok := known[r]
			if !ok {
				sets = m.allowed(s, from, to, r)
				known[r] = sets
			}
			m.cells[i][j].ports = sets
		}
	}
}

// allowed lists the ports that are allowed, of those that are asked for.
func (m *matrix) allowed(s *survey, from, to *group, r rows) []portSet {
	var cells []int
	for c := range s.ports {
		if s.flow(0, from, to, r, c) == model.Allow && (m.only == nil || c == s.cell(m.only.protocol, m.only.port)) {
			cells = append(cells, c)
		}
	}
	return s.portSets(cells)
}

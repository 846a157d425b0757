// SPDX-License-Identifier: Apache-2.0

package query

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cluster"
	"github.com/isthmus-net/isthmus/common/analysis/reach"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
)

// matrixOptions are the flags of matrix.
type matrixOptions struct {
	cluster.Source
	port, protocol         string
	namespaces, froms, tos []string
	outside, v6, all       bool
	// services makes the columns ports of Services: of all, or of those in toServices.
	services   bool
	toServices []string
	output     string
	maxGroups  int
}

func (e env) matrixCommand() *cobra.Command {
	o := &matrixOptions{}
	c := &cobra.Command{
		Use:   "matrix",
		Short: "Show which pods reach which pods, or which backends of Services",
		Long: `Show for every pair of pods whether new connections are allowed, on one port or on all ports that rules
distinguish. Pods that no policy distinguishes share a row and a column.

--outside adds address ranges that belong to no pod. Nodes are not shown: a pod's own node always reaches
it, and isthmusctl explain answers for any other flow.

--to svc/NAMESPACE/NAME, an address of a Service, or --services for all, makes the columns ports of Services. Each cell
then has a verdict for every backend. The port is one of the Service, by number or name.`,
		Args: cli.NoArgs,
		RunE: cli.Answering(func(c *cobra.Command, _ []string) error {
			return o.Complete(e.matrix(c.Context(), o, c.Flags().Changed("protocol")))
		}),
	}
	o.Register(c)
	o.RegisterPlaceholders(c)
	f := c.Flags()
	f.BoolVar(&o.services, "services", false, "columns: the ports of all Services, in the namespaces of columns")
	f.StringArrayVar(&o.toServices, "to", nil, "columns: the ports of this Service, svc/NAMESPACE/NAME or its address (repeatable)")
	f.StringVarP(&o.port, "port", "p", "", "show this port only; ports of Services also by name")
	f.StringVar(&o.protocol, "protocol", "tcp", "protocol of --port; a protocol without ports needs no --port")
	cli.CompleteFlag(c, "protocol", cli.Protocols())
	o.CompleteServices(c, "to")
	f.StringSliceVarP(&o.namespaces, "namespace", "n", nil, "show only pods of these namespaces")
	f.BoolVarP(&o.all, "all-namespaces", "A", false, "show pods of all namespaces, which is the default")
	f.StringSliceVar(&o.froms, "from-namespace", nil, "rows: show only pods of these namespaces")
	f.StringSliceVar(&o.tos, "to-namespace", nil, "columns: show only pods of these namespaces")
	f.BoolVar(&o.outside, "outside", false, "also show address ranges outside the cluster")
	f.BoolVar(&o.v6, "ipv6", false, "show flows over IPv6 instead of IPv4")
	f.IntVar(&o.maxGroups, "max-groups", 0, "maximum number of rows or columns (default 60; html and yaml 300; csv and json 2000)")
	for _, flag := range []string{"namespace", "from-namespace", "to-namespace"} {
		o.CompleteNamespaces(c, flag)
	}
	cli.RegisterOutput(c, &o.output, "text", "wide", "csv", "html", "json", "yaml")
	return c
}

func (e env) matrix(ctx context.Context, o *matrixOptions, protocolGiven bool) error {
	if err := cli.CheckOutput(o.output, "text", "wide", "csv", "html", "json", "yaml"); err != nil {
		return err
	}
	if o.all && len(o.namespaces) > 0 {
		return cli.Usagef("--all-namespaces and --namespace: give one of them")
	}
	var only *onePort
	var err error
	if o.services = o.services || len(o.toServices) > 0; !o.services {
		only, err = o.only(protocolGiven)
	}
	if err != nil {
		return err
	}
	o.WantServices = o.services
	s, err := o.Open(ctx, e.Stderr)
	if err != nil {
		return err
	}
	for _, name := range slices.Concat(o.namespaces, o.froms, o.tos) {
		if _, ok := s.Namespaces.Get(name); !ok {
			return cli.Usagef("no namespace %s: check the spelling", name)
		}
	}
	if o.outside && s.DenyLists.Len() > 0 {
		fmt.Fprintln(e.Stderr, "isthmusctl: deny lists drop packets of some addresses outside whatever policy says, which a matrix does not show: see isthmusctl deny list")
	}
	p := reach.New(s)
	p.Progress = e.Progress("matrix", "groups")
	e.warnCrowded(p)
	m := newMatrix(p, only)
	groups := p.Groups(o.v6)
	m.rows, m.columns = o.choose(groups, o.froms), o.choose(groups, o.tos)
	if o.services {
		return e.matrixOfServices(o, s, m, protocolGiven)
	}
	if len(m.rows) == 0 || len(m.columns) == 0 {
		return o.nothing(p)
	}
	if err := o.bound(len(m.rows), len(m.columns)); err != nil {
		return err
	}
	out := bufio.NewWriterSize(e.Stdout, 1<<16)
	switch o.output {
	case "csv":
		err = m.writeCSV(out)
	case "html":
		m.explainCells(s)
		err = m.writeHTML(out, fmt.Sprintf("Source: %s. isthmusctl %s.", o.Name(), cli.OrNone(e.Version)))
	case "json":
		err = m.writeJSON(out)
	case "yaml":
		var text bytes.Buffer
		if err = m.writeJSON(&text); err == nil {
			err = cli.WriteYAML(out, text.Bytes())
		}
	default:
		err = m.writeText(out, o.output == "wide")
	}
	return errors.Join(err, out.Flush())
}

// nothing is the error for a matrix without rows or columns.
func (o *matrixOptions) nothing(p *reach.Partition) error {
	if family := p.Groups(o.v6); len(family) == 0 || len(family[0].Pods) == 0 {
		if other := p.Groups(!o.v6); len(other) > 0 && len(other[0].Pods) > 0 {
			if o.v6 {
				return errors.New("no pod has an IPv6 address: remove --ipv6")
			}
			return errors.New("no pod has an IPv4 address: give --ipv6")
		}
	}
	return errors.New("there are no such pods to show; --placeholders adds a placeholder pod for every policy that selects none, --outside shows other addresses")
}

// onePort is the single port that a matrix is limited to.
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
func (o *matrixOptions) only(protocolGiven bool) (*onePort, error) {
	p, err := model.ParseProtocol(o.protocol)
	if err != nil {
		return nil, cli.Usagef("--protocol: %w", err)
	}
	switch {
	case p == model.ICMPv6 && !o.v6:
		return nil, cli.Usagef("--protocol %s: is of IPv6: give --ipv6, too", p)
	case p == model.ICMP && o.v6:
		return nil, cli.Usagef("--protocol %s: is of IPv4: give ICMPv6, or remove --ipv6", p)
	case o.port == "" && p.HasPorts() && protocolGiven:
		return nil, cli.Usagef("--protocol %s: give --port, too", p)
	case o.port == "" && p.HasPorts():
		return nil, nil
	case o.port == "":
		return &onePort{protocol: p}, nil
	case !p.HasPorts():
		return nil, cli.Usagef("--port %q: %s has no ports", o.port, p)
	}
	n, err := strconv.ParseUint(o.port, 10, 16)
	if err != nil || n == 0 {
		return nil, cli.Usagef("--port %q: give a number from 1 to 65535; a name means another port in each pod, and works with --to svc/NAMESPACE/NAME", o.port)
	}
	return &onePort{p, uint16(n)}, nil
}

// choose lists the groups of the rows, or of the columns.
func (o *matrixOptions) choose(groups []*reach.Group, namespaces []string) []*reach.Group {
	namespaces = slices.Concat(namespaces, o.namespaces)
	var chosen []*reach.Group
	for _, g := range groups {
		switch {
		case len(g.Pods) == 0 && !o.outside:
		case len(g.Pods) > 0 && len(namespaces) > 0 && !slices.Contains(namespaces, g.Namespace):
		default:
			chosen = append(chosen, g)
		}
	}
	return chosen
}

// bound rejects a matrix that is too large to read.
func (o *matrixOptions) bound(rows, columns int) error {
	limit := map[string]int{"text": 60, "wide": 60, "html": 300, "csv": 2000, "json": 2000, "yaml": 300}[o.output]
	if o.maxGroups < 0 {
		return cli.Usagef("--max-groups %d: give 1 or more", o.maxGroups)
	}
	if o.maxGroups > 0 {
		limit = o.maxGroups
	}
	if n := max(rows, columns); n > limit {
		return cli.Usagef("%d rows or columns are more than %d in %s: narrow it with --namespace, --from-namespace or "+
			"--to-namespace, write csv, or raise --max-groups", n, limit, o.output)
	}
	return nil
}

// matrix holds which groups reach which. It computes its cells row by row when they are
// needed: those of a large cluster do not fit into memory.
type matrix struct {
	only      *onePort
	partition *reach.Partition
	// reference gives the reasons of HTML; nil if none are wanted.
	reference     *policy.Evaluator
	rows, columns []*reach.Group
	// known are the sets of ports of the cells so far.
	known map[reach.PortsID]*allowedPorts
}

// allowedPorts is a set of ports in the form of the outputs.
type allowedPorts struct {
	sets []reach.PortSet
	text string // for the text output
}

// matrixCell is what is allowed between two groups.
type matrixCell struct {
	// itself: the groups are the same single pod, which reaches itself.
	itself bool
	// outside: neither group consists of pods, so that no policy decides.
	outside bool
	*allowedPorts
}

func newMatrix(p *reach.Partition, only *onePort) *matrix {
	return &matrix{only: only, partition: p, known: make(map[reach.PortsID]*allowedPorts)}
}

// allows reports whether anything is allowed.
func (c matrixCell) allows() bool { return c.itself || len(c.sets) > 0 }

// each computes the rows in order. It reuses the slice of cells.
func (m *matrix) each(row func(i int, cells []matrixCell) error) error {
	cells := make([]matrixCell, len(m.columns))
	return m.partition.Reach(m.rows, m.columns, func(i int, allowed []reach.PortsID) error {
		from := m.rows[i]
		for j, to := range m.columns {
			c := matrixCell{allowedPorts: &allowedPorts{}}
			if c.itself = from == to && from.Single(); !c.itself {
				c.outside = len(from.Pods) == 0 && len(to.Pods) == 0
				c.allowedPorts = m.allowed(allowed[j])
			}
			cells[j] = c
		}
		return row(i, cells)
	})
}

// allowed lists the ports of a set, within the selected port.
func (m *matrix) allowed(id reach.PortsID) *allowedPorts {
	a := m.known[id]
	if a == nil {
		cells := m.partition.Members(id)
		if m.only != nil {
			cell := m.partition.Cell(m.only.protocol, m.only.port)
			cells = slices.DeleteFunc(cells, func(c int) bool { return c != cell })
		}
		a = &allowedPorts{sets: reach.PortSets(m.partition.Cells(), cells)}
		a.text = reach.PortsText(a.sets)
		m.known[id] = a
	}
	return a
}

// SPDX-License-Identifier: Apache-2.0

package query

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cluster"
	"github.com/isthmus-net/isthmus/common/model"
)

// compileOptions are the flags of compile.
type compileOptions struct {
	cluster.Source
	nodes  []string
	os     string
	hns    []string
	mode   string
	output string
}

func (e env) compileCommand() *cobra.Command {
	o := &compileOptions{}
	c := &cobra.Command{
		Use:   "compile",
		Short: "Print what each node enforces: tables, map entries of Linux, or HNS requests of Windows",
		Long: `Print what each node should enforce for all of its pods.

Without --os, print the compiled tables, which are the same on every system. With --os linux, print the
entries of the BPF maps. With --os windows, print the requests that the agent sends to HNS, in order, for new
endpoints that deny everything; the output is always JSON. With --node, the node may run the other system.

Exit status: 0 on success, 2 after an error.`,
		Args: cli.NoArgs,
		RunE: cli.Answering(func(c *cobra.Command, _ []string) error {
			for _, name := range []string{"hns", "hns-mode"} {
				if o.os != string(model.Windows) && c.Flags().Changed(name) {
					return cli.Usagef("--%s: works with --os windows only", name)
				}
			}
			return o.Complete(e.compile(c.Context(), o))
		}),
	}
	o.Register(c)
	o.RegisterPlaceholders(c)
	f := c.Flags()
	f.StringSliceVar(&o.nodes, "node", nil, "compile for these nodes only")
	f.StringVar(&o.os, "os", "", "linux or windows: print what the agent writes on this system")
	f.StringSliceVar(&o.hns, "hns", []string{"13.3"}, "with --os windows: versions of HNS to print requests for")
	f.StringVar(&o.mode, "hns-mode", "l2bridge", "with --os windows: network type of the nodes, l2bridge or overlay")
	cli.RegisterOutput(c, &o.output, "text", "json", "yaml")
	return c
}

func (e env) compile(ctx context.Context, o *compileOptions) error {
	if err := cli.CheckOutput(o.output, "text", "json", "yaml"); err != nil {
		return err
	}
	if !slices.Contains([]string{"", string(model.Linux), string(model.Windows)}, o.os) {
		return cli.Usagef("--os %q: give linux or windows", o.os)
	}
	if o.mode != "l2bridge" && o.mode != "overlay" {
		return cli.Usagef("--hns-mode %q: give l2bridge or overlay", o.mode)
	}
	versions, err := parseVersions(o.hns)
	if err != nil {
		return err
	}
	s, err := o.Open(ctx, e.Stderr)
	if err != nil {
		return err
	}
	nodes, err := o.choose(s)
	if err != nil {
		return err
	}
	out := bufio.NewWriterSize(e.Stdout, 1<<16)
	asJSON := o.output != "text"
	var text bytes.Buffer
	if o.output == "yaml" {
		out = bufio.NewWriter(&text)
	}
	switch model.OS(o.os) {
	case model.Linux:
		err = compileEach(ctx, e, out, nodes, asJSON, func(n *model.Node) (*mapsReport, error) { return reportMaps(s, n) })
	case model.Windows:
		err = compileEach(ctx, e, out, nodes, true, func(n *model.Node) (requestsReports, error) {
			return reportRequests(s, n, versions, o.mode == "overlay"), nil
		})
	default:
		err = compileEach(ctx, e, out, nodes, asJSON, func(n *model.Node) (*nodeReport, error) { return reportNode(s, n), nil })
	}
	if err = errors.Join(err, out.Flush()); err == nil && o.output == "yaml" {
		err = cli.WriteYAML(e.Stdout, text.Bytes())
	}
	return err
}

// nodeAnswer is the answer about one node.
type nodeAnswer interface {
	// elements are the entries that the node adds to a list in JSON.
	elements() []any
	// write prints the node as text. first: nothing was printed before.
	write(out io.Writer, first bool) error
}

// compileEach reports on the nodes in order; it compiles several at a time.
func compileEach[T nodeAnswer](ctx context.Context, e env, out io.Writer, nodes []*model.Node, asJSON bool, report func(*model.Node) (T, error)) error {
	progress := e.Progress("compile", "nodes")
	list := cli.NewJSONList(out, "NodeStates")
	err := cli.InOrder(ctx, len(nodes), func(i int) (T, error) { return report(nodes[i]) }, func(i int, r T) error {
		progress(i+1, len(nodes))
		if !asJSON {
			return r.write(out, i == 0)
		}
		for _, element := range r.elements() {
			if err := list.Add(element); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil && asJSON {
		err = list.Close()
	}
	return err
}

// choose lists the nodes to compile for.
func (o *compileOptions) choose(s *model.Snapshot) ([]*model.Node, error) {
	var nodes []*model.Node
	for _, name := range o.nodes {
		n, ok := s.Nodes.Get(name)
		if !ok {
			return nil, cli.Usagef("--node %s: no such node; there are: %s", name, cli.OrNone(cli.Shorten(nodeNames(s), 5)))
		}
		nodes = append(nodes, n)
	}
	if len(o.nodes) > 0 {
		return nodes, nil
	}
	for _, name := range nodeNames(s) {
		n, _ := s.Nodes.Get(name)
		runs := n.OS
		if runs == "" {
			runs = model.Linux
		}
		if o.os == "" || model.OS(o.os) == runs {
			nodes = append(nodes, n)
		}
	}
	switch {
	case len(nodes) == 0 && s.Nodes.Len() == 0:
		return nil, errors.New("there are no nodes and no pods to compile for; --placeholders adds a placeholder pod for every policy that selects none")
	case len(nodes) == 0:
		return nil, fmt.Errorf("no node runs %s: give one with --node to compile it as if it did", o.os)
	}
	return nodes, nil
}

func nodeNames(s *model.Snapshot) []string {
	var names []string
	for name := range s.Nodes.All() {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

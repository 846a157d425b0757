// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cluster"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy/compile"
)

// denyOptions are the flags of the deny commands.
type denyOptions struct {
	cluster.Source
	bpffs  string
	output string
}

func (e env) denyCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "deny",
		Short: "Show the cluster's deny lists, or the entries that this node enforces",
		Args:  cli.NoArgs,
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(e.denyListCommand(), e.denyCheckCommand())
	return c
}

func (o *denyOptions) register(c *cobra.Command) {
	o.Source.Register(c)
	c.Flags().StringVar(&o.bpffs, "bpffs", "/sys/fs/bpf/isthmus", "the agent's directory of pinned maps, used without --manifests and --kubeconfig (Linux, root)")
	cli.RegisterOutput(c, &o.output, "text", "json", "yaml")
}

func (e env) denyListCommand() *cobra.Command {
	o := &denyOptions{}
	c := &cobra.Command{
		Use:   "list",
		Short: "List the entries of all deny lists, or those in force on this node",
		Args:  cli.NoArgs,
		RunE: cli.Answering(func(c *cobra.Command, _ []string) error {
			all, err := e.denied(c.Context(), o)
			if err != nil {
				return err
			}
			return e.writeDenied(all.entries(), o.output)
		}),
	}
	o.register(c)
	return c
}

func (e env) denyCheckCommand() *cobra.Command {
	o := &denyOptions{}
	c := &cobra.Command{
		Use:   "check ADDRESS...",
		Short: "Report whether packets from addresses are accepted; exit status 1 if any is denied",
		RunE: cli.Answering(func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cli.Usagef("no address to check: give one or more")
			}
			var addresses []netip.Addr
			for _, text := range args {
				a, err := netip.ParseAddr(text)
				if err != nil {
					return cli.Usagef("%q: give an IPv4 or IPv6 address", text)
				}
				addresses = append(addresses, a.Unmap().WithZone(""))
			}
			all, err := e.denied(c.Context(), o)
			if err != nil {
				return err
			}
			var found []deniedEntry
			for _, a := range addresses {
				found = append(found, all.check(a))
			}
			err = e.writeDenied(found, o.output)
			if err == nil && slices.ContainsFunc(found, func(d deniedEntry) bool { return d.Verdict == "denied" }) {
				err = cli.ErrNo
			}
			return err
		}),
	}
	o.register(c)
	return c
}

// deniedEntry is an entry, or an address and its verdict.
type deniedEntry struct {
	Address string `json:"address"`
	// Verdict is denied, exempt (from deny lists), or allowed.
	Verdict string `json:"verdict"`
	// By are the entries that decide.
	By []string `json:"by,omitempty"`
}

// denials are deny lists, read from objects or from maps.
type denials interface {
	entries() []deniedEntry
	check(netip.Addr) deniedEntry
}

// denied reads the cluster that the flags name, or else the maps of this node.
func (e env) denied(ctx context.Context, o *denyOptions) (denials, error) {
	if err := cli.CheckOutput(o.output, "text", "json", "yaml"); err != nil {
		return nil, err
	}
	if len(o.Manifests) == 0 && o.Kubeconfig == "" && o.Context == "" {
		return pinnedDenials(o.bpffs)
	}
	snapshot, err := o.Open(ctx, e.Stderr)
	if err != nil {
		return nil, err
	}
	return &clusterDenials{compile.DenySet(snapshot)}, nil
}

// clusterDenials are the deny lists of objects.
type clusterDenials struct{ set *model.DenySet }

func (c *clusterDenials) entries() []deniedEntry {
	var all []deniedEntry
	if c.set == nil {
		return nil
	}
	for _, l := range c.set.Lists {
		for _, p := range l.Entries {
			if p.IsSingleIP() && !c.set.Denies(p.Addr()) {
				continue // the address of a node, which follows
			}
			all = append(all, deniedEntry{Address: model.EntryText(p), Verdict: "denied", By: []string{l.Origin().String()}})
		}
	}
	for _, a := range c.set.Exempt {
		all = append(all, deniedEntry{Address: a.String(), Verdict: "exempt", By: []string{"address of a node"}})
	}
	return all
}

func (c *clusterDenials) check(a netip.Addr) deniedEntry {
	d := deniedEntry{Address: a.String(), Verdict: "allowed"}
	if c.set == nil {
		return d
	}
	d.By = c.set.Listing(a)
	switch {
	case c.set.Denies(a):
		d.Verdict = "denied"
	case len(d.By) > 0:
		d.Verdict = "exempt"
	}
	return d
}

func (e env) writeDenied(all []deniedEntry, output string) error {
	if output != "text" {
		if all == nil {
			all = []deniedEntry{}
		}
		return cli.EncodeKind(e.Stdout, output, "DenyEntries", map[string]any{"items": all})
	}
	w := tabwriter.NewWriter(e.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ADDRESS\tVERDICT\tBY")
	for _, d := range all {
		fmt.Fprintf(w, "%s\t%s\t%s\n", d.Address, d.Verdict, cli.OrNone(strings.Join(d.By, ", ")))
	}
	return w.Flush()
}

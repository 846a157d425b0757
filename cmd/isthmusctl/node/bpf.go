// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	isthmusv1 "github.com/isthmus-net/isthmus/common/api/isthmus/v1"
	"github.com/isthmus-net/isthmus/linux/mapview"
)

// bpfOptions are the flags of the bpf commands.
type bpfOptions struct {
	shared
	bpffs string
	pods  []string
	limit int
}

// pinnedMaps are the maps of this node.
type pinnedMaps struct {
	*mapview.Maps
	// now and hz are the clock that the programs store in flows.
	now uint32
	hz  int
	// names are the names of the local pods by address, as far as the agent answers.
	names map[netip.Addr]string
}

func (e env) bpfCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "bpf",
		Short: "Translate the BPF maps of this node (Linux)",
		Long: `Print the maps that the BPF programs of this node read and write, with words for their numbers. The
commands read the pinned maps, so they also work while no agent runs; the agent only adds the names of pods. They
run as root and change nothing. docs/operate/bpftool.md shows the same maps with bpftool.`,
		Args: cli.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(e.bpfTables(), e.bpfPeers(), e.bpfVerdicts(), e.bpfConns())
	return c
}

// bpfSubcommand returns a command that prints a part of the maps.
func (e env) bpfSubcommand(c *cobra.Command, flows bool, print func(o *bpfOptions, m *pinnedMaps, args []string) error) *cobra.Command {
	o := &bpfOptions{}
	c.RunE = cli.Answering(func(c *cobra.Command, args []string) error {
		if err := cli.CheckOutput(o.output, "text", "json", "yaml"); err != nil {
			return err
		}
		if o.limit < 0 || o.timeout <= 0 {
			return cli.Usagef("--limit %d, --timeout %s: give a number from 0 on, and a duration above 0", o.limit, o.timeout)
		}
		m, err := readPinnedMaps(o.bpffs, flows)
		if err != nil {
			return err
		}
		m.names = e.podNames(c.Context(), &o.shared)
		for _, remark := range []struct {
			say  bool
			text string
		}{
			{m.Moving, "the agent changed the maps meanwhile: entries of two moments may be mixed"},
			{m.names == nil, "the agent does not answer, so pods have no names: see isthmusctl status"},
		} {
			if remark.say {
				fmt.Fprintln(e.Stderr, "isthmusctl: "+remark.text)
			}
		}
		return print(o, m, args)
	})
	o.registerConnection(c)
	c.Flags().StringVar(&o.bpffs, "bpffs", "/sys/fs/bpf/isthmus", "the agent's directory of pinned maps")
	cli.RegisterOutput(c, &o.output, "text", "json", "yaml")
	return o.registerSelection(c, flows)
}

// registerSelection registers the flags that select entries, for the commands that list many.
func (o *bpfOptions) registerSelection(c *cobra.Command, flows bool) *cobra.Command {
	if c.Name() == "verdicts" || flows {
		c.Flags().StringSliceVar(&o.pods, "pod", nil, "only of these pods: NAMESPACE/NAME, or an address")
	}
	if flows {
		c.Flags().IntVar(&o.limit, "limit", 1000, "print at most this many flows; 0 for all")
	}
	return c
}

// podNames requests the names of the local pods from the agent. It returns nil if no agent answers.
func (e env) podNames(ctx context.Context, s *shared) map[netip.Addr]string {
	var names map[netip.Addr]string
	_ = e.ask(ctx, s, func(ctx context.Context, agent isthmusv1.InspectClient) error { // the maps are enough for an answer
		list, err := agent.ListEndpoints(ctx, &isthmusv1.ListEndpointsRequest{})
		if err != nil {
			return err
		}
		names = make(map[netip.Addr]string)
		for _, p := range list.GetEndpoints() {
			for _, text := range p.GetAddresses() {
				if a, err := netip.ParseAddr(text); err == nil && p.GetPodName() != "" {
					names[a] = p.GetPodNamespace() + "/" + p.GetPodName()
				}
			}
		}
		return nil
	})
	return names
}

// selected returns the addresses of local pods that --pod names, or nil without --pod.
func (o *bpfOptions) selected(m *pinnedMaps) (map[netip.Addr]bool, error) {
	if len(o.pods) == 0 {
		return nil, nil
	}
	found := make(map[netip.Addr]bool)
	for _, pod := range o.pods {
		before := len(found)
		if a, err := netip.ParseAddr(pod); err == nil {
			if _, local := m.Locals[a.Unmap()]; local {
				found[a.Unmap()] = true
			}
		} else if m.names == nil {
			return nil, fmt.Errorf("--pod %s: the agent does not answer, and the maps have no names: give an address of the pod", pod)
		}
		for a, name := range m.names {
			if name == pod {
				found[a] = true
			}
		}
		if len(found) == before {
			return nil, fmt.Errorf("--pod %s: no such pod is attached to this node: isthmusctl bpf tables lists them", pod)
		}
	}
	return found, nil
}

// pod returns the name of the pod with some addresses, or else its addresses.
func (m *pinnedMaps) pod(addresses []netip.Addr) string {
	texts := make([]string, 0, len(addresses))
	for _, a := range addresses {
		if name := m.names[a]; name != "" {
			return name
		}
		texts = append(texts, a.String())
	}
	return strings.Join(texts, ",")
}

// written prints rows with a head as a table.
func (e env) written(head string, rows [][]string) error {
	w := tabwriter.NewWriter(e.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, head)
	for _, r := range rows {
		fmt.Fprintln(w, strings.Join(r, "\t"))
	}
	return w.Flush()
}

func (e env) bpfTables() *cobra.Command {
	c := &cobra.Command{Use: "tables", Args: cli.NoArgs, Short: "List the slots and tables of the pods of this node"}
	type named struct {
		Pod string `json:"pod"`
		mapview.Table
	}
	return e.bpfSubcommand(c, false, func(o *bpfOptions, m *pinnedMaps, _ []string) error {
		all := []named{}
		var rows [][]string
		for _, t := range m.Tables() {
			n := named{m.pod(t.Addresses), t}
			all = append(all, n)
			rows = append(rows, []string{n.Pod, number(t.Slot), number(t.Table), number(t.Epoch), t.Ingress, t.Egress, strconv.Itoa(t.Rows)})
		}
		if o.output != "text" {
			return cli.EncodeKind(e.Stdout, o.output, "BPFTables", map[string]any{"items": all})
		}
		return e.written("POD\tSLOT\tTABLE\tEPOCH\tOTHERS INGRESS\tOTHERS EGRESS\tROWS", rows)
	})
}

func (e env) bpfPeers() *cobra.Command {
	c := &cobra.Command{Use: "peers [ADDRESS...]", Short: "List the classes of addresses, or look up those of some"}
	return e.bpfSubcommand(c, false, func(o *bpfOptions, m *pinnedMaps, args []string) error {
		all := []mapview.Peer{}
		for _, text := range args {
			a, err := netip.ParseAddr(text)
			if err != nil {
				return cli.Usagef("%q: give an IPv4 or IPv6 address", text)
			}
			all = append(all, m.Peer(a.Unmap().WithZone("")))
		}
		if len(args) == 0 {
			all = m.Peers()
		}
		if o.output != "text" {
			return cli.EncodeKind(e.Stdout, o.output, "BPFPeers", map[string]any{"items": all})
		}
		var rows [][]string
		for _, p := range all {
			entry := cli.OrNone(p.Entry)
			if p.Address != "" {
				entry = p.Address + "\t" + entry
			}
			pod := "no"
			if p.Pod {
				pod = "yes"
			}
			rows = append(rows, []string{entry, cli.OrNone(p.Map), number(p.Class), pod})
		}
		head := "ENTRY\tMAP\tCLASS\tPOD"
		if len(args) > 0 {
			head = "ADDRESS\t" + head
		}
		return e.written(head, rows)
	})
}

func (e env) bpfVerdicts() *cobra.Command {
	c := &cobra.Command{Use: "verdicts", Args: cli.NoArgs, Short: "List what the tables of this node allow, by direction and class of the peer"}
	return e.bpfSubcommand(c, false, func(o *bpfOptions, m *pinnedMaps, _ []string) error {
		wanted, err := o.selected(m)
		if err != nil {
			return err
		}
		bySlot, slots := make(map[int]string), make(map[int]bool)
		for _, t := range m.Tables() {
			bySlot[int(t.Slot)] = m.pod(t.Addresses)
			slots[int(t.Slot)] = wanted == nil || slices.ContainsFunc(t.Addresses, func(a netip.Addr) bool { return wanted[a] })
		}
		all := []mapview.Verdict{}
		var rows [][]string
		for _, v := range m.Rows() {
			if !slices.ContainsFunc(v.Slots, func(s int) bool { return slots[s] }) {
				continue
			}
			all = append(all, v)
			pods := make([]string, 0, len(v.Slots))
			for _, s := range v.Slots {
				pods = append(pods, bySlot[s])
			}
			class, peers := number(v.Class), few(v.Peers, 3)
			if v.Others {
				class, peers = "others", "all other peers"
			}
			allowed := v.Allowed
			if v.Problem != "" {
				allowed += " (" + v.Problem + ")"
			}
			rows = append(rows, []string{number(v.Table), few(pods, 2), v.Direction, class, cli.OrNone(peers), allowed})
		}
		if o.output != "text" {
			return cli.EncodeKind(e.Stdout, o.output, "BPFVerdicts", map[string]any{"items": all})
		}
		return e.written("TABLE\tPODS\tDIRECTION\tCLASS\tPEERS\tALLOWED", rows)
	})
}

func (e env) bpfConns() *cobra.Command {
	c := &cobra.Command{Use: "conns", Args: cli.NoArgs, Short: "List the known flows, the latest first, and why their packets pass"}
	return e.bpfSubcommand(c, true, func(o *bpfOptions, m *pinnedMaps, _ []string) error {
		wanted, err := o.selected(m)
		if err != nil {
			return err
		}
		all := m.Flows(m.now, m.hz)
		if wanted != nil {
			all = slices.DeleteFunc(all, func(f mapview.Flow) bool { return !wanted[f.From.Addr()] && !wanted[f.To.Addr()] })
		}
		if o.limit > 0 && len(all) > o.limit {
			fmt.Fprintf(e.Stderr, "isthmusctl: %d of %d flows: give --pod or a higher --limit\n", o.limit, len(all))
			all = all[:o.limit]
		}
		if o.output != "text" {
			return cli.EncodeKind(e.Stdout, o.output, "BPFConns", map[string]any{"items": all})
		}
		var rows [][]string
		for _, f := range all {
			from, to := f.From.String(), f.To.String()
			if f.Client != "" {
				from += " (client " + f.Client + ")"
			}
			if f.Backend != "" {
				to += " (backend " + f.Backend + ")"
			}
			rows = append(rows, []string{f.Protocol, from, to, f.State, f.Next, strings.Join(f.Why, "; "), strings.Join(f.Path, ", "),
				fmt.Sprintf("%d/%d", f.Packets[0], f.Packets[1]), f.Idle.Round(100 * time.Millisecond).String()})
		}
		return e.written("PROTOCOL\tFROM\tTO\tSTATE\tNEXT PACKET\tWHY\tPATH\tPACKETS\tIDLE", rows)
	})
}

func number(n uint32) string { return strconv.FormatUint(uint64(n), 10) }

// few joins the first words of a list, and says how many follow.
func few(all []string, n int) string {
	if len(all) <= n {
		return strings.Join(all, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(all[:n], ", "), len(all)-n)
}

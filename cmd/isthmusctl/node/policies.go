// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	isthmusv1 "github.com/isthmus-net/isthmus/common/api/isthmus/v1"
	"github.com/isthmus-net/isthmus/common/inspect"
	"github.com/isthmus-net/isthmus/common/model"
)

func (e env) policiesCommand() *cobra.Command {
	s := &shared{}
	c := &cobra.Command{
		Use:   "policies",
		Short: "List the policies that apply to pods of this node, with recent decisions",
		Long: `List the policies that select pods of this node in the order of evaluation: how many pods each selects, whether the
node enforces it exactly, and how many new flows it has allowed and denied according to the kept flow events.

Events are limited per pod, and old ones are forgotten: the numbers are lower bounds. Windows reports no flows.`,
		Args: cli.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			b, err := e.dump(c.Context(), s, false)
			if err != nil {
				return err
			}
			return e.writePolicies(b)
		},
	}
	s.registerConnection(c)
	return c
}

// hits counts the events that name a policy.
type hits struct{ allowed, denied int }

// countHits reads the events of a Bundle. It returns nil if there are none to read.
func countHits(b *inspect.Bundle) map[string]hits {
	events := b.Files["events.jsonl"]
	if len(events) == 0 {
		return nil
	}
	found := make(map[string]hits)
	for line := range bytes.Lines(events) {
		var f isthmusv1.FlowEvent
		if protojson.Unmarshal(bytes.TrimSpace(line), &f) != nil || f.GetPolicy() == "" {
			continue
		}
		h := found[f.GetPolicy()]
		switch f.GetVerdict() {
		case model.Allow.String():
			h.allowed++
		case model.Deny.String():
			h.denied++
		}
		found[f.GetPolicy()] = h
	}
	return found
}

// writePolicies prints a table of the policies that apply here.
func (e env) writePolicies(b *inspect.Bundle) error {
	pods := make(map[model.Origin]int)
	for _, p := range b.Endpoints {
		for _, o := range p.Policies {
			pods[o.Key()]++
		}
	}
	inexact := make(map[model.Origin][]string)
	for _, u := range b.About.Unsupported {
		if effect := u.Effect.String(); !slices.Contains(inexact[u.Policy.Key()], effect) {
			inexact[u.Policy.Key()] = append(inexact[u.Policy.Key()], effect)
		}
	}
	found := countHits(b)
	number := func(n int) string {
		if b.About.OS == model.Windows {
			return "not counted"
		}
		return fmt.Sprintf(">= %d", n)
	}
	w := tabwriter.NewWriter(e.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "POLICY\tTIER\tPODS\tENFORCED\tALLOWED\tDENIED")
	for _, p := range snapshotOf(b).SortedPolicies() {
		o := p.Origin.Key()
		if pods[o] == 0 {
			continue
		}
		enforced := "exactly"
		if len(inexact[o]) > 0 {
			enforced = strings.Join(inexact[o], ", ")
		}
		h := found[p.Origin.String()]
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%s\n", p.Origin, p.Tier, pods[o], enforced, number(h.allowed), number(h.denied))
	}
	return w.Flush()
}

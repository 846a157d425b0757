// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/common/analysis/usage"
	isthmusv1 "github.com/isthmus-net/isthmus/common/api/isthmus/v1"
	"github.com/isthmus-net/isthmus/common/inspect"
	"github.com/isthmus-net/isthmus/common/model"
)

func (e env) policiesCommand() *cobra.Command {
	s := &shared{}
	var output string
	c := &cobra.Command{
		Use:   "policies",
		Short: "List the policies that apply to pods of this node, with the decisions of each rule",
		Long: `List the policies that select pods of this node in the order of evaluation: how many pods each selects, whether the
node enforces it exactly, and how many new flows each of its rules has allowed and denied.

On Linux the numbers are exact. Each count begins when the text of its rule changes, and continues when the agent restarts or another
rule changes. Established flows are not decided again, so they do not count. A denied packet that is sent again counts again.
On Windows the numbers are packets, not flows, as VFP counts them, with --rule-counters of the agent; without it there are none. They are
lower bounds: packets of an interval in which an ACL list changed, and of ACLs for several rules, are not counted separately.

Exit status: 0 the agent answered, 2 there is no answer.`,
		Args: cli.NoArgs,
		RunE: cli.Answering(func(c *cobra.Command, _ []string) error {
			if err := cli.CheckOutput(output, "text", "json", "yaml"); err != nil {
				return err
			}
			b, err := e.dump(c.Context(), s, &isthmusv1.DumpRequest{Policies: true})
			if err != nil {
				return err
			}
			return e.writePolicies(b, output)
		}),
	}
	s.registerConnection(c)
	cli.RegisterOutput(c, &output, "text", "json", "yaml")
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

// policyReport is a policy that applies to pods of this node.
type policyReport struct {
	usage.Policy
	// AtLeastAllowed and AtLeastDenied count the kept flow events where the data path does not count rules: lower
	// bounds.
	AtLeastAllowed *int `json:"allowed_at_least,omitempty"`
	AtLeastDenied  *int `json:"denied_at_least,omitempty"`
}

// policiesOf lists the policies that apply here, in the order of evaluation.
func policiesOf(b *inspect.Bundle, counted usage.Policies) []policyReport {
	found := countHits(b)
	all := []policyReport{}
	for _, p := range counted.Items {
		r := policyReport{Policy: p}
		if h := found[p.Policy]; b.Counts == nil && b.About.OS != model.Windows {
			r.AtLeastAllowed, r.AtLeastDenied = &h.allowed, &h.denied
		}
		all = append(all, r)
	}
	return all
}

// writePolicies prints the policies that apply here.
func (e env) writePolicies(b *inspect.Bundle, output string) error {
	counted := usage.Of(b)
	all := policiesOf(b, counted)
	if output != "text" {
		answer := map[string]any{"items": all, "uncounted": counted.Uncounted, "unit": counted.Unit}
		if len(counted.Notes) > 0 {
			answer["notes"] = counted.Notes
		}
		return cli.EncodeKind(e.Stdout, output, "NodePolicies", answer)
	}
	number := func(exact *uint64, least *int) string {
		switch {
		case exact != nil:
			return strconv.FormatUint(*exact, 10)
		case least != nil:
			return fmt.Sprintf(">= %d", *least)
		}
		return "not counted"
	}
	w := tabwriter.NewWriter(e.Stdout, 0, 0, 2, ' ', 0)
	unit := ""
	if b.Counts != nil && b.Counts.Packets {
		unit = " PACKETS"
	}
	fmt.Fprintf(w, "POLICY\tTIER\tPODS\tENFORCED\tALLOWED%s\tDENIED%s\n", unit, unit)
	for _, r := range all {
		enforced := "exactly"
		if len(r.Inexact) > 0 {
			enforced = strings.Join(r.Inexact, ", ")
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%s\n", r.Policy.Policy, r.Tier, r.Pods, enforced, number(r.Allowed, r.AtLeastAllowed), number(r.Denied, r.AtLeastDenied))
		for _, rule := range r.Rules {
			fmt.Fprintf(w, "  %s\t\t\t\t%d\t%d\n", ruleText(rule), rule.Allowed, rule.Denied)
		}
	}
	if err := w.Flush(); err != nil || counted.Uncounted == nil {
		return err
	}
	_, err := fmt.Fprint(e.Stdout, restText(counted.Uncounted, counted.Unit))
	return err
}

func ruleText(r usage.Rule) string {
	text := "isolation, " + r.Direction
	if r.Rule != nil {
		text = fmt.Sprintf("%s rule %d", r.Direction, *r.Rule)
		if r.Name != "" {
			text += " (" + r.Name + ")"
		}
	}
	if r.Shared {
		text += ", not all counted"
	}
	return text
}

func restText(r *usage.Rest, unit string) string {
	return fmt.Sprintf("Other %s: %d where no policy isolates the pod, %d of the node itself or of a pod to itself, %d before policy was known, %d of rules that are gone.\n"+
		"Not counted separately: %d allowed, %d denied; rules without a counter of their own: %d.\n",
		unit, r.Default, r.Node, r.Pending, r.Past, r.Allowed, r.Denied, r.Rules)
}

// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
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
			b, err := e.dump(c.Context(), s, false)
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
	Policy string `json:"policy"`
	Tier   string `json:"tier"`
	// Pods counts the pods of this node that it selects.
	Pods int `json:"pods"`
	// Inexact says what the node does instead of enforcing it exactly.
	Inexact []string `json:"inexact"`
	// Allowed and Denied count new flows by the causes in Rules. They are missing where flows are not counted.
	Allowed *uint64 `json:"allowed,omitempty"`
	Denied  *uint64 `json:"denied,omitempty"`
	// Rules are the causes that the policy can be.
	Rules []ruleReport `json:"rules,omitempty"`
	// AtLeastAllowed and AtLeastDenied count the kept flow events where the data path does not count rules: lower
	// bounds.
	AtLeastAllowed *int `json:"allowed_at_least,omitempty"`
	AtLeastDenied  *int `json:"denied_at_least,omitempty"`
}

// policiesOf lists the policies that apply here, in the order of evaluation.
func policiesOf(b *inspect.Bundle) []policyReport {
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
	all := []policyReport{}
	for _, p := range b.Snapshot().SortedPolicies() {
		o := p.Origin.Key()
		if pods[o] == 0 {
			continue
		}
		r := policyReport{Policy: p.Origin.String(), Tier: p.Tier.String(), Pods: pods[o], Inexact: append([]string{}, inexact[o]...)}
		if h := found[r.Policy]; b.Counts != nil {
			r.count(p, b.Counts)
		} else if b.About.OS != model.Windows {
			r.AtLeastAllowed, r.AtLeastDenied = &h.allowed, &h.denied
		}
		all = append(all, r)
	}
	return all
}

// writePolicies prints the policies that apply here.
func (e env) writePolicies(b *inspect.Bundle, output string) error {
	all := policiesOf(b)
	rest := uncountedOf(b)
	if output != "text" {
		return cli.EncodeKind(e.Stdout, output, "NodePolicies", map[string]any{"items": all, "uncounted": rest, "unit": unitOf(b)})
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
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%s\n", r.Policy, r.Tier, r.Pods, enforced, number(r.Allowed, r.AtLeastAllowed), number(r.Denied, r.AtLeastDenied))
		for _, rule := range r.Rules {
			fmt.Fprintf(w, "  %s\t\t\t\t%d\t%d\n", rule.text(), rule.Allowed, rule.Denied)
		}
	}
	if err := w.Flush(); err != nil || rest == nil {
		return err
	}
	_, err := fmt.Fprint(e.Stdout, rest.text(unitOf(b)))
	return err
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/isthmus-net/isthmus/common/analysis/complete"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy"
)

// explainOptions are the flags of explain.
type explainOptions struct {
	source
	from, to string
	protocol string
	port     string
	hns      []string
	output   string
}

func (e env) explainCommand() *cobra.Command {
	o := &explainOptions{}
	c := &cobra.Command{
		Use:   "explain --from POD|IP --to POD|IP --port N",
		Short: "Say whether a flow is allowed, by which rule at which end, and what would change it",
		Long: `Say whether a new connection is allowed, which tier, policy and rule decide it at each end, on which
node, whether it is enforced exactly there, and which single edits of a policy would turn the verdict.

Ends are namespace/pod, namespace/pod@IP for one of several addresses, or an IP address. The port is a
number, or a name that the destination pod gives to one of its ports.

Exit status: 0 allowed, 1 denied, 2 anything else.`,
		Args: noArgs,
		RunE: answering(func(c *cobra.Command, _ []string) error { return o.complete(e.explain(c, o)) }),
	}
	o.register(c)
	o.registerWitnesses(c)
	f := c.Flags()
	f.StringVar(&o.from, "from", "", "who opens the connection")
	f.StringVar(&o.to, "to", "", "who is connected to")
	f.StringVar(&o.protocol, "protocol", "tcp", "tcp, udp, sctp, icmp, icmpv6 or a number")
	f.StringVarP(&o.port, "port", "p", "", "destination port: a number, or a name of the destination pod")
	f.StringSliceVar(&o.hns, "hns", nil, "versions of HNS to look at for Windows nodes (default all that are supported)")
	registerOutput(c, &o.output, "text", "wide", "json")
	return c
}

func (e env) explain(c *cobra.Command, o *explainOptions) error {
	if err := checkOutput(o.output, "text", "wide", "json"); err != nil {
		return err
	}
	if o.from == "" || o.to == "" {
		return usageError{errors.New("explain: give both --from and --to")}
	}
	versions, err := parseVersions(o.hns)
	if err != nil {
		return err
	}
	s, err := e.open(c.Context(), &o.source)
	if err != nil {
		return err
	}
	flow, err := o.flow(s)
	if err != nil {
		return err
	}
	x := explainFlow(s, flow, versions)
	if o.output == "json" {
		err = encodeJSON(e.stdout, x)
	} else {
		err = x.write(e.stdout, o.output == "wide")
	}
	if err == nil && x.Verdict == model.Deny.String() {
		return errNo
	}
	return err
}

// The answer, as it is printed in JSON.
type (
	flowReport struct {
		From     endReport    `json:"from"`
		To       endReport    `json:"to"`
		Protocol string       `json:"protocol"`
		Port     uint16       `json:"port"`
		Verdict  string       `json:"verdict"`
		Sides    []sideReport `json:"sides"`
	}
	endReport struct {
		Address string `json:"address"`
		Pod     string `json:"pod,omitempty"`
		Node    string `json:"node,omitempty"`
		// Unknown: in a range of pods, but no known pod has it.
		Unknown bool `json:"unknown_pod,omitempty"`
	}
	sideReport struct {
		Direction string             `json:"direction"`
		Pod       string             `json:"pod"`
		Node      string             `json:"node"`
		OS        model.OS           `json:"os"`
		Decision  decisionReport     `json:"decision"`
		Isolating []string           `json:"isolating"`
		Rules     []ruleReport       `json:"rules"`
		Enforced  []enforcementCheck `json:"enforced"`
		Changes   []changeReport     `json:"changes"`
	}
	decisionReport struct {
		Verdict string `json:"verdict"`
		Reason  string `json:"reason"`
		Tier    string `json:"tier,omitempty"`
		Policy  string `json:"policy,omitempty"`
		Rule    *int   `json:"rule,omitempty"`
		Text    string `json:"text"`
	}
	ruleReport struct {
		Policy     string   `json:"policy"`
		Tier       string   `json:"tier"`
		Priority   int      `json:"priority,omitempty"`
		Rule       int      `json:"rule"`
		Name       string   `json:"name,omitempty"`
		Action     string   `json:"action"`
		Role       string   `json:"role"`
		PeerMisses []string `json:"peer_misses,omitempty"`
		PortMisses []string `json:"port_misses,omitempty"`
	}
	changeReport struct {
		Policy string         `json:"policy"`
		Rule   *int           `json:"rule,omitempty"`
		What   string         `json:"what"`
		Misses []string       `json:"misses,omitempty"`
		Then   decisionReport `json:"then"`
	}
)

func reportDecision(d model.Decision) decisionReport {
	r := decisionReport{Verdict: d.Verdict.String(), Text: d.Cause.String(), Reason: reasonText(d.Cause.Reason)}
	if d.Cause.Reason == model.ReasonRule || d.Cause.Reason == model.ReasonIsolated {
		r.Tier, r.Policy = d.Cause.Tier.String(), d.Cause.Origin.String()
	}
	if d.Cause.Reason == model.ReasonRule {
		r.Rule = &d.Cause.Rule
	}
	return r
}

func reasonText(r model.Reason) string {
	return [...]string{"default", "rule", "isolated", "self", "node", "pending"}[r]
}

// explainFlow decides both ends. An end that is no policed pod decides nothing.
func explainFlow(s *model.Snapshot, f namedFlow, versions []hnsVersion) *flowReport {
	x := &flowReport{From: f.from.report(), To: f.to.report(), Protocol: f.Protocol.String(), Port: f.Port,
		Verdict: model.Allow.String(), Sides: []sideReport{}}
	reference := policy.NewEvaluator(s)
	for _, side := range []struct {
		d         model.Direction
		end, peer flowEnd
	}{{model.Egress, f.from, f.to}, {model.Ingress, f.to, f.from}} {
		if side.end.pod == nil {
			continue
		}
		r := explainSide(s, reference.Explain(side.end.pod, side.d, side.peer.addr, f.Protocol, f.Port))
		r.Enforced = checkEnforcement(s, side.end.pod, side.d, side.peer.addr, f.Flow, versions)
		x.Sides = append(x.Sides, r)
		if r.Decision.Verdict == model.Deny.String() {
			x.Verdict = r.Decision.Verdict
		}
	}
	return x
}

func explainSide(s *model.Snapshot, x policy.Explanation) sideReport {
	r := sideReport{Direction: x.Direction.String(), Pod: x.Pod.PodID.String(), Node: x.Pod.Node, OS: complete.OSOf(s, x.Pod),
		Decision: reportDecision(x.Decision), Isolating: []string{}, Rules: []ruleReport{}, Changes: []changeReport{}}
	for _, o := range x.Isolating {
		r.Isolating = append(r.Isolating, o.String())
	}
	for _, t := range x.Rules {
		r.Rules = append(r.Rules, ruleReport{Policy: t.Policy.Origin.String(), Tier: t.Policy.Tier.String(), Priority: t.Policy.Priority,
			Rule: t.Rule.Index, Name: t.Rule.Name, Action: t.Rule.Action.String(), Role: t.Role.String(),
			PeerMisses: t.PeerMisses, PortMisses: t.PortMisses})
	}
	for _, c := range x.Changes {
		change := changeReport{Policy: c.Policy.String(), What: c.What, Misses: c.Misses, Then: reportDecision(c.Then)}
		if c.Rule >= 0 {
			change.Rule = &c.Rule
		}
		r.Changes = append(r.Changes, change)
	}
	return r
}

func (x *flowReport) write(out io.Writer, wide bool) error {
	var b strings.Builder
	at := x.Protocol
	if p, err := model.ParseProtocol(x.Protocol); err == nil && p.HasPorts() {
		at = fmt.Sprintf("%s %d", x.Protocol, x.Port)
	}
	fmt.Fprintf(&b, "%s -> %s %s: %s\n", x.From, x.To, at, x.Verdict)
	if len(x.Sides) == 0 {
		b.WriteString("\nneither end is a pod that policies apply to: nothing is enforced\n")
	}
	for i := range x.Sides {
		x.Sides[i].write(&b, wide)
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// String names the end in a few words.
func (e endReport) String() string {
	switch {
	case e.Pod != "":
		return fmt.Sprintf("%s (%s)", e.Pod, e.Address)
	case e.Node != "":
		return fmt.Sprintf("node %s (%s)", e.Node, e.Address)
	case e.Unknown:
		return e.Address + " (a pod that is not known)"
	}
	return e.Address
}

func (r *sideReport) write(b *strings.Builder, wide bool) {
	fmt.Fprintf(b, "\n%s of %s, on node %s (%s): %s\n", r.Direction, r.Pod, orNone(r.Node), r.OS, r.Decision.Verdict)
	fmt.Fprintf(b, "  because   %s\n", r.Decision.Text)
	if len(r.Isolating) > 0 {
		fmt.Fprintf(b, "  isolated  by %s\n", strings.Join(r.Isolating, ", "))
	}
	r.writeEnforced(b)
	for i, c := range r.Changes {
		if i == 0 {
			other := "allowed"
			if r.Decision.Verdict == model.Allow.String() {
				other = "denied"
			}
			fmt.Fprintf(b, "  would be %s:\n", other)
		}
		where := c.Policy
		if c.Rule != nil {
			where += fmt.Sprintf(" %s rule %d", r.Direction, *c.Rule)
		}
		fmt.Fprintf(b, "    %s: %s (then %s)\n", where, c.What, c.Then.Text)
	}
	if len(r.Rules) == 0 {
		return
	}
	if !wide {
		r.countRules(b)
		return
	}
	b.WriteString("  rules, in the order in which they are asked:\n")
	for _, t := range r.Rules {
		fmt.Fprintf(b, "    %s rule %d, %s, %s: %s\n", t.Policy, t.Rule, t.Tier, t.Action, t.Role)
		for _, m := range slices.Concat(t.PeerMisses, t.PortMisses) {
			fmt.Fprintf(b, "      %s\n", m)
		}
	}
}

// writeEnforced names the platforms that are exact in one line, and the others
// each with its reason.
func (r *sideReport) writeEnforced(b *strings.Builder) {
	var exact []string
	for _, c := range r.Enforced {
		if c.Exact {
			exact = append(exact, c.Platform)
		}
	}
	if len(exact) > 0 {
		fmt.Fprintf(b, "  enforced  exactly by %s\n", strings.Join(exact, ", "))
	}
	for _, c := range r.Enforced {
		if !c.Exact {
			fmt.Fprintf(b, "  enforced  by %s as %s: %s\n", c.Platform, c.Verdict, strings.Join(c.Reasons, "; "))
		}
	}
}

// countRules says in one line what the rules do.
func (r *sideReport) countRules(b *strings.Builder) {
	counts := make(map[string]int)
	for _, t := range r.Rules {
		counts[t.Role]++
	}
	var parts []string
	for _, role := range []policy.Role{policy.Decides, policy.Passes, policy.MayPass, policy.NoMatch, policy.NotAsked} {
		if n := counts[role.String()]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, role))
		}
	}
	fmt.Fprintf(b, "  rules     %d that could apply: %s (-o wide lists them)\n", len(r.Rules), strings.Join(parts, ", "))
}

func encodeJSON(out io.Writer, value any) error {
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(value); err != nil {
		return fmt.Errorf("encode answer: %w", err)
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package query

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/common/analysis/explain"
	"github.com/isthmus-net/isthmus/common/model"
)

// columns is the width of the text of explain.
const columns = 120

// wrapped writes a line that begins with head. It breaks longer text between words, and
// indents what follows by some columns.
func wrapped(b *strings.Builder, head, text string, indent int) {
	width := utf8.RuneCountInString(head)
	b.WriteString(head)
	for i, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case width+1+n > columns && width > indent:
			b.WriteString("\n" + strings.Repeat(" ", indent))
			width = indent
		default:
			b.WriteByte(' ')
			width++
		}
		b.WriteString(word)
		width += n
	}
	b.WriteByte('\n')
}

// writeExplanation prints a report as text.
func writeExplanation(out io.Writer, x *explain.Report, wide bool) error {
	var b strings.Builder
	at := x.Protocol
	if p, err := model.ParseProtocol(x.Protocol); err == nil && p.HasPorts() {
		at = fmt.Sprintf("%s %d", x.Protocol, x.Port)
	} else if err == nil {
		at = p.Words()
	}
	via := ""
	if x.Via != "" {
		via = x.Via + ", a host port of "
	}
	fmt.Fprintf(&b, "%s -> %s%s %s: %s\n", x.From, via, x.To, at, x.Verdict)
	if len(x.DenyLists) > 0 {
		wrapped(&b, "\ndeny lists: ", strings.Join(x.DenyLists, ", ")+"; nodes drop all packets of this source on their uplinks, before policy decides", 2)
	}
	if len(x.Sides)+len(x.DenyLists) == 0 {
		b.WriteString("\nneither end is a pod that policies apply to: nothing is enforced\n")
	}
	denied := 0
	for i := range x.Sides {
		if err := writeSide(&b, &x.Sides[i], wide); err != nil {
			return err
		}
		if x.Sides[i].Decision.Verdict == model.Deny.String() {
			denied++
		}
	}
	if denied == 2 {
		b.WriteString("\nboth ends deny: to open this flow, edit policies of both\n")
	}
	for _, n := range x.Notes {
		b.WriteByte('\n')
		wrapped(&b, "note: ", n, 6)
	}
	_, err := io.WriteString(out, b.String())
	return err
}

func writeSide(b *strings.Builder, r *explain.Side, wide bool) error {
	fmt.Fprintf(b, "\n%s of %s, on node %s (%s): %s\n", r.Direction, r.Pod, cli.OrNone(r.Node), r.OS, r.Decision.Verdict)
	wrapped(b, "  because   ", because(r), 12)
	if len(r.Isolating) > 0 {
		wrapped(b, "  isolated  ", "by "+strings.Join(r.Isolating, ", "), 12)
	}
	if places := definedAt(r.Places, wide); places != "" {
		wrapped(b, "  defined   ", places, 12)
	}
	writeEnforced(b, r.Enforced)
	for _, n := range r.Notes {
		wrapped(b, "  but       ", n, 12)
	}
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
		wrapped(b, "    ", fmt.Sprintf("%s: %s (then %s)", where, c.What, c.Then.Text), 6)
	}
	if len(r.Changes) == 0 && len(r.Rules) > 0 && r.Decision.Verdict == model.Deny.String() {
		wrapped(b, "  ", "no single change of a rule opens it"+neither(r), 4)
	}
	if err := writeSuggestion(b, r); err != nil {
		return err
	}
	writeRules(b, r, wide)
	return nil
}

// definedAt names the file and line of the policy that a decision names, and with wide those of the others.
func definedAt(places []explain.Place, wide bool) string {
	var all []string
	for _, p := range places {
		all = append(all, fmt.Sprintf("%s (%s)", model.Place{File: p.File, Line: p.Line}, p.Policy))
	}
	if len(all) <= 1 || wide {
		return strings.Join(all, ", ")
	}
	return cli.Shorten(all, 1) + " (-o wide)"
}

// neither says why no single change opens a side; "" if there is no short reason.
func neither(r *explain.Side) string {
	if r.Next != nil {
		return ": without the rule that denies it, it is " + r.Next.Text
	}
	rules := r.Rules
	if slices.ContainsFunc(rules, func(t explain.Rule) bool { return len(t.PeerMisses) == 0 || len(t.PortMisses) == 0 }) {
		return ""
	}
	return ": neither the peers nor the ports of any rule match"
}

// because is the reason of a decision. Of several policies that isolate a pod, a Decision names the
// first only.
func because(r *explain.Side) string {
	if r.Decision.Reason == "isolated" && len(r.Isolating) > 1 {
		return strings.Replace(r.Decision.Text, r.Decision.Policy, fmt.Sprintf("%s and %d more", r.Decision.Policy, len(r.Isolating)-1), 1)
	}
	return r.Decision.Text
}

// writeSuggestion prints the rule that opens a side, as YAML and as a command.
func writeSuggestion(b *strings.Builder, r *explain.Side) error {
	s := r.Suggestion
	if s == nil {
		return nil
	}
	fmt.Fprintf(b, "  to allow it, add this rule to %s:\n", s.Policy)
	var text bytes.Buffer
	if err := cli.Encode(&text, "yaml", map[string]any{r.Direction: []explain.SuggestedRule{s.Rule}}); err != nil {
		return err
	}
	for line := range strings.Lines(text.String()) {
		b.WriteString("    " + line)
	}
	b.WriteString("    " + s.Kubectl + "\n")
	if s.Note != "" {
		wrapped(b, "    note: ", s.Note, 10)
	}
	return nil
}

func writeRules(b *strings.Builder, r *explain.Side, wide bool) {
	if len(r.Rules) == 0 {
		return
	}
	if !wide {
		countRules(b, r.Rules)
		return
	}
	b.WriteString("  rules, in the order of evaluation:\n")
	for _, t := range r.Rules {
		fmt.Fprintf(b, "    %s rule %d, %s, %s: %s\n", t.Policy, t.Rule, t.Tier, t.Action, t.Role)
		for _, m := range slices.Concat(t.PeerMisses, t.PortMisses) {
			fmt.Fprintf(b, "      %s\n", m)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package query

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/common/analysis/reach"
	"github.com/isthmus-net/isthmus/common/model"
)

// maxEnds is the number of ends that text names.
const maxEnds = 10

func (r *diffReport) write(out io.Writer, limit int) error {
	var b strings.Builder
	before := ""
	for i, c := range r.Changes {
		if limit > 0 && i == limit {
			fmt.Fprintf(&b, "and %d more: --limit 0 or -o json shows all\n", len(r.Changes)-limit)
			break
		}
		if h := c.heading(); h != before || i == 0 {
			fmt.Fprintf(&b, "%s:\n", h)
			before = h
		}
		c.write(&b)
	}
	for _, s := range r.ServiceChanges {
		s.write(&b)
	}
	for _, d := range r.DenyLists {
		d.write(&b)
	}
	if len(r.TrafficPolicies) > 0 {
		fmt.Fprintf(&b, "internalTrafficPolicy differs: %s\n", cli.Shorten(r.TrafficPolicies, maxEnds))
	}
	if len(r.Services) > 0 {
		fmt.Fprintf(&b, "only in one: %s\n", cli.Shorten(r.Services, maxEnds))
	}
	if len(r.Enforcement) > 0 {
		fmt.Fprintf(&b, "%s differs: %s\n", model.AnnotationEnforcement, cli.Shorten(r.Enforcement, maxEnds))
	}
	for _, only := range r.uncompared() {
		fmt.Fprintf(&b, "not compared, only in the %s: %s\n", only.in, cli.Shorten(only.pods, maxEnds))
	}
	if len(r.Unpoliced) > 0 {
		fmt.Fprintf(&b, "no policy applies: %s\n", cli.Shorten(r.Unpoliced, maxEnds))
	}
	for _, h := range r.hosts() {
		b.WriteString(h + "\n")
	}
	if idle := r.idle(); len(idle) > 0 {
		fmt.Fprintf(&b, "policies that differ and change no verdict: %s\n", cli.Shorten(idle, maxEnds))
	}
	if r.Unlisted > 0 {
		fmt.Fprintf(&b, "not listed: %d that close flows\n", r.Unlisted)
	}
	opens, closes := r.count()
	fmt.Fprintf(&b, "diff: opens=%d closes=%d changes=%d\n", opens, closes, opens+closes)
	_, err := io.WriteString(out, b.String())
	return err
}

// addEnforcement names the namespaces whose pods some nodes observe in one version only. Which nodes do depends on their mode.
func (r *diffReport) addEnforcement(was, is *model.Snapshot) {
	r.Enforcement = []string{}
	for name, ns := range is.Namespaces.All() {
		old := ""
		if n, ok := was.Namespaces.Get(name); ok {
			old = n.Enforcement
		}
		if old != ns.Enforcement {
			r.Enforcement = append(r.Enforcement, fmt.Sprintf("namespace %s %s -> %s", name, cli.OrNone(old), cli.OrNone(ns.Enforcement)))
		}
	}
	slices.Sort(r.Enforcement)
}

// hosts describes the pods that move to the host network or away from it.
func (r *diffReport) hosts() (all []string) {
	if len(r.Leave) > 0 {
		all = append(all, "leave policy, which opens: "+cli.Shorten(r.Leave, maxEnds))
	}
	if len(r.Enter) > 0 {
		all = append(all, "enter policy, which closes: "+cli.Shorten(r.Enter, maxEnds))
	}
	return all
}

// uncompared are the pods that only one version has.
func (r *diffReport) uncompared() (all []onlyIn) {
	for _, only := range []onlyIn{{"first", r.OnlyA}, {"second", r.OnlyB}} {
		if len(only.pods) > 0 {
			all = append(all, only)
		}
	}
	return all
}

type onlyIn struct {
	in   string
	pods []string
}

// idle are the policies that differ and that are responsible for no change.
func (r *diffReport) idle() (all []string) {
	for _, p := range r.Policies {
		if !r.used[p] {
			all = append(all, p)
		}
	}
	return all
}

// count counts the changes, also those that are not listed.
func (r *diffReport) count() (opens, closes int) {
	opens, closes = len(r.Leave), r.Unlisted+len(r.Enter)
	for _, c := range r.Changes {
		if c.Is == "allow" {
			opens++
		} else {
			closes++
		}
	}
	for _, s := range r.ServiceChanges {
		if s.Opens {
			opens++
		} else {
			closes++
		}
	}
	for _, d := range r.DenyLists {
		if d.Opens {
			opens++
		} else {
			closes++
		}
	}
	return opens, closes
}

// sides names the ends whose decision changed.
func (c diffChange) sides() string {
	var all []string
	for _, s := range c.By {
		all = append(all, fmt.Sprintf("%s on %s", s.Direction, s.OS))
	}
	return strings.Join(all, ", ")
}

func (c diffChange) write(b *strings.Builder) {
	fmt.Fprintf(b, "  %s -> %s  %s  (%s)\n    from  %s\n    to    %s\n", c.Was, c.Is, reach.PortsText(c.Ports), c.sides(),
		cli.Shorten(c.from, maxEnds), cli.Shorten(c.to, maxEnds))
	if len(c.Services) > 0 {
		fmt.Fprintf(b, "    also  by Service %s\n", cli.Shorten(c.Services, maxEnds))
	}
}

// writeMarkdown writes a report for the description of a pull request or a comment.
func (r *diffReport) writeMarkdown(out io.Writer, limit int) error {
	var b strings.Builder
	opens, closes := r.count()
	if opens+closes == 0 {
		b.WriteString("### No verdict changes\n")
	} else {
		fmt.Fprintf(&b, "### Network policy: %d changes open flows, %d close flows\n", opens, closes)
	}
	if r.Unlisted > 0 {
		fmt.Fprintf(&b, "\nNot listed: %d that close flows\n", r.Unlisted)
	}
	before := ""
	for i, c := range r.Changes {
		if limit > 0 && i == limit {
			fmt.Fprintf(&b, "\nand %d more\n", len(r.Changes)-limit)
			break
		}
		if h := c.heading(); h != before || i == 0 {
			fmt.Fprintf(&b, "\n**%s**\n\n| | ports | from | to | decided at |\n|---|---|---|---|---|\n", cell(h))
			before = h
		}
		what := "closes"
		if c.Is == "allow" {
			what = "**opens**"
		}
		to := cli.Shorten(c.to, maxEnds)
		if len(c.Services) > 0 {
			to += "; also by Service " + cli.Shorten(c.Services, maxEnds)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", what, cell(reach.PortsText(c.Ports)), cell(cli.Shorten(c.from, maxEnds)), cell(to), cell(c.sides()))
	}
	r.writeServicesMarkdown(&b)
	for _, d := range r.DenyLists {
		d.writeMarkdown(&b)
	}
	if len(r.TrafficPolicies) > 0 {
		fmt.Fprintf(&b, "\ninternalTrafficPolicy differs: %s\n", cell(cli.Shorten(r.TrafficPolicies, maxEnds)))
	}
	if len(r.Services) > 0 {
		fmt.Fprintf(&b, "\nOnly in one version: %s\n", cell(cli.Shorten(r.Services, maxEnds)))
	}
	if len(r.Enforcement) > 0 {
		fmt.Fprintf(&b, "\n%s differs: %s\n", model.AnnotationEnforcement, cell(cli.Shorten(r.Enforcement, maxEnds)))
	}
	for _, only := range r.uncompared() {
		fmt.Fprintf(&b, "\nNot compared, only in the %s version: %s\n", only.in, cell(cli.Shorten(only.pods, maxEnds)))
	}
	if len(r.Unpoliced) > 0 {
		fmt.Fprintf(&b, "\nNo policy applies: %s\n", cell(cli.Shorten(r.Unpoliced, maxEnds)))
	}
	for _, h := range r.hosts() {
		fmt.Fprintf(&b, "\n%s\n", cell(strings.ToUpper(h[:1])+h[1:]))
	}
	if idle := r.idle(); len(idle) > 0 {
		fmt.Fprintf(&b, "\nPolicies that differ and change no verdict: %s\n", cell(cli.Shorten(idle, maxEnds)))
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// cell escapes the characters that mean something in a table of Markdown.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "*", `\*`, "_", `\_`, "`", "\\`", "<", "&lt;", "[", `\[`, "\n", " ").Replace(text)
}

// SPDX-License-Identifier: Apache-2.0

package page

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/analysis/usage"
	"github.com/isthmus-net/isthmus/common/model"
)

// counted is what nodes report about policies; without a Total nothing is known.
type counted struct {
	*usage.Total
	// Why says why nothing is known.
	Why string
}

// counted returns what nodes report about the policies of a namespace, or of all if it is empty. The error is one of Failed.
func (h *Handler) counted(ctx context.Context, namespace string) (*counted, error) {
	if h.config.Usage == nil {
		return &counted{Why: "Numbers are not available: this page has no reports of agents."}, nil
	}
	t, err := h.config.Usage(ctx, namespace)
	if _, ok := refused(err); ok {
		return nil, err
	}
	if err != nil {
		return &counted{Why: "Numbers are not available: " + err.Error()}, nil
	}
	return &counted{Total: t}, nil
}

// policy returns the numbers of a policy.
func (c *counted) policy(o model.Origin) usage.PolicyTotal { return c.total(o.String()) }

func (c *counted) total(policy string) usage.PolicyTotal {
	if c.Total == nil || c.Policies[policy] == nil {
		return usage.PolicyTotal{}
	}
	return *c.Policies[policy]
}

// system returns the nodes of an operating system; nil if there are none.
func (c *counted) system(os model.OS) *usage.System {
	i := slices.IndexFunc(c.Systems, func(s usage.System) bool { return s.OS == os })
	if i < 0 {
		return nil
	}
	return &c.Systems[i]
}

// cell writes a number with the nodes that it is from, and those that are missing.
func (c *counted) cell(os model.OS, n usage.Number) string {
	if c.Total == nil {
		return "not known"
	}
	s := c.system(os)
	switch {
	case s == nil:
		return "no such nodes"
	case s.Counted == 0:
		return "not counted"
	}
	missing, silent := "", len(s.Missing)
	if x := c.system(usage.Unknown); x != nil {
		silent += len(x.Missing) // may be such nodes
	}
	if silent > 0 {
		missing = fmt.Sprintf(", %d missing", silent)
	}
	if n.Nodes == 0 {
		return "no pods" + missing
	}
	least := ""
	if n.Shared || os == model.Windows {
		least = "at least "
	}
	return fmt.Sprintf("%s%d allowed, %d denied (%s%s)", least, n.Allowed, n.Denied, plural(n.Nodes, "node"), missing)
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// Statements says what numbers count, of how many nodes they are, and what they lack.
func (c *counted) Statements() (all []string) {
	if c.Total == nil {
		return []string{c.Why}
	}
	for i := range c.Systems {
		s := &c.Systems[i]
		of := fmt.Sprintf("numbers of %d of %s", s.Counted, plural(s.Nodes, "node"))
		switch s.OS {
		case model.Linux:
			all = append(all, "Linux nodes count new flows: "+of+". Packets of established flows do not count. A denied packet that is sent again counts again.")
		case model.Windows:
			all = append(all, "Windows nodes count packets, not flows, if their agents have --rule-counters: "+of+". The numbers are lower bounds: packets are not counted separately "+
				"in an interval in which an ACL list changed, or by an ACL for several rules.")
		default:
			all = append(all, fmt.Sprintf("Nodes whose operating system is not known: %d, and %s.", s.Nodes, of))
		}
		if s.Counted > 0 {
			all = append(all, fmt.Sprintf("Not counted separately on these nodes: %d allowed, %d denied.%s", s.Allowed, s.Denied, others(s.Rest)))
		}
		if text := missingText(s.Missing); text != "" {
			all = append(all, "Without numbers: "+text+".")
		}
	}
	return all
}

// others says what no policy has decided.
func others(r *usage.Rest) string {
	if r == nil {
		return ""
	}
	return fmt.Sprintf(" By no policy: %d where none isolates the pod, %d of the node itself or of a pod to itself, %d before policy was known, %d by rules that are gone.",
		r.Default, r.Node, r.Pending, r.Past)
}

// maxMissing bounds the nodes that a page names.
const maxMissing = 10

// missingText names nodes without numbers, and why. Names may be hidden.
func missingText(all []usage.Missing) string {
	var texts []string
	hidden := 0
	for _, m := range all {
		switch {
		case m.Node == "":
			hidden++
		case len(texts) < maxMissing:
			texts = append(texts, shorten(m.Node, 100)+" ("+shorten(m.Why, 160)+")")
		}
	}
	if over := len(all) - hidden - len(texts); over > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", over))
	}
	if hidden > 0 {
		texts = append(texts, plural(hidden, "node"))
	}
	return strings.Join(texts, "; ")
}

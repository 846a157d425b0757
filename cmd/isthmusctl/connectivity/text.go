// SPDX-License-Identifier: Apache-2.0

package connectivity

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/common/connectivity"
)

// writeReport prints a table of phases, then each failure, and a line of totals.
func writeReport(out io.Writer, r *connectivity.Report) error {
	return cli.Plain(out, func(out io.Writer) error {
		if err := writePhases(out, r); err != nil {
			return err
		}
		for _, p := range r.Pods {
			if p.Missing != "" {
				fmt.Fprintf(out, "\nFAILED pod %s on node %s: %s\n", p.Name, p.Node, flat(p.Missing))
			}
		}
		var said []string
		for _, f := range r.Flows {
			if f.Passed {
				continue
			}
			fmt.Fprintf(out, "\nFAILED %s: %s: expected %s: %s (%d attempts)\n", f.Phase, &f.Flow, f.Expected, flat(f.Wrong), f.Attempts)
			if len(f.Why) > 0 && slices.Equal(f.Why, said) {
				fmt.Fprintln(out, "  the same as above")
				continue
			}
			said = f.Why
			for _, line := range f.Why {
				fmt.Fprintf(out, "  %s\n", flat(line))
			}
		}
		if r.Failed > 0 {
			fmt.Fprintln(out)
		}
		_, err := fmt.Fprintf(out, "connectivity: nodes=%d pods=%d flows=%d passed=%d failed=%d\n", len(r.Nodes), r.Running(), len(r.Flows), r.Passed, r.Failed)
		return err
	})
}

// flat returns a text of a node as one line.
func flat(text string) string { return strings.Join(strings.Fields(text), " ") }

// row counts the flows of one kind in one phase.
type row struct{ flows, passed int }

func writePhases(out io.Writer, r *connectivity.Report) error {
	counts := make(map[[4]string]*row)
	var order [][4]string
	for _, f := range r.Flows {
		family := "IPv4"
		switch {
		case f.Kind == connectivity.ToName:
			family = "DNS"
		case strings.Contains(f.Flow.Target.Host, ":"):
			family = "IPv6"
		}
		key := [4]string{f.Phase, f.Kind, f.Flow.Protocol().String() + " " + family, f.Expected}
		if counts[key] == nil {
			counts[key] = &row{}
			order = append(order, key)
		}
		counts[key].flows++
		if f.Passed {
			counts[key].passed++
		}
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "PHASE\tTO\tBY\tEXPECTED\tFLOWS\tPASSED\tFAILED")
	for _, key := range order {
		c := counts[key]
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%d\t%d\n", key[0], key[1], key[2], key[3], c.flows, c.passed, c.flows-c.passed)
	}
	return w.Flush()
}

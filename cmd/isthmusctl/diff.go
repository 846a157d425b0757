// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/isthmus-net/isthmus/common/model"
)

// diffOptions are the flags of diff.
type diffOptions struct {
	source
	output string
	limit  int
}

func (e env) diffCommand() *cobra.Command {
	o := &diffOptions{}
	c := &cobra.Command{
		Use:   "diff DIR_A DIR_B",
		Short: "List every verdict that differs between two directories of manifests",
		Long: `List every flow whose verdict is another with the manifests of DIR_B than with those of DIR_A: as sets
of pods, nodes and address ranges by sets of ports, complete and without samples, apart by the operating system of
the node that enforces the difference. Pods that only one directory has are named, and not compared.

Exit status: 0 no verdict differs, 1 some do, 2 anything else.`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usageError{fmt.Errorf("give two directories of manifests: see %s --help", c.CommandPath())}
			}
			return nil
		},
		RunE: answering(func(c *cobra.Command, args []string) error { return e.diff(c.Context(), o, args[0], args[1]) }),
	}
	o.registerSkipBad(c)
	registerOutput(c, &o.output, "text", "json")
	c.Flags().IntVar(&o.limit, "limit", 200, "how many differences text shows for each system; 0 means all")
	return c
}

func (e env) diff(ctx context.Context, o *diffOptions, a, b string) error {
	if err := checkOutput(o.output, "text", "json"); err != nil {
		return err
	}
	if o.limit < 0 {
		return usageError{fmt.Errorf("--limit %d: give 0 or more", o.limit)}
	}
	was, problems, err := readDir(ctx, a)
	if err == nil {
		err = e.tell(problems, o.skipBad)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", a, err)
	}
	is, problems, err := readDir(ctx, b)
	if err == nil {
		problems.assumed = place(&was, &is)
		err = e.tell(problems, o.skipBad)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", b, err)
	}
	r := compareSnapshots(was.Snapshot(), is.Snapshot())
	for _, u := range r.OverBlocked {
		fmt.Fprintf(e.stderr, "isthmusctl: compared as it is enforced, which is less than the policies allow: %s\n", u)
	}
	if o.output == "json" {
		err = encodeJSON(e.stdout, r)
	} else {
		err = r.write(e.stdout, o.limit)
	}
	if err == nil && len(r.Changes) > 0 {
		return errNo
	}
	return err
}

// The answer, as it is printed in JSON.
type (
	diffReport struct {
		Changes []diffChange `json:"changes"`
		// OnlyA and OnlyB are the pods that are not compared.
		OnlyA       []string `json:"pods_only_in_a"`
		OnlyB       []string `json:"pods_only_in_b"`
		OverBlocked []string `json:"over_blocked"`
	}
	// diffChange says that flows from all of From to all of To on all of Ports
	// changed, except for those of a pod to itself.
	diffChange struct {
		From  []string  `json:"from"`
		To    []string  `json:"to"`
		Ports []portSet `json:"ports"`
		Was   string    `json:"was"`
		Is    string    `json:"is"`
		// By are the sides whose decision changed.
		By []diffSide `json:"by"`
	}
	diffSide struct {
		Direction string   `json:"direction"`
		OS        model.OS `json:"os"`
	}
)

func compareSnapshots(was, is *model.Snapshot) *diffReport {
	s := newSurvey(was, is)
	r := &diffReport{Changes: s.changes(), OnlyA: s.only(0), OnlyB: s.only(1), OverBlocked: []string{}}
	for _, w := range s.variants {
		for _, u := range w.overBlocked {
			r.OverBlocked = append(r.OverBlocked, u.Construct+": "+u.Reason)
		}
	}
	return r
}

// only lists the pods that policies apply to in one variant alone.
func (s *survey) only(w int) []string {
	names := []string{}
	for id := range s.variants[w].home {
		if _, ok := s.variants[1-w].home[id]; !ok {
			names = append(names, id.String())
		}
	}
	slices.Sort(names)
	return names
}

// systems are the operating systems of the sides that changed, in order.
func (c diffChange) systems() []model.OS {
	var all []model.OS
	for _, s := range c.By {
		if !slices.Contains(all, s.OS) {
			all = append(all, s.OS)
		}
	}
	return all
}

func (r *diffReport) write(out io.Writer, limit int) error {
	var b strings.Builder
	for _, os := range []model.OS{model.Linux, model.Windows} {
		shown := 0
		for _, c := range r.Changes {
			if !slices.Contains(c.systems(), os) {
				continue
			}
			if shown == 0 {
				fmt.Fprintf(&b, "enforced on %s:\n", os)
			}
			if shown++; limit == 0 || shown <= limit {
				c.write(&b, os)
			}
		}
		if limit > 0 && shown > limit {
			fmt.Fprintf(&b, "  and %d more: --limit 0 or -o json shows all\n", shown-limit)
		}
	}
	for _, only := range []struct {
		in   string
		pods []string
	}{{"first", r.OnlyA}, {"second", r.OnlyB}} {
		if len(only.pods) > 0 {
			fmt.Fprintf(&b, "not compared, only in the %s: %s\n", only.in, shorten(only.pods, 10))
		}
	}
	fmt.Fprintf(&b, "diff: changes=%d\n", len(r.Changes))
	_, err := io.WriteString(out, b.String())
	return err
}

func (c diffChange) write(b *strings.Builder, os model.OS) {
	var sides []string
	for _, s := range c.By {
		if s.OS == os {
			sides = append(sides, s.Direction)
		}
	}
	fmt.Fprintf(b, "  %s -> %s  %s  (%s)\n    from  %s\n    to    %s\n", c.Was, c.Is, portsText(c.Ports), strings.Join(sides, ", "),
		shorten(c.From, 10), shorten(c.To, 10))
}

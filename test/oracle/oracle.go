// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/analysis/engine"
	"github.com/isthmus-net/isthmus/common/model"
)

// Answer is what an oracle says of a flow.
type Answer uint8

// The answers.
const (
	Denied Answer = iota
	Allowed
	// Failed: the engine returned an error instead.
	Failed
)

// String returns a word.
func (a Answer) String() string { return [...]string{"deny", "allow", "no answer"}[a] }

func answer(v model.Verdict) Answer {
	if v == model.Allow {
		return Allowed
	}
	return Denied
}

// Oracle is a policy engine of another project.
type Oracle interface {
	// Name is what the engine is called.
	Name() string
	// Models reports whether the engine has a notion of the case's kinds of
	// policies and of what the flow is; others are not asked, and not counted.
	Models(c *Case, f model.Flow) bool
	// Ask returns an answer for each flow.
	Ask(c *Case, flows []model.Flow) ([]Answer, error)
	// Deviations are the points where the engine is known to differ.
	Deviations() []Deviation
	// Close releases what the oracle holds.
	Close() error
}

// Deviation is a known difference between an engine and the API. At least one
// of the functions is set; if both are, both must hold.
type Deviation struct {
	// Name is the heading in docs/oracles.md.
	Name string
	// Is reports whether the disagreement is one that the deviation is about.
	Is func(c *Case, d Disagreement) bool
	// Restate returns the case written so that it means the same for flows
	// between the addresses of f, and the engine does not meet its deviation.
	// The engine must then agree.
	Restate func(c *Case, f model.Flow) *Case
}

// Disagreement is a flow and two answers.
type Disagreement struct {
	model.Flow
	Ours, Theirs Answer
}

// Tally counts what a comparison found.
type Tally struct {
	Flows, Agree int
	// Explained counts disagreements by the name of the deviation.
	Explained map[string]int
	// Unexplained has a line for each other disagreement.
	Unexplained []string
}

// String is the line of the report.
func (t *Tally) String() string {
	explained := 0
	for _, n := range t.Explained {
		explained += n
	}
	return fmt.Sprintf("flows=%d agree=%d explained=%d", t.Flows, t.Agree, explained)
}

// Details lists how many disagreements each deviation explains.
func (t *Tally) Details() string {
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(t.Explained)) {
		lines = append(lines, fmt.Sprintf("  %d: %s", t.Explained[name], name))
	}
	return strings.Join(lines, "\n")
}

// several is counted where it takes more than one restatement.
const several = "several of these together"

// Verdicts returns Isthmus's answers: of the reference evaluator, and of the
// compiled tables, which must agree.
func (c *Case) Verdicts() ([]Answer, error) {
	cluster := engine.Compile(c.Snapshot, nil)
	reference, tables := &engine.Evaluate{}, &engine.Tables{}
	for _, e := range []engine.Engine{reference, tables} {
		if err := e.Load(cluster); err != nil {
			return nil, err
		}
	}
	out := make([]Answer, len(c.Flows))
	for i, f := range c.Flows {
		want, err := cluster.Decide(reference, f)
		if err != nil {
			return nil, err
		}
		got, err := cluster.Decide(tables, f)
		if err != nil {
			return nil, err
		}
		if got != want {
			return nil, fmt.Errorf("case %s: %s: evaluator says %s, tables say %s", c.Name, f, want, got)
		}
		out[i] = answer(want)
	}
	return out, nil
}

// Compare asks an oracle about the flows of a case, of which verdicts are
// Isthmus's answers, and counts.
func (t *Tally) Compare(o Oracle, c *Case, verdicts []Answer) error {
	var flows []model.Flow
	var ours []Answer
	for i, f := range c.Flows {
		if o.Models(c, f) {
			flows, ours = append(flows, f), append(ours, verdicts[i])
		}
	}
	if len(flows) == 0 {
		return nil
	}
	theirs, err := o.Ask(c, flows)
	if err != nil {
		return fmt.Errorf("case %s: %s: %w", c.Name, o.Name(), err)
	}
	t.Flows += len(flows)
	between := make(map[[2]netip.Addr][]Disagreement)
	for i, f := range flows {
		if ours[i] == theirs[i] {
			t.Agree++
			continue
		}
		pair := [2]netip.Addr{f.Src, f.Dst}
		between[pair] = append(between[pair], Disagreement{f, ours[i], theirs[i]})
	}
	for _, all := range between {
		if err := t.explain(o, c, all); err != nil {
			return fmt.Errorf("case %s: %s: %w", c.Name, o.Name(), err)
		}
	}
	return nil
}

// explain finds the deviations behind disagreements between one pair of
// addresses. What the flow does not show by itself must vanish when the case
// is written so that the engine meets none of its deviations; it is counted
// for the first restatement that is enough.
func (t *Tally) explain(o Oracle, c *Case, all []Disagreement) error {
	all = t.evident(o, c, all, "")
	if len(all) == 0 {
		return nil
	}
	restated := c
	for _, d := range o.Deviations() {
		if d.Restate != nil {
			restated = d.Restate(restated, all[0].Flow)
		}
	}
	explained, rest, err := compareRestated(o, restated, all)
	if err != nil {
		return err
	}
	for _, x := range t.evident(o, c, rest, several) {
		t.Unexplained = append(t.Unexplained, fmt.Sprintf("case %s: %s: ours %s, %s %s", c.Name, x.Flow, x.Ours, o.Name(), x.Theirs))
	}
	for _, d := range o.Deviations() {
		if d.Restate == nil || len(explained) == 0 {
			continue
		}
		about, others := split(explained, func(x Disagreement) bool { return d.Is == nil || d.Is(c, x) })
		enough, more, err := compareRestated(o, d.Restate(c, explained[0].Flow), about)
		if err != nil {
			return err
		}
		t.count(d.Name, len(enough))
		explained = append(others, more...)
	}
	t.count(several, len(explained))
	return nil
}

// evident counts what flows show by themselves, under the name if one is
// given, and returns the rest.
func (t *Tally) evident(o Oracle, c *Case, all []Disagreement, name string) []Disagreement {
	for _, d := range o.Deviations() {
		if d.Restate == nil {
			var shown []Disagreement
			shown, all = split(all, func(x Disagreement) bool { return d.Is(c, x) })
			t.count(cmp.Or(name, d.Name), len(shown))
		}
	}
	return all
}

func split(all []Disagreement, first func(Disagreement) bool) (yes, no []Disagreement) {
	for _, x := range all {
		if first(x) {
			yes = append(yes, x)
		} else {
			no = append(no, x)
		}
	}
	return yes, no
}

// compareRestated divides disagreements into those that a restated case ends and the
// rest, with the answers of that case. They may differ from before.
func compareRestated(o Oracle, c *Case, all []Disagreement) (agree, rest []Disagreement, err error) {
	if len(all) == 0 {
		return nil, nil, nil
	}
	flows := make([]model.Flow, len(all))
	for i, x := range all {
		flows[i] = x.Flow
	}
	answers, err := o.Ask(c, flows)
	if err != nil {
		return nil, nil, fmt.Errorf("restated: %w", err)
	}
	for i, x := range all {
		if answers[i] == x.Ours {
			agree = append(agree, x)
			continue
		}
		x.Theirs = answers[i]
		rest = append(rest, x)
	}
	return agree, rest, nil
}

func (t *Tally) count(name string, n int) {
	if n == 0 {
		return
	}
	if t.Explained == nil {
		t.Explained = make(map[string]int)
	}
	t.Explained[name] += n
}

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

// Answer is the verdict of an oracle about a flow.
type Answer uint8

// The answers.
const (
	Denied Answer = iota
	Allowed
	// Failed: the engine returned an error instead.
	Failed
)

// String returns the answer as one word.
func (a Answer) String() string { return [...]string{"deny", "allow", "no answer"}[a] }

func answer(v model.Verdict) Answer {
	if v == model.Allow {
		return Allowed
	}
	return Denied
}

// Oracle is a policy engine of another project.
type Oracle interface {
	// Name is the name of the engine.
	Name() string
	// Models reports whether the engine implements the case's kinds of policies and the protocol of
	// the flow. Other flows are neither evaluated nor counted.
	Models(c *Case, f model.Flow) bool
	// Ask returns an answer for each flow.
	Ask(c *Case, flows []model.Flow) ([]Answer, error)
	// Deviations are the known differences between the engine and the API.
	Deviations() []Deviation
	// Close releases what the oracle holds.
	Close() error
}

// Deviation is a known difference between an engine and the API. At least one of the functions is
// set. If both are set, both must hold.
type Deviation struct {
	// Name is the heading in docs/oracles.md.
	Name string
	// Is reports whether the deviation explains the disagreement.
	Is func(c *Case, d Disagreement) bool
	// Restate returns a case with the same meaning for flows between the addresses of f, in which
	// the engine does not deviate. The engine must then agree.
	Restate func(c *Case, f model.Flow) *Case
}

// Disagreement is a flow with two different answers.
type Disagreement struct {
	model.Flow
	Ours, Theirs Answer
}

// Tally counts the results of a comparison.
type Tally struct {
	Flows, Agree int
	// Explained counts disagreements by deviation.
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

// several is the name of disagreements that disappear only after several restatements.
const several = "several of these together"

// Verdicts returns the verdicts of Isthmus. The reference evaluator and the compiled tables must
// agree on them.
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

// Compare compares the answers of an oracle with verdicts, the answers of Isthmus, and counts.
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

// explain finds the deviations behind disagreements between one pair of addresses. A disagreement
// that is not evident from the flow must disappear when the case is restated. It counts for the
// first restatement that suffices.
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

// evident counts disagreements that are evident from the flow, under the given name if it is set.
// It returns the others.
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

// compareRestated divides disagreements into those that disappear in a restated case, and the
// others. The others have the answers of that case, which may differ from before.
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

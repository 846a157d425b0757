// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
)

// figure holds the value of one quantity in every round.
type figure []float64

func (f figure) median() float64 {
	sorted := slices.Sorted(slices.Values(f))
	return sorted[len(sorted)/2]
}

func (f figure) least() float64 { return slices.Min(f) }

// against returns f's change relative to a floor that was measured in the same rounds: the medians over
// the rounds of the ratio and of the difference. A disturbance that outlasts a round affects both.
func (f figure) against(floor figure) (ratio, difference float64) {
	ratios, differences := make(figure, len(f)), make(figure, len(f))
	for i, v := range f {
		ratios[i], differences[i] = v/floor[i], v-floor[i]
	}
	return ratios.median(), differences.median()
}

// goal is the highest accepted ratio of a figure to its floor, or the highest difference. The zero goal
// accepts every value.
type goal struct{ times, more float64 }

func (g goal) String() string {
	switch {
	case g.times > 0:
		return fmt.Sprintf("<=%.2fx", g.times)
	case g.more > 0:
		return fmt.Sprintf("<=+%g", g.more)
	}
	return ""
}

// met reports whether a result keeps the goal. A ratio counts as it is printed, with two digits: no measurement finds
// exactly 1.
func (g goal) met(ratio, difference float64) bool {
	if g.times > 0 {
		return math.Round(ratio*100) <= math.Round(g.times*100)
	}
	return g.more == 0 || difference <= g.more
}

// row is one figure, compared with another figure of the same run.
type row struct {
	Part string `json:"part"`
	Path string `json:"path"`
	Unit string `json:"unit"`
	// Value is the median over the rounds, Least the least.
	Value float64 `json:"value"`
	Least float64 `json:"least"`
	// Floor names the figure that Value is compared with, FloorValue is the median of that figure. Ratio
	// and Difference are the medians of those of each round.
	Floor      string  `json:"floor,omitempty"`
	FloorValue float64 `json:"floor_value,omitempty"`
	Ratio      float64 `json:"ratio,omitempty"`
	Difference float64 `json:"difference,omitempty"`
	Goal       string  `json:"goal,omitempty"`
	// OK is nil without a goal.
	OK *bool `json:"ok,omitempty"`

	figure figure
}

func newRow(part, path, unit string, f figure) row {
	return row{Part: part, Path: path, Unit: unit, Value: f.median(), Least: f.least(), figure: f}
}

// beside adds a floor to a row, unless the floor is the row itself.
func (r row) beside(name string, f figure, g goal) row {
	if name == r.Path {
		return r
	}
	r.Floor, r.FloorValue, r.Goal = name, f.median(), g.String()
	r.Ratio, r.Difference = r.figure.against(f)
	if r.Goal != "" {
		ok := g.met(r.Ratio, r.Difference)
		r.OK = &ok
	}
	return r
}

// missed returns an error that lists missed goals.
func missed(rows []row) (err error) {
	for _, r := range rows {
		if r.OK != nil && !*r.OK {
			err = errors.Join(err, fmt.Errorf("%s, %s: %.2f x %s, the goal is %s", r.Part, r.Path, r.Ratio, r.Floor, r.Goal))
		}
	}
	return err
}

// table prints rows as text.
func table(rows []row, out io.Writer) {
	part := ""
	for _, r := range rows {
		if r.Part != part {
			part = r.Part
			fmt.Fprintf(out, "\n%s\n%-50s %10s %10s %-10s  %-30s %10s %7s %8s %8s %s\n",
				part, "path", "value", "least", "unit", "floor", "", "ratio", "diff", "goal", "ok")
		}
		fmt.Fprintf(out, "%-50s %10.*f %10.*f %-10s  ", r.Path, digits(r.Value), r.Value, digits(r.Least), r.Least, r.Unit)
		if r.Floor == "" {
			fmt.Fprintln(out)
			continue
		}
		ok := ""
		if r.OK != nil {
			ok = map[bool]string{true: "yes", false: "NO"}[*r.OK]
		}
		fmt.Fprintf(out, "%-30s %10.*f %7.2f %+8.1f %8s %s\n", r.Floor, digits(r.FloorValue), r.FloorValue, r.Ratio, r.Difference, r.Goal, ok)
	}
}

// digits returns how many digits of a value are printed after the decimal point.
func digits(v float64) int {
	if v >= 1000 {
		return 0
	}
	return 1
}

// jsonLines writes one object a line.
func jsonLines(rows []row, out io.Writer) error {
	enc := json.NewEncoder(out)
	for _, r := range rows {
		if err := enc.Encode(r); err != nil {
			return err
		}
	}
	return nil
}

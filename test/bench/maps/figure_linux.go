// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
)

// figure is one line of output. Goal is an upper bound in the same unit.
type figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	Goal  float64 `json:"goal,omitempty"`
}

// report writes figures as a table, with the share of the goal that each reaches, or as JSON.
func report(figures []figure, w io.Writer, asJSON bool) error {
	if asJSON {
		out := json.NewEncoder(w)
		for _, f := range figures {
			if err := out.Encode(f); err != nil {
				return err
			}
		}
		return nil
	}
	fmt.Fprintf(w, "\nmaps and attachment\n%-78s %10s %-4s %7s %8s %s\n", "", "value", "unit", "ratio", "goal", "ok")
	for _, f := range figures {
		line := fmt.Sprintf("%-78s %10.2f %-4s", f.Name, f.Value, f.Unit)
		if f.Goal > 0 {
			line += fmt.Sprintf(" %7.2f %8g %s", f.Value/f.Goal, f.Goal, map[bool]string{true: "yes", false: "NO"}[f.Value <= f.Goal])
		}
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	return nil
}

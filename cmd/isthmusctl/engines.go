// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"slices"
	"strings"
)

// Names lists the engines that users may name, the reference first.
func Names() []string { return []string{"evaluate", "tables", "maps", "program", "acl"} }

// New returns an engine that has seen no cluster yet.
func New(name string) (Engine, error) {
	switch name {
	case "evaluate":
		return &Evaluate{}, nil
	case "tables":
		return &Tables{}, nil
	case "maps":
		return &Maps{}, nil
	case "program":
		return &Program{}, nil
	case "acl":
		return NewACL(), nil
	}
	return nil, fmt.Errorf("no engine %q: give %s, or all", name, strings.Join(Names(), ", "))
}

// Parse reads a comma separated list of engines, or all, and returns them in
// the order of Names.
func Parse(list string) ([]string, error) {
	if list == "all" {
		return Names(), nil
	}
	wanted := strings.Split(list, ",")
	for _, name := range wanted {
		if !slices.Contains(Names(), name) {
			return nil, fmt.Errorf("no engine %q: give %s, or all", name, strings.Join(Names(), ", "))
		}
	}
	return slices.DeleteFunc(Names(), func(name string) bool { return !slices.Contains(wanted, name) }), nil
}

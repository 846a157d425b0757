// SPDX-License-Identifier: Apache-2.0

package check

import (
	"fmt"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/analysis/engine"
	"github.com/isthmus-net/isthmus/linux/policymap/mapsim"
	"github.com/isthmus-net/isthmus/windows/acl/aclsim"
)

// engineNames lists the engines that users may name, the reference evaluator first.
func engineNames() []string { return []string{"evaluate", "tables", "maps", "program", "acl"} }

// newEngine returns an engine without a cluster.
func newEngine(name string) (engine.Engine, error) {
	switch name {
	case "evaluate":
		return &engine.Evaluate{}, nil
	case "tables":
		return &engine.Tables{}, nil
	case "maps":
		return &engine.PerNode{Title: name, Open: func() (engine.Node, error) { return mapsim.New(), nil }}, nil
	case "program":
		return newProgram(), nil
	case "acl":
		return &engine.PerNode{Title: name, Packets: true, Open: func() (engine.Node, error) { return aclsim.New(), nil }}, nil
	}
	return nil, fmt.Errorf("no engine %q: give %s, or all", name, strings.Join(engineNames(), ", "))
}

// newProgram returns the engine of the real BPF programs, which the kernel runs with
// BPF_PROG_TEST_RUN. It needs Linux and root. Loading takes a tenth of a second.
func newProgram() *engine.PerNode {
	return &engine.PerNode{Title: "program", Packets: true, Reuse: true, Open: loadPrograms}
}

// parseEngines reads a comma-separated list of engines, or all, and returns them in the
// order of engineNames.
func parseEngines(list string) ([]string, error) {
	if list == "all" {
		return engineNames(), nil
	}
	wanted := strings.Split(list, ",")
	for _, name := range wanted {
		if !slices.Contains(engineNames(), name) {
			return nil, fmt.Errorf("no engine %q: give %s, or all", name, strings.Join(engineNames(), ", "))
		}
	}
	return slices.DeleteFunc(engineNames(), func(name string) bool { return !slices.Contains(wanted, name) }), nil
}

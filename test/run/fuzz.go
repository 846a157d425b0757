// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// fuzzSteps returns a step for each fuzz test of packages.
func fuzzSteps(packages ...string) ([]step, error) {
	out, err := step{}.command(append([]string{"test", "-json", "-list=^Fuzz"}, packages...)...).Output()
	if err != nil {
		return nil, fmt.Errorf("list fuzz tests: %w", err)
	}
	var all []step
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var e event
		if err := d.Decode(&e); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("list fuzz tests: read go test -json: %w", err)
		}
		if name := strings.TrimSpace(e.Output); e.Action == "output" && strings.HasPrefix(name, "Fuzz") {
			all = append(all, step{packages: []string{e.Package},
				flags: []string{"-run=^$", "-fuzz=^" + name + "$", "-fuzztime=" + fuzzTime(), "-fuzzminimizetime=10x"}})
		}
	}
	if len(all) == 0 {
		return nil, errors.New("list fuzz tests: there are none")
	}
	return all, nil
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"testing"
)

// TestSuitesOfKernels checks which suites run on which kernel.
func TestSuitesOfKernels(t *testing.T) {
	for release, want := range map[string]string{"6.1.0-41-cloud-amd64": "path-filters", "6.4.0": "path", "6.12.57+deb12-cloud-arm64": "path", "10.0.1": "path"} {
		var got []string
		for _, s := range suites {
			runs, err := s.runsOn(release)
			if err != nil {
				t.Fatal(err)
			}
			if runs && s.pkg == "./test/path" {
				got = append(got, s.name)
			}
		}
		if !slices.Equal(got, []string{want}) {
			t.Errorf("Linux %s runs %q, want %s", release, got, want)
		}
	}
	if _, err := suites[0].runsOn("linux"); err == nil {
		t.Error("a release without a version is accepted")
	}
	if all := divide(suites); len(all) != 2 || len(all[0].suites) != 1 || all[0].suites[0].name != "linux" || len(all[1].suites) != len(suites)-1 {
		t.Errorf("guests run %+v", all)
	}
	if all := divide(suites[:1]); len(all) != 1 || len(all[0].suites) != 1 {
		t.Errorf("guests of one suite run %+v", all)
	}
	chosen, err := choose("path-filters,loader", "^TestPath$")
	if err != nil || len(chosen) != 2 || chosen[1].args() != "-test.run=^TestPath$ -filters" {
		t.Errorf("chosen are %+v, %v", chosen, err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"testing"
)

func TestAdmission(t *testing.T) {
	if all := (Config{}).checkAdmission(t.Context()); len(all) != 0 {
		t.Errorf("without credentials: %+v", all)
	}
	for want, answer := range map[Severity]func(context.Context) (bool, error){
		Good:    func(context.Context) (bool, error) { return true, nil },
		Warning: func(context.Context) (bool, error) { return false, nil },
		Unknown: func(context.Context) (bool, error) { return false, errors.New("no answer") },
	} {
		all := Config{Confined: answer}.checkAdmission(t.Context())
		if len(all) != 1 || all[0].Severity != want || want != Good && (all[0].Why == "" || all[0].Do == "") {
			t.Errorf("got %+v, want %s", all, want)
		}
	}
}

func TestBuilds(t *testing.T) {
	for _, c := range []struct {
		build, revision uint32
		want            Severity
	}{{14393, 1, Bad}, {17763, 100, Bad}, {17763, 5000, Warning}, {20348, 2582, Warning}, {20348, 3000, Good}, {26100, 1742, Warning}} {
		all := buildFindings(c.build, c.revision)
		if Worst(all) != c.want {
			t.Errorf("build %d.%d: %+v, want %s at worst", c.build, c.revision, all, c.want)
		}
		for _, f := range all {
			if f.Severity != Good && (f.Why == "" || f.Do == "") {
				t.Errorf("a finding without reason or remedy: %+v", f)
			}
		}
	}
	if Worst(nil) != Good {
		t.Error("nothing is not good")
	}
}

// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
)

var (
	worlds = flag.Int("worlds", 60, "random clusters of each form")
	each   = flag.Int("flows", 500, "flows in each random cluster")
)

// oracles starts every oracle.
func oracles(t *testing.T) []Oracle {
	t.Helper()
	a, err := Analyzer("analyzer")
	if err != nil {
		t.Fatal(err)
	}
	all := []Oracle{KubeNetworkPolicies(), Cyclonus(), a}
	t.Cleanup(func() {
		for _, o := range all {
			if err := o.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return all
}

// TestOracles compares with every oracle over random clusters, and over the published cases if
// CORPORA names their directory. It prints one line per oracle.
func TestOracles(t *testing.T) {
	all := oracles(t)
	tallies := make([]Tally, len(all))
	compare := func(c *Case) error {
		verdicts, err := c.Verdicts()
		if err != nil {
			return err
		}
		for i, o := range all {
			if err := tallies[i].Compare(o, c, verdicts); err != nil {
				return err
			}
		}
		return nil
	}
	for form := Plain; form <= Admin; form++ {
		for seed := range *worlds {
			c, err := Random(uint64(seed), form, *each)
			if err == nil {
				err = compare(c)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, path := range published(t) {
		if err := Vectors(path, compare); err != nil {
			t.Fatal(err)
		}
	}
	total := 0
	for i, o := range all {
		fmt.Printf("oracle %s: %s\n", o.Name(), tallies[i].String())
		t.Logf("%s: explained\n%s", o.Name(), tallies[i].Details())
		total += tallies[i].Flows
		for j, line := range tallies[i].Unexplained {
			if j == 20 {
				t.Errorf("... and %d more", len(tallies[i].Unexplained)-j)
				break
			}
			t.Error(line)
		}
	}
	fmt.Printf("oracles: flows=%d\n", total)
}

// published lists the files of published cases.
func published(t *testing.T) []string {
	t.Helper()
	dir := os.Getenv("CORPORA")
	if dir == "" {
		t.Log("without published cases: CORPORA is not set")
		return nil
	}
	paths, err := filepath.Glob(filepath.Join(dir, "vectors", "*.jsonl.gz"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no vectors in %s: %v", dir, err)
	}
	var out []string
	for _, p := range paths {
		if !strings.Contains(filepath.Base(p), "validation") {
			out = append(out, p)
		}
	}
	return out
}

// TestPlantedErrors checks that wrong verdicts are found: no deviation explains an error between
// two pods that the oracle has.
func TestPlantedErrors(t *testing.T) {
	for _, o := range []Oracle{KubeNetworkPolicies(), Cyclonus()} {
		planted, found := 0, 0
		for seed := range uint64(10) {
			c, err := Random(seed, Plain, 200)
			if err != nil {
				t.Fatal(err)
			}
			c.Flows = slices.DeleteFunc(c.Flows, func(f model.Flow) bool {
				return c.Owner(f.Src) == nil || c.Owner(f.Dst) == nil || c.Owner(f.Src) == c.Owner(f.Dst)
			})
			verdicts, err := c.Verdicts()
			if err != nil {
				t.Fatal(err)
			}
			theirs, err := o.Ask(c, c.Flows)
			if err != nil {
				t.Fatal(err)
			}
			for i := range verdicts {
				if verdicts[i] == theirs[i] {
					verdicts[i] = 1 - verdicts[i]
					planted++
				}
			}
			var tally Tally
			if err := tally.Compare(o, c, verdicts); err != nil {
				t.Fatal(err)
			}
			found += len(tally.Unexplained)
		}
		if planted == 0 || found != planted {
			t.Errorf("%s: %d of %d planted errors found", o.Name(), found, planted)
		}
	}
}

// TestDeviationsAreDocumented checks that the document has a heading for every deviation.
func TestDeviationsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/oracles.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range []Oracle{KubeNetworkPolicies(), Cyclonus(), &analyzer{}} {
		section := string(text)
		for _, d := range o.Deviations() {
			_, entry, ok := strings.Cut(section, "### "+d.Name+"\n")
			entry, _, _ = strings.Cut(entry, "\n#")
			if !ok || !strings.Contains(entry, o.Name()) {
				t.Errorf("docs/oracles.md has no %q that names %s", d.Name, o.Name())
			}
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package corpus_test

import (
	"errors"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/isthmus-net/isthmus/common/analysis/engine"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/corpus"
)

// engines returns every engine that can run here.
func engines(t *testing.T) []engine.Engine {
	all := corpus.PureEngines()
	if os.Getuid() == 0 && !testing.Short() {
		all = append(all, &engine.PerNode{Title: "program", Packets: true, Reuse: true, Open: loadPrograms})
	}
	t.Cleanup(func() {
		for _, e := range all {
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return all
}

// loaded reads the corpus once for all tests. They must not change it.
var loaded = sync.OnceValues(func() ([]corpus.Case, error) { return corpus.Load(".") })

func load(t *testing.T) []corpus.Case {
	t.Helper()
	cases, err := loaded()
	if err != nil {
		t.Fatal(err)
	}
	return cases
}

// TestCorpus runs every case on every engine, step by step.
func TestCorpus(t *testing.T) {
	all := engines(t)
	flows := 0
	cases := load(t)
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			var cluster *engine.Cluster
			for _, step := range c.Steps {
				cluster = engine.Compile(step.Snapshot, cluster)
				flows += judge(t, all, cluster, step.Flows)
			}
		})
	}
	t.Logf("cases=%d flows=%d engines=%d", len(cases), flows, len(all))
}

// judge loads a cluster into every engine and compares its verdicts with those of the case.
func judge(t *testing.T, all []engine.Engine, cluster *engine.Cluster, flows []corpus.Flow) int {
	t.Helper()
	for _, e := range all {
		if err := e.Load(cluster); err != nil {
			t.Fatal(err)
		}
		for _, f := range flows {
			got, err := cluster.Decide(e, f.Flow)
			if errors.Is(err, engine.ErrImpossible) {
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			if got != f.Want {
				t.Errorf("%s: %s says %s", f.Text, e.Name(), got)
			}
		}
	}
	return len(flows)
}

// TestCorpusReordered runs every case with its objects in reverse order, each twice, on new
// engines, as after a restart without state.
func TestCorpusReordered(t *testing.T) {
	for _, c := range load(t) {
		t.Run(c.Name, func(t *testing.T) {
			for _, step := range c.Steps {
				docs := slices.Clone(step.Documents)
				slices.Reverse(docs)
				snapshot, _, err := corpus.Snapshot(docs, c.Stored)
				if err != nil {
					t.Fatal(err)
				}
				fresh := corpus.PureEngines()
				judge(t, fresh, engine.Compile(snapshot, nil), step.Flows)
				var again *engine.Cluster
				again = engine.Compile(snapshot, engine.Compile(step.Snapshot, again))
				judge(t, fresh, again, step.Flows)
			}
		})
	}
}

// TestCorpusBackwards runs the steps of every case backwards and forwards. The final result must
// not depend on the order.
func TestCorpusBackwards(t *testing.T) {
	all := corpus.PureEngines()
	for _, c := range load(t) {
		if len(c.Steps) < 2 {
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			var cluster *engine.Cluster
			for _, step := range slices.Backward(c.Steps) {
				cluster = engine.Compile(step.Snapshot, cluster)
				judge(t, all, cluster, step.Flows)
			}
		})
	}
}

// TestCorpusSize checks that the corpus does not lose cases unnoticed.
func TestCorpusSize(t *testing.T) {
	cases := load(t)
	if len(cases) < 330 {
		t.Errorf("the corpus has %d cases, at least 330 are promised", len(cases))
	}
	allowed, denied := 0, 0
	for _, c := range cases {
		for _, s := range c.Steps {
			for _, f := range s.Flows {
				if f.Want == model.Allow {
					allowed++
				} else {
					denied++
				}
			}
		}
	}
	if allowed == 0 || denied == 0 {
		t.Errorf("flows allowed: %d, denied: %d", allowed, denied)
	}
}

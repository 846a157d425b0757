// SPDX-License-Identifier: Apache-2.0

package mixed_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/isthmus-net/isthmus/test/cluster"
	"github.com/isthmus-net/isthmus/test/cluster/replay"
	"github.com/isthmus-net/isthmus/test/corpus"
)

var ctx = context.Background()

// lab is a cluster that takes over the pods and policies of one case after the
// other.
type lab struct {
	*replay.Lab
	t      *testing.T
	events *explanations
}

// serviceRange is an object that every API server has. Without one, pods of Windows nodes reach no Services, and status says so.
const serviceRange = `
apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {name: kubernetes}
spec: {cidrs: [10.96.0.0/12]}
`

func newLab(t *testing.T, bin string, cfg cluster.Config) *lab {
	t.Helper()
	unlimited := []string{"--flow-event-rate=10000", "--flow-event-burst=100000"} // every flow of every pod at once
	cfg.AgentFlags, cfg.WindowsFlags = append(cfg.AgentFlags, unlimited...), append(cfg.WindowsFlags, unlimited...)
	cfg.Bin, cfg.Linux, cfg.Windows, cfg.Tries = bin, 2, 2, 160
	c := begin(t, cfg)
	if err := c.Manifests.Put("services", serviceRange); err != nil {
		t.Fatal(err)
	}
	// Nodes of both systems in turn.
	return &lab{t: t, events: follow(t, c, bin), Lab: replay.New(c, func(i int) *cluster.Node { return c.Nodes[[]int{0, 2, 1, 3}[i%4]] })}
}

// begin starts a cluster that ends with the test.
func begin(t *testing.T, cfg cluster.Config) *cluster.Cluster {
	t.Helper()
	dir, err := os.MkdirTemp("/run", "isthmus-mixed-")
	if err != nil {
		t.Fatal(err)
	}
	cfg.Dir, cfg.Wine = dir, underWine(t)
	c, err := cluster.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.DetachAll(ctx); err != nil {
			t.Error(err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := c.Start(ctx); err != nil {
		t.Fatal(err)
	}
	return c
}

// cases returns the cases of the corpus that fit these clusters.
func cases(t *testing.T) []corpus.Case {
	t.Helper()
	all, err := replay.Cases(filepath.Join("..", "corpus"))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

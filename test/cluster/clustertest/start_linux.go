// SPDX-License-Identifier: Apache-2.0

package clustertest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/isthmus-net/isthmus/test/cluster"
)

// Commands are the executables that the nodes run.
type Commands struct {
	once sync.Once
	dir  string
	err  error
	// More, if set, builds further executables into the same directory.
	More func(ctx context.Context, root, dir string) error
}

// Dir returns the directory of the executables. The first call builds them. root is the top of the repository.
func (c *Commands) Dir(t *testing.T, root string) string {
	t.Helper()
	c.once.Do(func() {
		if c.dir, c.err = os.MkdirTemp("", "isthmus-commands-"); c.err != nil {
			return
		}
		if c.err = cluster.Build(context.Background(), root, c.dir, os.Stderr); c.err == nil && c.More != nil {
			c.err = c.More(context.Background(), root, c.dir)
		}
	})
	if c.err != nil {
		t.Fatal(c.err)
	}
	return c.dir
}

// Main runs the tests of a package, and returns the exit status. Afterwards it removes the executables.
func (c *Commands) Main(m *testing.M) int {
	defer func() {
		if c.dir != "" {
			os.RemoveAll(c.dir)
		}
	}()
	return m.Run()
}

// Start starts the nodes of a cluster, with the objects of some manifests. No pod is attached. The cluster ends with
// the test. Without root, or with -short, it skips the test.
func (c *Commands) Start(t *testing.T, manifests string, cfg cluster.Config) *cluster.Cluster {
	t.Helper()
	if os.Getuid() != 0 || testing.Short() {
		t.Skip("needs root and no -short: make test runs it")
	}
	cfg.Bin = c.Dir(t, "../..")
	dir, err := os.MkdirTemp("/run", "isthmus-test-") // short, for the sockets
	if err != nil {
		t.Fatal(err)
	}
	cfg.Dir = dir
	made, err := cluster.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background() // the nodes outlive the context of the test
	t.Cleanup(func() {
		if err := errors.Join(made.DetachAll(ctx), made.Close()); err != nil {
			t.Error(err)
		}
	})
	user := t.TempDir()
	if err := os.WriteFile(filepath.Join(user, "app.yaml"), []byte(manifests), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := made.Manifests.Take(ctx, user); err != nil {
		t.Fatal(err)
	}
	if err := made.Start(ctx); err != nil {
		t.Fatal(err)
	}
	return made
}

// Attach schedules and attaches all pods of the manifests, starts their servers, and waits until policy is in force.
// It returns the pods by name.
func Attach(t *testing.T, c *cluster.Cluster) map[string]*cluster.Pod {
	t.Helper()
	ctx := context.Background()
	objects, err := c.Manifests.Objects(ctx)
	if err != nil {
		t.Fatal(err)
	}
	scheduled, err := c.Schedule(objects, 10)
	if err != nil {
		t.Fatal(err)
	}
	pods := make(map[string]*cluster.Pod)
	for _, p := range scheduled {
		if pods[p.Name], _, err = c.Attach(ctx, p); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Serve(); err != nil {
		t.Fatal(err)
	}
	if err := c.Settle(ctx); err != nil {
		t.Fatal(err)
	}
	return pods
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/isthmus-net/isthmus/test/apiserver"
	"github.com/isthmus-net/isthmus/test/cluster"
)

// The size of the cluster, without the measured node and its two pods.
const (
	nodes      = 1_000
	pods       = 10_000
	policies   = 1_000
	namespaces = 100
)

func main() {
	attachOnly := flag.Bool("attach", false, "measure CNI ADD and DEL only, with the cluster in a directory of manifests: needs no API server")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *attachOnly, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "node:", err)
		os.Exit(1)
	}
}

// figure is one line of output. Goal is an upper bound in the same unit. Reference is the figure of
// the reference plugins in this run, and Ratio is Value divided by it.
type figure struct {
	Name      string  `json:"name"`
	Value     float64 `json:"value"`
	Unit      string  `json:"unit"`
	Goal      float64 `json:"goal,omitempty"`
	Reference float64 `json:"reference,omitempty"`
	Ratio     float64 `json:"ratio,omitempty"`
}

// bench is a large cluster of which one node is real.
type bench struct {
	out, log   io.Writer
	dir, bin   string
	cluster    *cluster.Cluster
	server     *apiserver.Server
	kubeconfig string
	pods       map[string]*cluster.Pod
}

func run(ctx context.Context, attachOnly bool, out, log io.Writer) (err error) {
	dir, err := os.MkdirTemp("/run", "isthmus-node-")
	if err != nil {
		return fmt.Errorf("make a directory: %w (are you root?)", err)
	}
	bin := filepath.Join(dir, "bin")
	if err := os.Mkdir(bin, 0o700); err != nil {
		return err
	}
	if err := cluster.Build(ctx, ".", bin, log); err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	// The addresses of deleted pods are in quarantine. The default range is too small for this rate
	// of pods.
	flags := []string{"--pod-cidr=10.250.0.0/16", "--pod-cidr=fd44:0:0:1::/64"}
	b := &bench{out: out, log: log, dir: dir, bin: bin, pods: make(map[string]*cluster.Pod)}
	if b.cluster, err = cluster.New(cluster.Config{Dir: dir, Bin: bin, Linux: 1, AgentFlags: flags}); err != nil {
		return err
	}
	defer func() {
		if b.server != nil {
			err = errors.Join(err, b.server.Close())
		}
		err = errors.Join(err, b.cluster.DetachAll(context.WithoutCancel(ctx)), b.cluster.Close())
	}()
	steps := []func(context.Context) error{b.startServer, b.populate, b.startNode, b.measureProcess, b.measureAttach, b.measureDelivery, b.measureEnforcement}
	if attachOnly {
		steps = []func(context.Context) error{b.populateFiles, b.cluster.Start, b.measureAttach}
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) put(name string, value float64, unit string, goal float64) error {
	return b.write(figure{Name: name, Value: value, Unit: unit, Goal: goal})
}

func (b *bench) write(f figure) error { return json.NewEncoder(b.out).Encode(f) }

func round(f float64) float64 { return math.Round(f*1000) / 1000 }

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// putTimes prints the median and the 99th percentile, in milliseconds.
func (b *bench) putTimes(name string, took []time.Duration, median, high float64) error {
	slices.Sort(took)
	if err := b.put(name+", p50", milliseconds(took[len(took)/2]), "ms", median); err != nil {
		return err
	}
	return b.put(name+", p99", milliseconds(took[(len(took)*99)/100]), "ms", high)
}

// startServer starts an API server outside the namespace of the node.
func (b *bench) startServer(ctx context.Context) (err error) {
	outside, addresses := b.cluster.Outside()
	if b.server, err = apiserver.Start(ctx, apiserver.Config{NS: outside, Address: addresses[0]}, b.log); err != nil {
		return err
	}
	if err := b.server.ApplyFiles(ctx, "deploy/rbac/agent.yaml"); err != nil {
		return err
	}
	if b.kubeconfig, err = b.server.ServiceAccount(ctx, "isthmus-system", "isthmus-agent"); err != nil {
		return err
	}
	for _, role := range []string{"isthmus-agent", "isthmus-agent-report"} {
		err := b.server.Apply(ctx, fmt.Sprintf(`
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: %[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: %[1]s}
subjects: [{kind: ServiceAccount, name: isthmus-agent, namespace: isthmus-system}]`, role))
		if err != nil {
			return err
		}
	}
	b.cluster.UseAPI(b.kubeconfig, func(manifests string) error { return b.server.Apply(ctx, manifests) })
	return nil
}

// startNode starts the agent, attaches two pods, and restarts the agent over their state, as an
// upgrade does.
func (b *bench) startNode(ctx context.Context) error {
	if err := b.cluster.Start(ctx); err != nil {
		return err
	}
	if err := b.attach(ctx); err != nil {
		return err
	}
	node := b.cluster.Nodes[0]
	var took []time.Duration
	for range 5 {
		if err := node.Kill(); err != nil {
			return err
		}
		began := time.Now()
		if err := node.Start(); err != nil {
			return err
		}
		if err := untilReady(ctx, node); err != nil {
			return err
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	return b.put("start to in force, median of 5", took[len(took)/2].Seconds(), "s", 3)
}

func untilReady(ctx context.Context, n *cluster.Node) error {
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		_, status, err := n.Get("/readyz")
		if err == nil && status == 200 {
			return nil
		}
		if ctx.Err() != nil || time.Now().After(deadline) {
			return fmt.Errorf("the agent is not ready: status %d: %w", status, errors.Join(err, ctx.Err()))
		}
	}
}

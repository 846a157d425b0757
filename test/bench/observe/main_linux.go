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
	"syscall"
	"time"

	"github.com/isthmus-net/isthmus/test/cluster"
	"github.com/isthmus-net/isthmus/test/traffic"
)

func main() {
	var o options
	flag.IntVar(&o.rounds, "rounds", 9, "how often each figure is measured; the median counts")
	flag.DurationVar(&o.lasts, "lasts", 10*time.Second, "how long packets are sent in each round")
	flag.IntVar(&o.flood, "flood", 200_000, "segments of the flood")
	flag.StringVar(&o.bin, "bin", "", "directory with the executables of test/cluster.Build; without it they are built")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "observe:", err)
		os.Exit(1)
	}
}

// options are the flags.
type options struct {
	rounds, flood int
	lasts         time.Duration
	bin           string
}

// figure is one line of output. Goal is an upper bound in the same unit.
type figure struct {
	Name  string   `json:"name"`
	Value float64  `json:"value"`
	Unit  string   `json:"unit"`
	Goal  *float64 `json:"goal,omitempty"`
	OK    *bool    `json:"ok,omitempty"`
}

var errGoal = errors.New("a figure is above its goal")

// bench are two nodes with two pods each.
type bench struct {
	options
	out     io.Writer
	cluster *cluster.Cluster
	// reports is the node whose agent reports events, silent the other.
	reports, silent side
	missed          error
}

// side is a node and a sender from one of its pods to the other.
type side struct {
	node *cluster.Node
	syns *traffic.SYNs
}

// The ports of the server: policy allows the first.
const openPort, closedPort = 7001, 7000

// eventRate and eventBurst are the limits of the node that reports, for each pod and kind of event. They are above the
// rate of the measurement: 500 a second and kind, in bursts when the machine is late. A flood is above them.
const eventRate, eventBurst = 600, 5_000

func run(ctx context.Context, o options, out, log io.Writer) (err error) {
	if os.Getuid() != 0 {
		return errors.New("needs root to load BPF programs: sudo make bench-observe")
	}
	dir, err := os.MkdirTemp("/run", "isthmus-observe-")
	if err != nil {
		return fmt.Errorf("make a directory: %w", err)
	}
	if o.bin == "" {
		o.bin = filepath.Join(dir, "bin")
		if err := errors.Join(os.Mkdir(o.bin, 0o700), cluster.Build(ctx, ".", o.bin, log)); err != nil {
			return errors.Join(err, os.RemoveAll(dir))
		}
	}
	b := &bench{options: o, out: out}
	b.cluster, err = cluster.New(cluster.Config{Dir: dir, Bin: o.bin, Linux: 2, NodeFlags: map[string][]string{
		"linux1": {fmt.Sprintf("--flow-event-rate=%d", eventRate), fmt.Sprintf("--flow-event-burst=%d", eventBurst)},
		"linux2": {"--flow-events=off"},
	}})
	if err != nil {
		return err
	}
	defer func() {
		for _, s := range []side{b.reports, b.silent} {
			if s.syns != nil {
				err = errors.Join(err, s.syns.Close())
			}
		}
		err = errors.Join(err, b.cluster.DetachAll(context.WithoutCancel(ctx)), b.cluster.Close())
	}()
	for _, step := range []func(context.Context) error{b.start, b.measureAgent, b.measureFlood} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return b.missed
}

// manifests place a client and a server on each node. The servers allow one port.
const manifests = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: server, namespace: test}
spec:
  podSelector: {matchLabels: {app: server}}
  ingress: [{from: [{podSelector: {matchLabels: {app: client}}}], ports: [{port: 7001}]}]
`

// start starts the agents, and attaches the pods.
func (b *bench) start(ctx context.Context) error {
	user, err := os.MkdirTemp("", "isthmus-observe-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(user)
	text := manifests
	for _, node := range []string{"linux1", "linux2"} {
		for _, app := range []string{"client", "server"} {
			text += fmt.Sprintf("---\n{apiVersion: v1, kind: Pod, metadata: {name: %s-%s, namespace: test, labels: {app: %s}}, spec: {containers: [{name: main}]}}\n", app, node, app)
		}
	}
	if err := os.WriteFile(filepath.Join(user, "app.yaml"), []byte(text), 0o600); err != nil {
		return err
	}
	if _, _, err := b.cluster.Manifests.Take(ctx, user); err != nil {
		return err
	}
	if err := b.cluster.Start(ctx); err != nil {
		return err
	}
	objects, err := b.cluster.Manifests.Objects(ctx)
	if err != nil {
		return err
	}
	scheduled, err := b.cluster.Schedule(objects, 4)
	if err != nil {
		return err
	}
	pods := make(map[string]*cluster.Pod)
	for _, p := range scheduled {
		if pods[p.Name], _, err = b.cluster.Attach(ctx, p); err != nil {
			return err
		}
	}
	for i, s := range []*side{&b.reports, &b.silent} {
		s.node = b.cluster.Nodes[i]
		client, server := pods["client-"+s.node.Name], pods["server-"+s.node.Name]
		if s.syns, err = traffic.OpenSYNs(client.NS, client.IPs[0], server.IPs[0]); err != nil {
			return err
		}
	}
	return b.cluster.Settle(ctx)
}

// put prints a figure.
func (b *bench) put(name string, value float64, unit string) error {
	return b.write(figure{Name: name, Value: round(value), Unit: unit})
}

// putGoal prints a figure with its goal.
func (b *bench) putGoal(name string, value float64, unit string, goal float64) error {
	ok := value <= goal
	if !ok {
		b.missed = errors.Join(b.missed, fmt.Errorf("%w: %s", errGoal, name))
	}
	return b.write(figure{name, round(value), unit, &goal, &ok})
}

func (b *bench) write(f figure) error { return json.NewEncoder(b.out).Encode(f) }

func round(f float64) float64 { return math.Round(f*1000) / 1000 }

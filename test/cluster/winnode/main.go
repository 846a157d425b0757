// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/isthmus-net/isthmus/common/agent"
	"github.com/isthmus-net/isthmus/common/agent/socket"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/kube"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/hnsemu/service"
	"github.com/isthmus-net/isthmus/windows"
	"github.com/isthmus-net/isthmus/windows/hns"
)

func main() { os.Exit(run(os.Args[1:], os.Stderr)) }

// options are the flags; those of isthmus-agent that a Windows node needs.
type options struct {
	nodeName, manifests, kubeconfig, stateDir, socket, httpAddress, logLevel, control string
}

func run(args []string, out io.Writer) int {
	var o options
	f := flag.NewFlagSet("winnode", flag.ContinueOnError)
	f.SetOutput(out)
	f.StringVar(&o.nodeName, "node-name", "", "name of this node's Node object")
	f.StringVar(&o.manifests, "manifests", "", "directory of manifests to watch")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "reach an API server with this file instead")
	f.StringVar(&o.stateDir, "state-dir", "", "directory of the endpoint records")
	f.StringVar(&o.socket, "socket", "", "socket for isthmus-cni and isthmusctl")
	f.StringVar(&o.httpAddress, "http-address", "", "address of /metrics, /healthz and /readyz")
	f.StringVar(&o.logLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&o.control, "control", "", "socket that stands for Windows")
	if f.Parse(args) != nil {
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := serve(ctx, o, out); err != nil {
		fmt.Fprintln(out, "winnode:", err)
		return 1
	}
	return 0
}

func serve(ctx context.Context, o options, out io.Writer) error {
	var level slog.LevelVar
	if err := level.UnmarshalText([]byte(o.logLevel)); err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: &level}))
	system := hns.NewFake(hns.Server2022)
	source, reporter, err := newSource(o, log)
	if err != nil {
		return err
	}
	cfg := agent.Defaults()
	cfg.NodeName, cfg.Version = o.nodeName, "winnode"
	cfg.RecordDir = filepath.Join(o.stateDir, "endpoints")
	cfg.SourceProblems, cfg.SourceBehind = source.Problems, source.Behind
	if reporter != nil {
		cfg.Report, cfg.Collectors = reporter.Set, []prometheus.Collector{reporter}
	}
	cfg.OpenNeedsNode = true
	cfg.Open = func(ctx context.Context, node model.Node) (dataplane.Backend, error) {
		return windows.New(ctx, windows.Config{PodCIDRs: node.PodCIDRs, NodeAddresses: node.Addresses}, system, log)
	}
	a, err := agent.New(cfg, log)
	if err != nil {
		return err
	}
	requests, err := socket.Listen(o.socket)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	ended := make(chan error, 4)
	start := func(f func(context.Context) error) {
		go func() {
			err := f(ctx)
			cancel(err)
			ended <- err
		}()
	}
	start(func(ctx context.Context) error { return a.Serve(ctx, requests) })
	start(a.Run)
	start(func(ctx context.Context) error { return source.Run(ctx, a.Publish) })
	if reporter == nil {
		ended <- nil
	} else {
		start(reporter.Run)
	}
	web, err := serveHTTP("tcp", o.httpAddress, a.Handler())
	if err == nil {
		defer web.Close()
		var standIn *http.Server
		if standIn, err = serveHTTP("unix", o.control, service.New(service.Config{HNS: system, Version: hns.Server2022, Log: log}).Control()); err == nil {
			defer standIn.Close()
		}
	}
	if err != nil {
		cancel(err)
	}
	return errors.Join(err, <-ended, <-ended, <-ended, <-ended)
}

// newSource makes the source of snapshots, and what reports back to an API
// server.
func newSource(o options, log *slog.Logger) (kube.Source, *kube.Reporter, error) {
	if o.kubeconfig == "" {
		source, err := kube.NewDirectory(kube.DefaultDirectoryConfig(o.manifests), log)
		return source, nil, err
	}
	source, err := kube.NewAPIServer(kube.DefaultAPIConfig(o.kubeconfig), log)
	if err != nil {
		return nil, nil, err
	}
	reporter, err := kube.NewReporter(kube.DefaultReporterConfig(o.nodeName), source, log)
	return source, reporter, err
}

func serveHTTP(network, address string, h http.Handler) (*http.Server, error) {
	l, err := net.Listen(network, address)
	if err != nil {
		return nil, err
	}
	s := &http.Server{Handler: h}
	go s.Serve(l)
	return s, nil
}

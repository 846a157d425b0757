// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/isthmus-net/isthmus/cni/install"
	"github.com/isthmus-net/isthmus/common/agent"
	"github.com/isthmus-net/isthmus/common/agent/socket"
	"github.com/isthmus-net/isthmus/common/kube"
)

// serve runs the agent until the context is done.
func (e env) serve(ctx context.Context, o *options) error {
	log := o.logger(e.stderr)
	step := e.step
	if step == nil {
		step = func(name string) { log.Debug("step", "name", name) }
	}
	source, reporter, err := newSource(ctx, o, log)
	if err != nil {
		return err
	}
	if err := prepareStateDir(o.stateDir); err != nil {
		return err
	}
	backend := e.backend(o, step, log)
	cfg := agent.Defaults()
	cfg.NodeName, cfg.Version = o.nodeName, version
	cfg.RecordDir = filepath.Join(o.stateDir, "endpoints")
	cfg.PodCIDRs, cfg.Quarantine, cfg.AuditEvery, cfg.Limits = o.prefixes, o.quarantine, o.audit, o.limits
	cfg.Flows.Off, cfg.Flows.LogDenied = o.flows.events == flowsOff, o.flows.logDenied
	cfg.Open, cfg.OpenNeedsNode = backend.open, backend.needsNode
	if backend.timeout > 0 {
		cfg.OpTimeout, cfg.Stall = backend.timeout, 2*backend.timeout
	}
	cfg.SourceProblems, cfg.SourceBehind, cfg.Step = source.Problems, source.Behind, step
	if reporter != nil {
		cfg.Report, cfg.Collectors = reporter.Set, []prometheus.Collector{reporter}
	}
	var keeper *install.Keeper
	if files, wanted := o.installation(); wanted {
		if keeper, err = install.NewKeeper(files, log); err != nil {
			return usageError{err}
		}
		cfg.SourceProblems = func() []string { return append(source.Problems(), keeper.Problems()...) }
	}
	node, err := agent.New(cfg, log)
	if err != nil {
		return usageError{err}
	}
	// The socket is opened before anything is changed: whoever has it is the
	// node's agent.
	requests, err := socket.Listen(o.socket)
	if err != nil {
		return err
	}
	services := []service{ // in the order in which they are stopped
		{"requests", func(ctx context.Context) error { return node.Serve(ctx, requests) }},
		{"loop", node.Run},
		{"cluster", func(ctx context.Context) error { return source.Run(ctx, node.Publish) }},
	}
	if reporter != nil {
		services = append(services, service{"reporter", reporter.Run})
	}
	if o.httpAddress != "" {
		listener, err := net.Listen("tcp", o.httpAddress)
		if err != nil {
			return errors.Join(fmt.Errorf("listen on --http-address: %w", err), requests.Close())
		}
		services = append(services, service{"http", func(ctx context.Context) error { return serveHTTP(ctx, listener, node.Handler()) }})
	}
	if keeper != nil {
		services = append(services, service{"cni files", func(ctx context.Context) error { return keeper.Run(ctx, node.Ready) }})
	}
	log.Info("agent starts", "version", version, "node", o.nodeName, "socket", o.socket)
	err = runAll(ctx, services)
	log.Info("agent has stopped; what is in force stays", "error", err)
	return err
}

// newSource makes the source of snapshots, and what reports back to it unless
// that is not wanted. The addresses of an API server are noted: no deny list may
// cut it off.
func newSource(ctx context.Context, o *options, log *slog.Logger) (kube.Source, *kube.Reporter, error) {
	if o.manifests != "" {
		source, err := kube.NewDirectory(kube.DefaultDirectoryConfig(o.manifests), log)
		return source, nil, err
	}
	source, err := kube.NewAPIServer(kube.DefaultAPIConfig(o.kubeconfig), log)
	if err != nil {
		return nil, nil, err
	}
	o.spared = append(o.spared, addressesOf(ctx, source.Host(), log)...)
	if slices.Contains(o.report, reportNone) {
		return source, nil, nil
	}
	cfg := kube.DefaultReporterConfig(o.nodeName)
	cfg.Conditions, cfg.Events, cfg.NodeCondition = slices.Contains(o.report, "conditions"), slices.Contains(o.report, "events"), slices.Contains(o.report, "node")
	reporter, err := kube.NewReporter(cfg, source, log)
	return source, reporter, err
}

// addressesOf looks an API server's name up.
func addressesOf(ctx context.Context, host string, log *slog.Logger) []netip.Addr {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		log.Warn("the API server's addresses are not known; if deny lists might name them, give --never-deny", "host", host, "error", err)
	}
	for i, a := range found {
		found[i] = a.Unmap().WithZone("")
	}
	return found
}

// lookupTimeout bounds the look-up of the API server's name at the start.
const lookupTimeout = 2 * time.Second

// service runs until its context is done; it returns earlier only if it cannot
// go on.
type service struct {
	name string
	run  func(context.Context) error
}

// runAll runs services until the context is done or one of them ends, then
// stops them one after the other.
func runAll(ctx context.Context, services []service) error {
	type end struct {
		index int
		err   error
	}
	ends := make(chan end, len(services))
	cancels := make([]context.CancelFunc, len(services))
	for i, s := range services {
		own, cancel := context.WithCancel(context.WithoutCancel(ctx))
		cancels[i] = cancel
		go func() { ends <- end{i, s.run(own)} }()
	}
	ended := make([]bool, len(services))
	var errs []error
	note := func(e end) {
		ended[e.index] = true
		if e.err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", services[e.index].name, e.err))
		}
	}
	select {
	case <-ctx.Done():
	case e := <-ends:
		note(e)
	}
	for i := range services {
		cancels[i]()
		for !ended[i] {
			note(<-ends)
		}
	}
	return errors.Join(errs...)
}

func serveHTTP(ctx context.Context, listener net.Listener, handler http.Handler) error {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		<-ctx.Done()
		server.Close()
	}()
	err := server.Serve(listener)
	if errors.Is(err, http.ErrServerClosed) {
		<-stopped
		return nil
	}
	return fmt.Errorf("serve HTTP: %w", err)
}

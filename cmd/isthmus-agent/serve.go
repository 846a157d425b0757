// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"

	"github.com/isthmus-net/isthmus/cmd/daemon"
	"github.com/isthmus-net/isthmus/cni/install"
	"github.com/isthmus-net/isthmus/common/agent"
	"github.com/isthmus-net/isthmus/common/agent/loglevel"
	"github.com/isthmus-net/isthmus/common/agent/server"
	"github.com/isthmus-net/isthmus/common/agent/socket"
	"github.com/isthmus-net/isthmus/common/httpd"
)

// serve runs the agent until the context is done.
func (e env) serve(ctx context.Context, o *options) error {
	log := o.log.Logger(e.stderr)
	step := e.step
	if step == nil {
		step = func(name string) { log.Debug("step", "name", name) }
	}
	source, writers, err := newSource(ctx, o, log)
	if err != nil {
		return err
	}
	if err := prepareStateDir(o.stateDir); err != nil {
		return err
	}
	backend := e.backend(o, step, log)
	cfg := agent.Defaults()
	cfg.NodeName, cfg.Version, cfg.Settings = o.nodeName, version, o.settings
	cfg.RecordDir, cfg.PolicyOnly, cfg.Observe = o.recordDir(), o.besides(), o.observation(runtime.GOOS)
	cfg.PodCIDRs, cfg.Quarantine, cfg.AuditEvery, cfg.Limits, cfg.RuleMetrics = o.prefixes, o.quarantine, o.audit, o.limits, o.ruleMetrics
	cfg.EndpointPool = o.pool
	cfg.ReservedHostPorts = o.reserved
	cfg.Flows.Off, cfg.Flows.LogDenied = o.flows.events == flowsOff, o.flows.logDenied
	cfg.Open, cfg.OpenNeedsNode, cfg.OtherEngines = backend.open, backend.needsNode, backend.otherEngines
	if backend.timeout > 0 {
		cfg.OpTimeout, cfg.Stall = backend.timeout, 2*backend.timeout
	}
	cfg.SourceProblems, cfg.SourceBehind, cfg.Step = source.Problems, source.Behind, step
	writers.configure(&cfg)
	cfg.Collectors = append(cfg.Collectors, backend.metrics...)
	var keeper *install.Keeper
	if files, wanted := o.installation(); wanted {
		if keeper, err = install.NewKeeper(files, log); err != nil {
			return daemon.UsageError{Err: err}
		}
		cfg.SourceProblems = func() []string { return append(source.Problems(), keeper.Problems()...) }
	}
	node, err := agent.New(cfg, log)
	if err != nil {
		return daemon.UsageError{Err: err}
	}
	locks, err := o.lock(ctx, backend, append(backend.directories, o.recordDir()), log)
	if err != nil {
		return err
	}
	defer locks.release()
	// Open the sockets before changing anything, too: the runtime talks to one agent only.
	sockets, err := socket.Open(o.socket)
	if err != nil {
		return err
	}
	inspection, err := o.inspection(node, log)
	if err != nil {
		return errors.Join(err, sockets.Close())
	}
	requests := server.New(node, log)
	requests.Level = loglevel.New(o.log.Level())
	services := []service{ // in the order in which they are stopped
		{"sockets", sockets.Watch},
		{"requests", func(ctx context.Context) error { return requests.Serve(ctx, sockets) }},
		{"loop", node.Run},
		{"cluster", func(ctx context.Context) error { return source.Run(ctx, node.Publish) }},
	}
	services = append(append(services, writers.services()...), inspection...)
	if keeper != nil {
		services = append(services, service{"cni files", func(ctx context.Context) error { return keeper.Run(ctx, node.Ready) }})
	}
	log.Info("agent starts", "version", version, "node", o.nodeName, "socket", o.socket)
	err = runAll(ctx, services)
	daemon.LogEnd(log, "agent has stopped; policy stays in force", err)
	return err
}

// inspection opens what other programs read: metrics and flows.
func (o *options) inspection(node *agent.Agent, log *slog.Logger) (services []service, err error) {
	var listener net.Listener
	if o.httpAddress != "" {
		if listener, err = net.Listen("tcp", o.httpAddress); err != nil {
			return nil, fmt.Errorf("listen on --http-address: %w", err)
		}
		services = append(services, service{"http", func(ctx context.Context) error { return httpd.Serve(ctx, listener, node.Handler(), httpd.Defaults()) }})
	}
	flows, err := o.hubbleService(node, log)
	if err != nil && listener != nil {
		err = errors.Join(err, listener.Close())
	}
	return append(services, flows), err
}

// service runs until its context is done; it returns earlier only if it cannot continue.
type service struct {
	name string
	run  func(context.Context) error
}

// runAll runs services until the context is done or one of them ends, then stops them one after the other.
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

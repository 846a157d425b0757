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
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/isthmus-net/isthmus/common/agent"
	"github.com/isthmus-net/isthmus/common/agent/server"
	"github.com/isthmus-net/isthmus/common/agent/socket"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/fabric"
	"github.com/isthmus-net/isthmus/common/hubble"
	"github.com/isthmus-net/isthmus/common/kube"
	"github.com/isthmus-net/isthmus/common/kube/manifests"
	"github.com/isthmus-net/isthmus/common/kube/watch"
	"github.com/isthmus-net/isthmus/common/kube/writeback"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/hnsemu/fault"
	"github.com/isthmus-net/isthmus/test/hnsemu/host"
	"github.com/isthmus-net/isthmus/windows"
	"github.com/isthmus-net/isthmus/windows/flowevents"
	"github.com/isthmus-net/isthmus/windows/hns"
)

func main() { os.Exit(run(os.Args[1:], os.Stderr)) }

// options are the flags; those of isthmus-agent that a Windows node needs.
type options struct {
	nodeName, manifests, kubeconfig, stateDir, socket, httpAddress, logLevel, control string

	version, mode, managementIP, managementMAC string

	vni          uint
	clusterCIDRs string
	fabric       string

	eventRate, eventBurst uint

	auditInterval time.Duration
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
	f.StringVar(&o.version, "hns", hns.Server2022.String(), "version of HNS: 9.5, 13.3, 15.5 or another")
	f.StringVar(&o.mode, "hns-mode", string(windows.L2Bridge), "l2bridge or overlay")
	f.StringVar(&o.managementIP, "management-ip", "", "the node's address")
	f.StringVar(&o.managementMAC, "management-mac", "", "the node's hardware address, as 00-15-5D-00-00-01")
	f.UintVar(&o.vni, "vni", 4096, "VXLAN network identifier")
	f.StringVar(&o.fabric, "fabric", string(fabric.Auto), "auto, routes or none")
	f.UintVar(&o.eventRate, "flow-event-rate", 20, "events of denied flows per second and pod, for each direction")
	f.UintVar(&o.eventBurst, "flow-event-burst", 100, "burst of those events")
	f.DurationVar(&o.auditInterval, "audit-interval", agent.Defaults().AuditEvery, "interval of comparing installed with intended state")
	f.StringVar(&o.clusterCIDRs, "cluster-cidr", "", "ranges of all nodes' pods, separated by commas; beyond them pods go by their node's address; without it they follow from the Nodes")
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
	h, err := newHost(o, log)
	if err != nil {
		return err
	}
	defer h.Close()
	source, writers, err := newSource(o, log)
	if err != nil {
		return err
	}
	cfg := newConfig(o, source, writers)
	calls := windows.NewCallMetrics()
	cfg.Collectors = append(cfg.Collectors, calls)
	if cfg.Open, err = opener(o, h, calls, log); err != nil {
		return err
	}
	a, err := agent.New(cfg, log)
	if err != nil {
		return err
	}
	sockets, err := socket.Open(o.socket)
	if err != nil {
		return err
	}
	flows, err := newFlows(o, a, log)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	ended := make(chan error, 6)
	start := func(f func(context.Context) error) {
		go func() {
			err := f(ctx)
			cancel(err)
			ended <- err
		}()
	}
	start(flows)
	start(func(ctx context.Context) error { return server.New(a, log).Serve(ctx, sockets) })
	start(a.Run)
	start(func(ctx context.Context) error { return source.Run(ctx, a.Publish) })
	if writers == nil {
		ended <- nil
		ended <- nil
	} else {
		start(writers.reporter.Run)
		start(writers.announcer.Run)
	}
	web, err := serveHTTP("tcp", o.httpAddress, a.Handler())
	if err == nil {
		defer web.Close()
		var standIn *http.Server
		if standIn, err = serveHTTP("unix", o.control, h.Control()); err == nil {
			defer standIn.Close()
		}
	}
	if err != nil {
		cancel(err)
	}
	return errors.Join(err, <-ended, <-ended, <-ended, <-ended, <-ended, <-ended)
}

// newConfig configures the agent, but for its data path.
func newConfig(o options, source kube.Source, writers *writers) agent.Config {
	cfg := agent.Defaults()
	cfg.NodeName, cfg.Version = o.nodeName, "winnode"
	cfg.RecordDir = filepath.Join(o.stateDir, "endpoints")
	cfg.SourceProblems, cfg.SourceBehind = source.Problems, source.Behind
	if writers != nil {
		cfg.Report, cfg.Announce, cfg.Collectors = writers.reporter.Set, writers.announcer.Set, []prometheus.Collector{writers.reporter, writers.announcer}
	}
	cfg.OpenNeedsNode, cfg.AuditEvery = true, o.auditInterval
	return cfg
}

// newFlows opens the socket of Hubble's interface. The result serves it.
func newFlows(o options, a *agent.Agent, log *slog.Logger) (func(context.Context) error, error) {
	s, err := hubble.New(hubble.Config{Newest: a.Newest(), Node: o.nodeName, Version: "winnode", History: hubble.DefaultHistory,
		Source: a.Flows, Snapshot: a.Snapshot}, log)
	if err != nil {
		return nil, err
	}
	l, err := socket.Listen(socket.Hubble(o.socket))
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error { return s.Serve(ctx, hubble.Listener{Listener: l}) }, nil
}

// newHost makes the emulated Windows host.
func newHost(o options, log *slog.Logger) (*host.Host, error) {
	c := host.Config{ManagementIP: o.managementIP, ManagementMAC: o.managementMAC, Translate: true, Log: log}
	if _, err := fmt.Sscanf(o.version, "%d.%d", &c.Version.Major, &c.Version.Minor); err != nil {
		return nil, fmt.Errorf("--hns %q: give MAJOR.MINOR", o.version)
	}
	return host.New(c)
}

// opener opens the data path as isthmus-agent does on Windows.
func opener(o options, h *host.Host, calls *windows.CallMetrics, log *slog.Logger) (func(context.Context, model.Node) (dataplane.Backend, error), error) {
	c := windows.Config{Mode: windows.Mode(o.mode), VNI: uint32(o.vni), Fabric: fabric.Mode(o.fabric),
		Stack: h.Stack(), Observe: calls.Observe, ForwardingFile: filepath.Join(o.stateDir, "host-forwarding.json"),
		Events: h.Events(flowevents.Session()), EventLimits: flowevents.Limits{Rate: int(o.eventRate), Burst: int(o.eventBurst)}}
	for text := range strings.SplitSeq(o.clusterCIDRs, ",") {
		if text == "" {
			continue
		}
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("--cluster-cidr: %w", err)
		}
		c.OutboundNATExceptions = append(c.OutboundNATExceptions, p)
	}
	return func(ctx context.Context, node model.Node) (dataplane.Backend, error) {
		c := c
		c.PodCIDRs, c.NodeAddresses = c.Mode.Ranges(node.PodCIDRs), node.Addresses
		return windows.New(ctx, c, &fault.Client{Fake: h.Client(), Faults: h.Service.Target().Faults}, log)
	}, nil
}

// writers write to an API server.
type writers struct {
	reporter  *writeback.Reporter
	announcer *writeback.Announcer
}

// newSource makes the source of snapshots, and the writers to an API server.
func newSource(o options, log *slog.Logger) (kube.Source, *writers, error) {
	if o.kubeconfig == "" {
		source, err := manifests.NewDirectory(manifests.DefaultDirectoryConfig(o.manifests), log)
		return source, nil, err
	}
	source, err := watch.NewAPIServer(watch.DefaultAPIConfig(o.kubeconfig), log)
	if err != nil {
		return nil, nil, err
	}
	w := &writers{}
	w.reporter, err = writeback.NewReporter(writeback.DefaultReporterConfig(o.nodeName), source, log)
	if err == nil {
		w.announcer, err = writeback.NewAnnouncer(o.nodeName, source, log)
	}
	return source, w, err
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

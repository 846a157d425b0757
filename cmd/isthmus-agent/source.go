// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/isthmus-net/isthmus/common/agent"
	"github.com/isthmus-net/isthmus/common/fabric"
	"github.com/isthmus-net/isthmus/common/kube"
	"github.com/isthmus-net/isthmus/common/kube/manifests"
	"github.com/isthmus-net/isthmus/common/kube/watch"
	"github.com/isthmus-net/isthmus/common/kube/writeback"
	"github.com/isthmus-net/isthmus/common/model"
)

// writers write to the API server; a field is nil if its writes are disabled.
type writers struct {
	reporter  *writeback.Reporter
	announcer *writeback.Announcer
	hybrid    *fabric.Hybrid // never nil; it adds to what the announcer writes
}

// hybridSource is a source whose snapshots have nodes of OVN-Kubernetes as foreign ones.
type hybridSource struct {
	kube.Source
	hybrid *fabric.Hybrid
}

// Run implements kube.Source.
func (s hybridSource) Run(ctx context.Context, publish func(*model.Snapshot)) error {
	return s.Source.Run(ctx, func(c *model.Snapshot) { publish(s.hybrid.Snapshot(c)) })
}

// Problems implements kube.Source.
func (s hybridSource) Problems() []string {
	return slices.Sorted(slices.Values(slices.Concat(s.Source.Problems(), s.hybrid.Problems())))
}

func (w writers) configure(cfg *agent.Config) {
	cfg.Publish = w.hybrid.Publish
	if w.reporter != nil {
		cfg.Report = w.reporter.Set
		cfg.Collectors = append(cfg.Collectors, prometheus.Collector(w.reporter))
	}
	if w.announcer != nil {
		cfg.Announce = w.announcer.Set
		cfg.Collectors = append(cfg.Collectors, prometheus.Collector(w.announcer))
	}
}

func (w writers) services() (all []service) {
	if w.reporter != nil {
		all = append(all, service{"reporter", w.reporter.Run})
	}
	if w.announcer != nil {
		all = append(all, service{"announcer", w.announcer.Run})
	}
	return all
}

// newSource returns the source of snapshots and the writers to it.
func newSource(ctx context.Context, o *options, log *slog.Logger) (kube.Source, writers, error) {
	source, w, err := openSource(ctx, o, log)
	w.hybrid = fabric.NewHybrid(o.nodeName, o.overlay)
	return hybridSource{source, w.hybrid}, w, err
}

// openSource opens the directory of manifests or the API server. It adds the addresses of the API server
// to the exempt ones: no deny list may block them.
func openSource(ctx context.Context, o *options, log *slog.Logger) (kube.Source, writers, error) {
	if o.manifests != "" {
		source, err := manifests.NewDirectory(manifests.DefaultDirectoryConfig(o.manifests), log)
		return source, writers{}, err
	}
	api := watch.DefaultAPIConfig(o.kubeconfig)
	api.Optional = []string{model.KindServiceCIDR} // roles of older versions lack the right, and no policy refers to it
	source, err := watch.NewAPIServer(api, log)
	if err != nil {
		return nil, writers{}, err
	}
	var w writers
	if w.announcer, err = writeback.NewAnnouncer(o.nodeName, source, log); err != nil {
		return nil, writers{}, err
	}
	o.exempt = append(o.exempt, addressesOf(ctx, source.Host(), log)...)
	if slices.Contains(o.report, reportNone) {
		return source, w, nil
	}
	cfg := writeback.DefaultReporterConfig(o.nodeName)
	cfg.Conditions, cfg.Events, cfg.NodeCondition = slices.Contains(o.report, "conditions"), slices.Contains(o.report, "events"), slices.Contains(o.report, "node")
	w.reporter, err = writeback.NewReporter(cfg, source, log)
	return source, w, err
}

// addressesOf resolves an API server's name.
func addressesOf(ctx context.Context, host string, log *slog.Logger) []netip.Addr {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		log.Warn("resolve the API server's name; if deny lists may contain its addresses, set --never-deny", "host", host, "error", err)
	}
	for i, a := range found {
		found[i] = a.Unmap().WithZone("")
	}
	return found
}

// lookupTimeout bounds the lookup of the API server's name at the start.
const lookupTimeout = 2 * time.Second

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux"
	"github.com/isthmus-net/isthmus/linux/denylist"
	"github.com/isthmus-net/isthmus/linux/engines"
	"github.com/isthmus-net/isthmus/linux/fastpath"
	"github.com/isthmus-net/isthmus/linux/hostport"
	"github.com/isthmus-net/isthmus/linux/loader"
)

// newBackend returns the opener of the eBPF data path.
func newBackend(o *options, step func(string), log *slog.Logger) opener {
	cfg := linux.Defaults()
	cfg.BPFFS, cfg.Uplink, cfg.Fabric, cfg.Step = o.bpffs, o.uplink, o.fabric, step
	cfg.PolicyOnly, cfg.StateDir = o.besides(), o.stateDir
	cfg.ObserveNode = o.mode == modeObserve
	cfg.MapEntries = o.mapEntries
	cfg.Events = flowEvents(&o.flows)
	remove := func(ctx context.Context) error { return linux.Remove(ctx, cfg) }
	return opener{remove: remove, directories: []string{o.bpffs}, open: func(ctx context.Context, _ model.Node) (dataplane.Backend, error) {
		if o.besides() && o.otherEngine == engineRefuse {
			if err := refuseEngines(); err != nil {
				return nil, err
			}
		}
		var err error
		if cfg.XDP, err = denylist.ParseDevices(o.xdp); err != nil {
			return nil, fmt.Errorf("--xdp-devices %w", err)
		}
		cfg.NeverDeny, cfg.Forwarding = o.spared, fastpath.Forwarding(o.forwarding)
		cfg.HostPortsFromNode = hostport.FromNode(o.fromNode)
		return linux.New(ctx, cfg, log)
	}}
}

// refuseEngines returns an error if another project enforces policy on this node.
func refuseEngines() error {
	found, err := engines.Detect()
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range found {
		errs = append(errs, fmt.Errorf("%s enforces network policy on this node, and two engines deny what either denies: %s; --other-engine=ignore runs both", e, e.Remedy))
	}
	return errors.Join(errs...)
}

// flowEvents returns which events the BPF programs report.
func flowEvents(o *flowOptions) loader.Events {
	if o.events == flowsOff {
		return loader.Events{}
	}
	return loader.Events{Rate: o.rate, Burst: o.burst, Allowed: o.events == flowsAll}
}

func checkFlowEvents(o *flowOptions) error { return flowEvents(o).Validate() }

func checkMapEntries(entries map[string]int) error { return loader.Sizes(entries).Validate() }

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/isthmus-net/isthmus/common/analysis/trace"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux"
	"github.com/isthmus-net/isthmus/linux/denylist"
	"github.com/isthmus-net/isthmus/linux/engines"
	"github.com/isthmus-net/isthmus/linux/fastpath"
	"github.com/isthmus-net/isthmus/linux/hostport"
	"github.com/isthmus-net/isthmus/linux/link"
	"github.com/isthmus-net/isthmus/linux/loader"
	"github.com/isthmus-net/isthmus/linux/netfilter"
	"github.com/isthmus-net/isthmus/linux/takeover"
)

// newBackend returns the opener of the eBPF data path.
func newBackend(o *options, step func(string), log *slog.Logger) opener {
	cfg := linux.Defaults()
	cfg.BPFFS, cfg.Uplink, cfg.Fabric, cfg.Step = o.bpffs, o.uplink, o.fabric, step
	cfg.PolicyOnly, cfg.StateDir = o.besides(), o.stateDir
	cfg.ObserveNode = o.mode == modeObserve
	cfg.MapEntries = o.mapEntries
	cfg.Events = flowEvents(&o.flows)
	remove := func(ctx context.Context) error {
		if has, err := netfilter.Available(); err == nil && !has {
			log.Warn("this kernel has no nf_tables, so there are no rules of Isthmus to remove")
		}
		return linux.Remove(ctx, cfg)
	}
	var others func() ([]string, error)
	if o.besides() && o.otherEngine == engineRefuse {
		others = otherEngines
	}
	open := func(ctx context.Context, _ model.Node) (dataplane.Backend, error) {
		if err := refuseMigration(o); err != nil {
			return nil, err
		}
		var err error
		if cfg.XDP, err = denylist.ParseDevices(o.xdp); err != nil {
			return nil, fmt.Errorf("--xdp-devices %w", err)
		}
		cfg.NeverDeny, cfg.Forwarding = o.exempt, fastpath.Forwarding(o.forwarding)
		cfg.HostPortsFromNode = hostport.FromNode(o.fromNode)
		return linux.New(ctx, cfg, log)
	}
	return opener{remove: remove, attached: attached, otherEngines: others, directories: []string{o.bpffs}, open: open}
}

// attached returns the host ends of the pairs that the data path has made for pods.
func attached() (map[model.EndpointID]string, error) {
	found, err := link.List()
	names := make(map[model.EndpointID]string)
	for _, f := range found {
		if f.ID != "" {
			names[f.ID] = f.Name
		}
	}
	return names, err
}

// refuseMigration returns an error while isthmusctl migrate changes the pods of this node, unless it waits for an
// agent of this mode.
func refuseMigration(o *options) error {
	p, err := takeover.Load(o.stateDir)
	if err != nil || p == nil {
		return err
	}
	switch {
	case p.Complete() && o.mode == modeFull, p.Returning() && o.besides():
		return nil
	case p.Complete():
		return fmt.Errorf("the pods of this node were migrated from %s: start the agent with --mode=full, or run isthmusctl migrate rollback", p.Plan.Network.From)
	case p.Returning():
		return errors.New("the pods of this node return to the bridge of another network: start the agent with --mode=policy")
	}
	return incomplete(o.stateDir)
}

// migrating returns an error if a migration of this node is not complete, or cannot be read.
func migrating(stateDir string) error {
	p, err := takeover.Load(stateDir)
	if err != nil || p == nil || p.Complete() {
		return err
	}
	return incomplete(stateDir)
}

// incomplete is the error about a migration that is not complete.
func incomplete(stateDir string) error {
	return fmt.Errorf("the migration in %s is not complete: run isthmusctl migrate run to continue it, or isthmusctl migrate rollback, and try again",
		takeover.Path(stateDir))
}

// otherEngines returns a line about each other project that enforces policy on this node.
func otherEngines() (all []string, err error) {
	found, err := engines.Detect("/")
	for _, e := range found {
		all = append(all, fmt.Sprintf("%s enforces network policy on this node, and two engines deny what either denies: %s; --other-engine=ignore runs both", e, e.Remedy))
	}
	return all, err
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

// readLists returns nil: Linux has no ACLs.
func readLists() trace.Lists { return nil }

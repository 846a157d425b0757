// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/bandwidth"
	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/events"
	"github.com/isthmus-net/isthmus/linux/fabric"
	"github.com/isthmus-net/isthmus/linux/fastpath"
	"github.com/isthmus-net/isthmus/linux/kubeproxy"
	"github.com/isthmus-net/isthmus/linux/link"
	"github.com/isthmus-net/isthmus/linux/loader"
	"github.com/isthmus-net/isthmus/linux/policymap"
	"github.com/isthmus-net/isthmus/linux/release"
)

// Backend implements dataplane.Backend.
type Backend struct {
	cfg      Config
	log      *slog.Logger
	features model.Features
	// components are the features besides the policy core, fabric and egress among them.
	components dataplane.Components
	fabric     *fabric.Fabric
	egress     *kubeproxy.Egress
	// sources are the node's own addresses, from which it sends to its pods.
	sources []netip.Addr
	mtu     int
	path    *loader.DataPath
	tcx     bool // programs go to tcx links
	hasTCX  bool // the kernel has tcx links
	// drifted is true if Audit has found a difference that Apply must repair.
	drifted bool
	// repairs counts repaired changes by other processes.
	repairs atomic.Uint64
	// repaired are the last of them.
	repaired dataplane.History
	// damaged describes faults of pins and maps that Apply has not repaired yet.
	damaged []string
	// layout is the content of the maps; nil after writes that were interrupted.
	layout *policymap.Layout
	// specs are the endpoints that AddEndpoint has attached.
	specs map[model.EndpointID]link.PairSpec
	// linked are the endpoints whose programs have moved to tcx links.
	linked map[model.EndpointID]bool
	// usage is the last recorded usage of the maps, for Counters.
	usage     atomic.Pointer[map[string]dataplane.MapUsage]
	flows     flowUsage
	pathModes atomic.Pointer[[]dataplane.PathMode] // likewise
	numbered  atomic.Pointer[numbered]
	upgrade   upgrade
	ends      ends
	// pods are the pods of the endpoints. history records which policy was in force when, for
	// Watch.
	pods    map[model.EndpointID]model.PodID
	history events.History
}

var (
	_ dataplane.Backend      = (*Backend)(nil)
	_ dataplane.BatchDeleter = (*Backend)(nil)
	_ dataplane.Faulty       = (*Backend)(nil)
	_ dataplane.Announcer    = (*Backend)(nil)
	_ dataplane.SocketLister = (*Backend)(nil)
	_ dataplane.Watcher      = (*Backend)(nil)
)

// New opens the data path that is pinned in the configured directory, or creates one. It
// removes attachments that were interrupted before they had an identity. Enforced policy stays
// in force.
func New(ctx context.Context, cfg Config, log *slog.Logger) (*Backend, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if err := release.Check(kernelRelease()); err != nil {
		return nil, err
	}
	b := &Backend{cfg: cfg, log: log, features: probe(cfg.PolicyOnly), specs: make(map[model.EndpointID]link.PairSpec),
		pods: make(map[model.EndpointID]model.PodID), linked: make(map[model.EndpointID]bool)}
	uplink, err := b.findFabric()
	if err != nil {
		return nil, err
	}
	if b.path, err = loader.Open(cfg.BPFFS, cfg.settings(), cfg.MapEntries); err != nil {
		return nil, err
	}
	b.hasTCX = b.path.HasTCX()
	b.tcx = !cfg.ByClassifiers && b.hasTCX
	for _, d := range b.path.Damaged() {
		b.noteDamage(d)
	}
	if cfg.Forwarding == fastpath.Direct && !b.path.QueriesConntrack() {
		log.Warn("packets between nodes go through the host stack: programs cannot query connection tracking until the module nf_conntrack is loaded")
	}
	b.upgrade.waiting, b.upgrade.queued = b.path.OlderEndpoints(), make(map[int]bool)
	b.egress = kubeproxy.New(b.path, cfg.EgressByRule, b.host())
	if err = b.expectReturns(); err == nil && !(cfg.PolicyOnly && b.path.Older() != "") {
		err = b.egress.Attach() // those of mode policy would drop what the older programs leave to theirs
	}
	if err == nil {
		err = b.path.AdoptLinks()
	}
	if err == nil && cfg.PolicyOnly {
		err = b.openForeign()
	}
	if err == nil {
		err = b.sweep()
	}
	if err == nil {
		err = b.readBack()
	}
	if err == nil {
		err = b.renewClassifiers()
	}
	if err == nil {
		b.components, err = b.makeComponents()
	}
	if err != nil {
		b.path.Close()
		return nil, err
	}
	b.notePathModes()
	log.Info("data path ready", "uplink", uplink.Name, "mtu", b.mtu, "bpffs", cfg.BPFFS, "egress", b.egress.PathModes()[0].Mode,
		"endpoints", len(b.layout.State().Policy.Endpoints))
	return b, nil
}

// findFabric finds the uplink, unless another CNI plugin connects the pods.
func (b *Backend) findFabric() (fabric.Uplink, error) {
	if b.cfg.PolicyOnly {
		return fabric.Uplink{}, nil
	}
	uplink, err := fabric.FindUplink(b.cfg.Uplink)
	if err != nil {
		return uplink, err
	}
	b.fabric = fabric.New(b.cfg.Fabric, b.cfg.Uplink, b.host())
	b.sources, b.mtu = uplink.Addresses(), b.fabric.MTU(uplink)
	return uplink, nil
}

// sweep removes veth pairs without identity, and map entries of interfaces that are gone.
func (b *Backend) sweep() error {
	found, err := b.list()
	if err != nil {
		return err
	}
	alive := make(map[int]bool)
	for _, f := range found {
		if f.ID != "" {
			alive[f.Index] = true
			continue
		}
		b.log.Warn("removing an attachment that was not completed", "interface", f.Name)
		if err := link.DeleteByName(f.Name); err != nil {
			return err
		}
	}
	if err := bandwidth.Sweep(); err != nil {
		return err
	}
	known, err := b.path.Endpoints()
	if err != nil {
		return err
	}
	for index := range known {
		if !alive[index] {
			if err := b.path.DropEndpoint(index); err != nil {
				return err
			}
		}
	}
	return nil
}

// readBack reads the content of the maps, and the slot of each endpoint.
func (b *Backend) readBack() error {
	entries, err := b.path.Read()
	if err != nil {
		return err
	}
	known, err := b.path.Endpoints()
	if err != nil {
		return err
	}
	found, err := b.list()
	if err != nil {
		return err
	}
	slots := make(map[model.EndpointID]uint32)
	for _, f := range found {
		if e, ok := known[f.Index]; ok && f.ID != "" {
			slots[f.ID] = e.Slot
		} else if n, ok := b.keptSlot(f, entries); ok {
			slots[f.ID] = n
		}
	}
	layout, problems := policymap.Decode(entries, slots, b.path.Capacity())
	for _, p := range problems {
		b.noteDamage(p)
	}
	b.layout = layout
	b.recordVersion()
	b.noteUsage()
	return b.keepSlots(found)
}

// Features implements dataplane.Backend.
func (b *Backend) Features() model.Features { return b.features }

// Apply implements dataplane.Backend.
func (b *Backend) Apply(ctx context.Context, s *model.State) ([]model.Unsupported, error) {
	if b.layout == nil {
		if err := b.readBack(); err != nil {
			return nil, err
		}
	}
	defer b.noteUsage()
	defer b.notePathModes()
	if err := b.repair(ctx); err != nil {
		return nil, err
	}
	plan, now := dataplane.Plan(b.layout.State(), s), time.Now()
	if err := b.layout.Check(plan, now); err != nil {
		return nil, fmt.Errorf("lay out policy: %w", err)
	}
	if err := b.withdrawFurther(s); err != nil {
		return nil, err
	}
	for _, step := range plan {
		w, err := b.layout.Advance(step, now)
		if err != nil {
			return nil, fmt.Errorf("lay out policy: %w", err)
		}
		b.recordVersion()
		b.step("write maps")
		if err := b.path.Execute(w); err != nil {
			b.layout = nil
			return nil, fmt.Errorf("write policy: %w", err)
		}
	}
	if err := b.giveFurther(); err != nil {
		return nil, err
	}
	b.damaged = nil // Apply has written everything
	b.upgrade.failed = b.completeUpgrade()
	unsupported, err := b.components.Apply(ctx, s, b.features)
	b.ends.applied = err == nil
	return unsupported, errors.Join(b.upgrade.failed, b.followUplink(), err)
}

// followUplink gives the routes to pods the current address of the node. The kernel removes
// routes with an address that is gone.
func (b *Backend) followUplink() error {
	if b.fabric == nil {
		return nil
	}
	now := b.fabric.Sources()
	if len(now) == 0 || slices.Equal(now, b.sources) {
		return nil
	}
	b.log.Info("the addresses of the node changed", "were", b.sources, "are", now)
	for id, s := range b.specs {
		s.Sources = now
		pair, err := link.FindPair(s)
		if err == nil {
			err = link.ConfigureHost(s, pair)
		}
		if err != nil {
			return err
		}
		b.specs[id] = s
	}
	b.sources = now
	return nil
}

// Faults implements dataplane.Faulty: damage, further addresses that pods cannot have, an upgrade that is not complete, and the
// problems of components.
func (b *Backend) Faults() []string {
	return slices.Concat(b.damaged, b.ends.further.refused, b.upgradeProblems(), b.components.Problems())
}

// noteDamage records a fault that was found when the data path was opened or read back. Faults
// reports it until the next Apply has repaired it.
func (b *Backend) noteDamage(what string) {
	b.log.Warn("the data path was damaged; it is repaired", "problem", what)
	b.damaged = append(b.damaged, "the data path was damaged, until policy is applied again: "+what)
	b.noteRepair(what)
}

// NodeInfo implements dataplane.Announcer.
func (b *Backend) NodeInfo() model.NodeInfo {
	if b.fabric == nil {
		return model.NodeInfo{}
	}
	return b.fabric.NodeInfo()
}

// InForce implements dataplane.Backend.
func (b *Backend) InForce(context.Context) (*model.State, error) {
	if b.layout == nil {
		if err := b.readBack(); err != nil {
			return nil, err
		}
	}
	s := b.layout.State()
	if len(s.Policy.Tables) == 0 {
		return nil, nil
	}
	return s, nil
}

// Counters implements dataplane.Backend.
func (b *Backend) Counters(context.Context) (dataplane.Counters, error) {
	totals, err := b.path.Counters()
	if err != nil {
		return dataplane.Counters{}, err
	}
	c := dataplane.Counters{
		Counted: model.AllFlows, Repairs: b.repairs.Load(), Repaired: b.repaired.Last(), Drops: make(map[string]uint64, len(bpfobj.DropReasons)),
	}
	for _, d := range model.Directions {
		c.Verdicts[d] = [2]uint64{totals[2*int(d)], totals[2*int(d)+1]}
	}
	for id, reason := range bpfobj.DropReasons {
		c.Drops[reason.String()] = totals[id]
	}
	if c.Events.Limited, c.Events.Lost, err = b.path.LostEvents(); err != nil {
		return c, err
	}
	c.Untracked = totals[bpfobj.CountUntracked]
	flows, err := b.flows.usage(b.path, time.Now())
	if err != nil {
		return c, err
	}
	c.Maps = make(map[string]dataplane.MapUsage)
	if usage := b.usage.Load(); usage != nil {
		maps.Copy(c.Maps, *usage)
	}
	for name, u := range flows {
		c.Maps[name] = dataplane.MapUsage{Entries: u.Entries, Capacity: u.Capacity}
	}
	c.PathModes = slices.Clip(*b.pathModes.Load())
	err = b.components.Count(&c)
	return c, err
}

// noteRepair counts and remembers a repair of what another process changed.
func (b *Backend) noteRepair(what string) {
	b.repairs.Add(1)
	b.repaired.Add(what, time.Now())
}

// Close implements dataplane.Backend.
func (b *Backend) Close() error { return errors.Join(b.components.Close(), b.path.Close()) }

func (b *Backend) step(name string) {
	if b.cfg.Step != nil {
		b.cfg.Step(name)
	}
}

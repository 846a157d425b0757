// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/bandwidth"
	"github.com/isthmus-net/isthmus/windows/denylist"
	"github.com/isthmus-net/isthmus/windows/fabric"
	"github.com/isthmus-net/isthmus/windows/flowevents"
	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hostaddr"
	"github.com/isthmus-net/isthmus/windows/hostfabric"
	"github.com/isthmus-net/isthmus/windows/outbound"
	"github.com/isthmus-net/isthmus/windows/prepared"
)

// Backend manages one HNS network.
type Backend struct {
	config  Config
	options acl.Options
	lowerer acl.Lowerer
	hns     *hns.Guarded
	log     *slog.Logger
	version hns.Version
	host    string // id of the host's endpoint while it is known to be attached
	// hostShown is its id once HNS has shown it as attached.
	hostShown string
	// orphans are the names of unwanted endpoints whose creating call has not returned.
	orphans map[string]bool
	// orphansDue is when their removal is tried again after an error, orphanFault says which.
	orphansDue  time.Time
	orphanFault string
	// routeFault is why routes of the host are not restored yet; "" if none is missing.
	routeFault string
	// sctp records whether this HNS accepts ACLs for SCTP.
	sctp sctpSupport
	// late are the lists of ACLs in writes that have not returned although their caller has an error.
	late map[hns.Object][]hns.ACL
	nat  natState
	// components are the features besides the policy core, the fabric among them.
	components dataplane.Components
	fabric     *fabric.Fabric
	// hostFabric is nil without the Stack of the Config.
	hostFabric *hostfabric.HostFabric
	deny       *denylist.DenyList
	// addresses follows the addresses of the host. The options have those of the last Apply.
	addresses *hostaddr.Watch
	// flows explains drops; nil without events of Windows.
	flows *flowevents.Watcher
	// counters counts packets by rule; nil if that is not wanted.
	counters *ruleCounters
	// created maps the GUID of an attached
	// endpoint that is not connected to the time since when. idle are the problems of those endpoints.
	created map[string]time.Time
	idle    []string
	// specs are the attachments that this process has added or adopted. misresolved are the problems of endpoints with another
	// resolver.
	specs       map[model.EndpointID]dataplane.EndpointSpec
	misresolved []string
	// prepared records the endpoints that were made before their pods. ready are those that can be used, and
	// preparing the names of those whose creation has not been finished.
	prepared  *prepared.Store
	ready     []dataplane.Prepared
	preparing map[string]bool

	mu      sync.Mutex // guards what Counters shares with the other methods
	network string     // id
	meter   meter
	modes   []dataplane.PathMode
	facts   []string
}

var (
	_ dataplane.Backend   = (*Backend)(nil)
	_ dataplane.Announcer = (*Backend)(nil)
	_ dataplane.Faulty    = (*Backend)(nil)
	_ dataplane.Preparer  = (*Backend)(nil)
	_ dataplane.Dependent = (*Backend)(nil)
)

// New opens the data path. It checks that HNS supports the Config, and creates or adopts the network. It
// may be called again with the same Config.
func New(ctx context.Context, c Config, client hns.Client, log *slog.Logger) (*Backend, error) {
	c = c.Defaults()
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("configure windows backend: %w", err)
	}
	b := &Backend{
		config: c,
		hns:    hns.Guard(client, hns.GuardConfig{Deadline: c.CallDeadline, Observe: c.Observe}),
		log:    log,
		meter:  newMeter(), orphans: make(map[string]bool), late: make(map[hns.Object][]hns.ACL),
		specs: make(map[model.EndpointID]dataplane.EndpointSpec), preparing: make(map[string]bool),
		sctp: sctpSupport{otherwise: make(map[model.EndpointID]bool)},
	}
	b.nat = natState{known: !c.derivesNAT(), exceptions: c.OutboundNATExceptions, services: outbound.Services(model.FabricState{}, c.ServiceCIDRs)}
	var err error
	if b.prepared, err = prepared.Open(c.PreparedFile); b.prepared == nil {
		return nil, err
	} else if err != nil {
		log.Error("endpoints that were prepared are removed", "error", err)
	}
	v, err := b.hns.Version(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the version of hns: %w", remedied(err))
	}
	b.version = v
	if err := refusal(c.VersionMismatches(v)); err != nil {
		return nil, err
	}
	if !v.Supports(hns.DirectServerReturn) {
		log.Warn("this HNS has no direct server return: policies see the node instead of the pod behind a service", "hns", v.String())
	}
	b.addresses = hostaddr.New(c.HostAddresses)
	b.addresses.Sync(time.Now())
	b.options = acl.Options{Sets: v.Supports(hns.Sets) && c.usesSets(), NoIPv6: !v.Supports(hns.DualStack), MaxRules: c.MaxRules,
		Node: b.nodeAddresses()}.Defaults()
	if err := b.options.Validate(); err != nil {
		return nil, fmt.Errorf("configure windows backend: %w", err)
	}
	b.deny = denylist.New(b.options.Node, b.options.NoIPv6)
	if c.Events != nil {
		b.flows = flowevents.New(c.Events, c.EventLimits)
	}
	b.makeComponents()
	n, _, err := b.ensureNetwork(ctx)
	if err != nil {
		return nil, err
	}
	if err := b.waitForTunnel(ctx, n); err != nil {
		return nil, err
	}
	b.restoreRoutes()
	b.startCounters()
	return b, nil
}

// Features returns the capabilities of this HNS.
func (b *Backend) Features() model.Features {
	f := model.Features{
		OS: model.Windows, Platform: "HNS " + b.version.String(), HostPorts: true, EgressBandwidth: true, MinEgressRate: bandwidth.MinRate, DNS: true,
	}
	if b.flows != nil {
		f.Flows = model.DeniedFlows
	}
	for _, p := range b.config.PodCIDRs {
		f.IPv6 = f.IPv6 || p.Addr().Is6()
	}
	return f
}

// InForce returns nil: HNS stores addresses and ports, no classes.
func (b *Backend) InForce(context.Context) (*model.State, error) { return nil, nil }

// Close closes the components; HNS continues.
func (b *Backend) Close() error {
	b.stopCounters()
	return b.components.Close()
}

// meter adds up the counts of endpoints, including deleted ones, since the process started.
type meter struct {
	last map[string]hns.Stats
	sum  hns.Stats
}

func newMeter() meter { return meter{last: make(map[string]hns.Stats)} }

func (m *meter) add(id string, now hns.Stats) {
	was := m.last[id]
	if now.DroppedIn < was.DroppedIn || now.DroppedOut < was.DroppedOut {
		was = hns.Stats{} // HNS has reset its counters
	}
	m.sum.DroppedIn += now.DroppedIn - was.DroppedIn
	m.sum.DroppedOut += now.DroppedOut - was.DroppedOut
	m.last[id] = now
}

// keep forgets the counts of endpoints that are not in a list. A node has new ones for as long as it runs, and HNS uses no GUID again.
func (m *meter) keep(list []hns.Endpoint) {
	exists := make(map[string]bool, len(list))
	for _, e := range list {
		exists[e.ID] = true
	}
	maps.DeleteFunc(m.last, func(id string, _ hns.Stats) bool { return !exists[id] })
}

// Idle implements dataplane.Backend. It removes objects of calls that timed out, syncs the components,
// restores routes of the host, reads the host's addresses, and gives endpoints new exceptions of NAT. An error delays the next
// call, and so the components, which repair the host. Work with an interval of its own is a fault instead if it fails.
func (b *Backend) Idle(ctx context.Context) (bool, error) {
	defer b.noteModes()
	b.addresses.Sync(time.Now())
	more := b.syncNAT(ctx, time.Now())
	b.restoreRoutes()
	b.removeOrphans(ctx)
	return more, b.components.Sync(ctx, time.Now())
}

// Counters returns the packets that HNS dropped at the pods' ports, which may have other reasons than policy, and those
// that events of Windows explain. Without these events no verdicts are counted.
func (b *Backend) Counters(ctx context.Context) (dataplane.Counters, error) {
	b.mu.Lock()
	network := b.network
	b.mu.Unlock()
	list, err := b.listEndpoints(ctx, network)
	if err != nil {
		return dataplane.Counters{}, fmt.Errorf("count packets: %w", err)
	}
	var errs []error
	for _, e := range list {
		if id, ours := b.config.parseEndpointName(e.Name); !ours || e.HostComputeNamespace == "" && isPrepared(id) {
			continue
		}
		s, err := b.hns.EndpointStats(ctx, e.ID)
		if errors.Is(err, hns.ErrGone) {
			continue
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("count packets of endpoint %s: %w", e.Name, err))
			continue
		}
		b.mu.Lock()
		b.meter.add(e.ID, s)
		b.mu.Unlock()
	}
	b.mu.Lock()
	b.meter.keep(list)
	c := dataplane.Counters{PathModes: slices.Clip(b.modes), Facts: slices.Clip(b.facts), PortDrops: map[model.Direction]uint64{
		model.Ingress: b.meter.sum.DroppedIn,
		model.Egress:  b.meter.sum.DroppedOut,
	}}
	b.mu.Unlock()
	if b.flows != nil {
		errs = append(errs, b.flows.Count(&c))
	}
	if b.counters != nil {
		c.Facts = append(c.Facts, b.counters.Fact())
	}
	err = errors.Join(append(errs, b.components.Count(&c))...)
	return c, err
}

// cleanupTime bounds the rollback after the caller's context has ended.
const cleanupTime = 30 * time.Second

// cleanup returns a context for rollback, which must not stop when the caller gives up.
func cleanup(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
}

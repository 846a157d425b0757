// SPDX-License-Identifier: Apache-2.0

package foreign

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/denylist"
	"github.com/isthmus-net/isthmus/windows/flowevents"
	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hostaddr"
	"github.com/isthmus-net/isthmus/windows/kubeproxy"
)

// Backend enforces policy on the endpoints of other plugins.
type Backend struct {
	config   Config
	hns      *hns.Guarded
	log      *slog.Logger
	version  hns.Version
	options  acl.Options
	lowerer  acl.Lowerer
	deny     *denylist.DenyList
	registry *registry
	// balancers reads whether kube-proxy hides the addresses of clients from policy.
	balancers *kubeproxy.Watcher
	// flows explains drops; nil without events of Windows.
	flows *flowevents.Watcher
	// addresses follows the addresses of the host. The options have those of the last Apply.
	addresses *hostaddr.Watch
	// wanted are the lists of the last Apply, without the priorities beside those of others.
	wanted map[model.EndpointID][]hns.ACL
	// readings are those of Follow and Idle.
	readings readings
	// refused are the problems of endpoints on which policy is not in force.
	refused map[model.EndpointID]string

	mu    sync.Mutex // guards what Counters shares with the other methods
	facts map[model.EndpointID]string
	// balanced is what balancers says.
	balanced []string
}

var (
	_ dataplane.Backend   = (*Backend)(nil)
	_ dataplane.Finder    = (*Backend)(nil)
	_ dataplane.Faulty    = (*Backend)(nil)
	_ dataplane.Dependent = (*Backend)(nil)
)

// New opens the data path. It changes nothing.
func New(ctx context.Context, c Config, client hns.Client, log *slog.Logger) (*Backend, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("configure windows backend: %w", err)
	}
	if c.Step == nil {
		c.Step = func(string) {}
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	b := &Backend{config: c, log: log, hns: hns.Guard(client, hns.GuardConfig{Deadline: c.CallDeadline, Observe: c.Observe}),
		wanted: make(map[model.EndpointID][]hns.ACL), refused: make(map[model.EndpointID]string), facts: make(map[model.EndpointID]string)}
	var err error
	if b.version, err = b.hns.Version(ctx); err != nil {
		return nil, fmt.Errorf("read the version of hns: %w", err)
	}
	if !b.version.Supports(hns.Schema2API) {
		return nil, fmt.Errorf("hns %s is too old: install the updates of this Windows release (9.2 is needed)", b.version)
	}
	// Sets are objects of a network, and the networks are those of others.
	b.addresses = hostaddr.New(c.HostAddresses)
	b.addresses.Sync(time.Now())
	b.options = acl.Options{NoIPv6: !b.version.Supports(hns.DualStack), MaxRules: c.MaxRules, Node: b.nodeAddresses()}.Defaults()
	if err := b.options.Validate(); err != nil {
		return nil, fmt.Errorf("configure windows backend: %w", err)
	}
	b.deny = denylist.New(b.options.Node, b.options.NoIPv6)
	if c.Events != nil {
		b.flows = flowevents.New(c.Events, c.EventLimits)
	}
	b.balancers = kubeproxy.New(b.hns, b.version.Supports(hns.DirectServerReturn), b.nodeAddresses, log)
	if b.registry, err = openRegistry(c.File); b.registry == nil {
		return nil, err
	} else if err != nil {
		log.Error("endpoints of other plugins are found again", "error", err)
	}
	return b, nil
}

// Features returns the capabilities of this HNS. Everything but policy is the other plugin's.
func (b *Backend) Features() model.Features {
	f := model.Features{OS: model.Windows, Platform: "HNS " + b.version.String(), IPv6: b.version.Supports(hns.DualStack)}
	if b.flows != nil {
		f.Flows = model.DeniedFlows
	}
	return f
}

// AddEndpoint implements dataplane.Backend: it finds the endpoint, and denies everything on it until Apply names it.
// An endpoint that was added before keeps its list. One that cannot be denied stays recorded until DeleteEndpoint: Idle
// tries to deny it, and Faults names it.
func (b *Backend) AddEndpoint(ctx context.Context, spec dataplane.EndpointSpec) (dataplane.Attachment, error) {
	a, err := b.addEndpoint(ctx, spec)
	if err != nil {
		return dataplane.Attachment{}, fmt.Errorf("add endpoint %s: %w", spec.ID, err)
	}
	return a, nil
}

// find returns the HNS endpoint of a pod.
func (b *Backend) find(ctx context.Context, spec dataplane.EndpointSpec) (*found, error) {
	if !strings.HasPrefix(spec.NetNS, dataplane.HandlePrefix) {
		if _, err := b.hns.Namespace(ctx, spec.NetNS); errors.Is(err, hns.ErrGone) {
			return nil, fmt.Errorf("namespace %q: %w", spec.NetNS, dataplane.ErrNoNetNS)
		} else if err != nil {
			return nil, fmt.Errorf("look up namespace %q: %w", spec.NetNS, err)
		}
	}
	all, err := b.scan(ctx)
	if err != nil {
		return nil, err
	}
	f := locate(all, entry{NetNS: spec.NetNS, IPs: spec.IPs})
	if f == nil {
		return nil, fmt.Errorf("%w: there is not exactly one hns endpoint with the addresses %v in %s: put isthmus-cni behind the plugin that makes it", dataplane.ErrInterfaceKind, spec.IPs, spec.NetNS)
	}
	if problem := f.problem(); problem != "" {
		return nil, fmt.Errorf("%w: %s", dataplane.ErrInterfaceKind, problem)
	}
	return f, nil
}

func (b *Backend) addEndpoint(ctx context.Context, spec dataplane.EndpointSpec) (a dataplane.Attachment, err error) {
	f, err := b.find(ctx, spec)
	if err != nil {
		return a, err
	}
	e := entry{HNS: f.ID, NetNS: spec.NetNS, Pod: spec.Pod, IPs: spec.IPs}
	before, known := b.registry.Endpoints[spec.ID]
	b.config.Step("record endpoint")
	if err := b.registry.put(spec.ID, e); err != nil {
		return a, err
	}
	want, named := b.wanted[spec.ID]
	denied := named && acl.Equal(want, acl.DenyAll())
	p, err := split(f.Policies)
	kept := known && before.HNS == e.HNS && !denied && err == nil && len(p.own) > 0
	if !kept {
		b.config.Step("deny endpoint")
		if _, err := b.write(ctx, f, acl.DenyAll()); err != nil {
			b.wanted[spec.ID], b.refused[spec.ID] = acl.DenyAll(), err.Error()
			return a, err
		}
	}
	if b.flows != nil {
		b.flows.EndpointAdded(spec, kept)
	}
	a.MAC = f.mac()
	for _, c := range f.IPConfigurations {
		if ip, err := netip.ParseAddr(c.IPAddress); err == nil && slices.Contains(spec.IPs, ip) {
			a.Addresses = append(a.Addresses, netip.PrefixFrom(ip, int(c.PrefixLength)))
		}
	}
	return a, nil
}

// DeleteEndpoint ends an attachment. The endpoint denies everything until its plugin removes it.
func (b *Backend) DeleteEndpoint(ctx context.Context, id model.EndpointID) error {
	e, ok := b.registry.Endpoints[id]
	if !ok {
		return nil
	}
	all, err := b.scan(ctx)
	if err != nil {
		return fmt.Errorf("delete endpoint %s: %w", id, err)
	}
	if f := locate(all, e); f != nil {
		b.config.Step("close endpoint")
		if _, err := b.write(ctx, f, acl.DenyAll()); err != nil && !errors.Is(err, hns.ErrGone) {
			return fmt.Errorf("delete endpoint %s: %w", id, err)
		}
	}
	if b.flows != nil {
		b.flows.RemoveEndpoint(id)
	}
	delete(b.wanted, id)
	delete(b.refused, id)
	b.mu.Lock()
	delete(b.facts, id)
	b.mu.Unlock()
	return b.registry.remove(id)
}

// Endpoints implements dataplane.Backend.
func (b *Backend) Endpoints(ctx context.Context) ([]dataplane.Installed, error) {
	all, err := b.scan(ctx)
	if err != nil {
		return nil, err
	}
	states, err := b.hns.EndpointStates(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the states of endpoints: %w", err)
	}
	var list []dataplane.Installed
	for _, id := range slices.Sorted(maps.Keys(b.registry.Endpoints)) {
		installed := dataplane.Installed{ID: id}
		f := locate(all, b.registry.Endpoints[id])
		if f == nil {
			installed.Problems = []string{"hns has no endpoint with its addresses in its namespace: restart the pod if it runs"}
			if why := ambiguous(all, b.registry.Endpoints[id]); why != "" {
				installed.Problems, installed.Unenforced = []string{why}, true
			} else if ways := b.strayed(all, id); len(ways) > 0 {
				installed.Problems, installed.Unenforced = append(installed.Problems, ways...), true
			}
			list = append(list, installed)
			continue
		}
		want, known := b.wanted[id]
		if !known {
			want = acl.DenyAll()
		}
		p, err := split(f.Policies)
		composed, _, orderErr := compose(want, p.others)
		switch err = errors.Join(err, orderErr); {
		case err != nil:
			installed.Problems, installed.Unenforced = []string{err.Error()}, true
		case len(p.own) == 0 && len(composed) > 0, f.ID != b.registry.Endpoints[id].HNS:
			installed.Problems, installed.Unenforced = []string{"its ACLs are gone"}, true
		case known && !acl.Equal(p.own, composed):
			installed.Problems = []string{"its ACLs differ from those of its policy: another program changed them"}
		}
		more := b.further(all, id, f.HostComputeNamespace, f.ID)
		if why := f.unfiltered(); why != "" {
			more = append(more, why)
		}
		if s := states[f.ID]; s.Broken() {
			more = append(more, fmt.Sprintf("hns has stopped serving it: its state is %s: restart the pod", s))
		}
		installed.Problems, installed.Unenforced = append(installed.Problems, more...), installed.Unenforced || len(more) > 0
		list = append(list, installed)
	}
	return list, nil
}

// InForce returns nil: HNS stores addresses and ports, no classes.
func (b *Backend) InForce(context.Context) (*model.State, error) { return nil, nil }

// Close implements dataplane.Backend; HNS continues.
func (b *Backend) Close() error { return nil }

// Counters returns facts about the ACLs of others and the load balancers of kube-proxy, and the drops that events of Windows
// explain. Without these events no verdicts are counted. Ports of HNS also count drops of the other plugin.
func (b *Backend) Counters(context.Context) (c dataplane.Counters, err error) {
	if b.flows != nil {
		err = b.flows.Count(&c)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(b.facts)) {
		c.Facts = append(c.Facts, b.facts[id])
	}
	c.Facts = append(c.Facts, b.balanced...)
	return c, err
}

// Faults implements dataplane.Faulty.
func (b *Backend) Faults() (all []string) {
	for _, id := range slices.Sorted(maps.Keys(b.refused)) {
		all = append(all, fmt.Sprintf("endpoint %s: policy is NOT enforced: %s", id, b.refused[id]))
	}
	return slices.Concat(all, b.addresses.Problems(), b.balancers.Problems())
}

// nodeAddresses returns the addresses of the node that reach all its pods, besides those that the State has.
func (b *Backend) nodeAddresses() []netip.Addr {
	return b.addresses.With(b.config.NodeAddresses)
}

// Outdated implements dataplane.Dependent.
func (b *Backend) Outdated() bool { return !slices.Equal(b.nodeAddresses(), b.options.Node) }

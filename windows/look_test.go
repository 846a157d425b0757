// SPDX-License-Identifier: Apache-2.0

package windows_test

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/world"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hns/hnstest"
)

// look checks every endpoint with every probe: it must not allow a flow that none of its possible States
// allows.
func (c *churn) look() {
	c.t.Helper()
	addrs, ports := world.Probes(c.snapshot)
	list, err := c.fake.AllEndpoints(ctx)
	if err != nil {
		c.t.Fatal(err)
	}
	exists := make(map[model.EndpointID]bool)
	for _, e := range list {
		id, ours := c.whose(e.Name)
		if !ours {
			continue
		}
		exists[id] = true
		if _, spare := c.may[id]; e.HostComputeNamespace == "" && spare {
			continue
		}
		rules, err := c.fake.PortRules(e.ID)
		if _, gone := c.fake.Endpoint(ctx, e.ID); err != nil && errors.Is(gone, hns.ErrGone) {
			continue // a late removal
		}
		if err != nil {
			c.t.Fatal(err)
		}
		for _, remote := range addrs {
			own := e.IPConfigurations[0].IPAddress == remote.String() || remote.IsLoopback()
			if own || remote == hostAddress || slices.Contains(c.config.NodeAddresses, remote) {
				continue
			}
			for _, d := range model.Directions {
				c.lookAt(id, rules, d, remote, ports)
			}
		}
	}
	for id := range c.may {
		if !exists[id] {
			delete(c.may, id)
		}
	}
}

// whose returns the pod that has the endpoint of a name. A prepared endpoint that no pod has must deny
// everything, and is looked at even if it is not attached.
func (c *churn) whose(name string) (id model.EndpointID, ours bool) {
	return whose(name, c.took, c.may)
}

func whose(name string, all map[model.EndpointID]string, may map[model.EndpointID][]*model.State) (id model.EndpointID, ours bool) {
	for id, took := range all {
		if took == name && may[id] != nil {
			return id, true
		}
	}
	container, ok := strings.CutSuffix(name, "_isthmus")
	i := strings.LastIndexByte(container, '_')
	if !ok || i < 0 {
		return "", false
	}
	return model.MakeEndpointID(container[:i], container[i+1:]), true
}

func (c *churn) lookAt(id model.EndpointID, rules *hns.Rules, d model.Direction, remote netip.Addr, ports []world.Port) {
	c.t.Helper()
	c.checks += len(ports)
	if at, open := opened(c.may[id], id, rules, d, remote, ports); open {
		c.open.Add(1)
		c.t.Errorf("%s %s %s %s/%d passes, and none of %d policies allows it\n%s", id, d, remote, at.Protocol, at.Port, len(c.may[id]), c.fake.Dump())
	}
}

// opened returns a port that rules allow although none of some States does.
func opened(states []*model.State, id model.EndpointID, rules *hns.Rules, d model.Direction, remote netip.Addr, ports []world.Port) (world.Port, bool) {
	part := rules.Between(acl.PacketDirection(d), netip.Addr{}, remote, hns.Reading{})
	var may []func(world.Port) model.Decision
	for _, s := range states {
		may = append(may, toward(s, id, d, remote))
	}
	for _, at := range ports {
		if !part.Decide(uint8(at.Protocol), at.Port, 0).Allow {
			continue
		}
		allowed := func(decide func(world.Port) model.Decision) bool { return decide(at).Verdict == model.Allow }
		if !slices.ContainsFunc(may, allowed) {
			return at, true
		}
	}
	return world.Port{}, false
}

// possible is what endpoints may enforce at a time.
type possible struct {
	snapshot *model.Snapshot
	took     map[model.EndpointID]string
	may      map[model.EndpointID][]*model.State
}

// publish lets checks within writes know what endpoints may enforce now.
func (c *churn) publish() {
	c.published.Store(&possible{c.snapshot, maps.Clone(c.took), maps.Clone(c.may)})
}

// betweenEach is how many states between the ACLs of writes come on one that is checked: each takes milliseconds of
// the deadline of its call.
const betweenEach = 5

// between checks an endpoint while the ACLs of one write change one by one.
func (c *churn) between(endpoint string) {
	if c.steps.Add(1)%betweenEach != 0 {
		return
	}
	p := c.published.Load()
	e, err := c.fake.Endpoint(ctx, endpoint)
	if p == nil || err != nil {
		return
	}
	id, ours := whose(e.Name, p.took, p.may)
	rules, err := c.fake.PortRules(endpoint)
	if !ours || err != nil {
		return
	}
	if c.fake.Delayed(endpoint) {
		c.delayed.Add(1)
	}
	addrs, ports := world.Probes(p.snapshot)
	for _, remote := range addrs {
		if own := e.IPConfigurations[0].IPAddress == remote.String() || remote.IsLoopback(); own || remote == hostAddress || slices.Contains(c.config.NodeAddresses, remote) {
			continue
		}
		for _, d := range model.Directions {
			if at, open := opened(p.may[id], id, rules, d, remote, ports); open {
				c.open.Add(1)
				c.t.Errorf("within a write of ACLs %s %s %s %s/%d passes, and none of %d policies allows it\n%s", id, d, remote, at.Protocol, at.Port, len(p.may[id]), c.fake.Dump())
				return
			}
		}
	}
}

// settle does what the agent does when it starts: it reconciles its records, HNS and the policies. Then all
// is as on a node without faults.
func (c *churn) settle() {
	c.t.Helper()
	time.Sleep(3 * churnDeadline) // calls that were given up end
	c.config.CallDeadline = time.Minute
	if err := c.restart(); err != nil {
		c.t.Fatal(err)
	}
	found, err := c.backend.Endpoints(ctx)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, e := range found {
		if _, wanted := c.attached[e.ID]; wanted {
			continue
		}
		if err := c.backend.DeleteEndpoint(ctx, e.ID); err != nil {
			c.t.Fatal(err)
		}
	}
	for _, p := range c.backend.Prepared() {
		if err := c.backend.Discard(ctx, p); err != nil {
			c.t.Fatal(err)
		}
	}
	for _, spec := range c.attached {
		c.add(spec)
	}
	failed := c.failures
	c.apply()
	if c.failures != failed {
		c.t.Fatal("the last state cannot be put in force")
	}
	addrs, ports := world.Probes(c.snapshot)
	if len(c.state.Policy.Endpoints) > 0 && c.compare(c.state, addrs, ports) == 0 {
		c.t.Error("nothing was compared")
	}
	c.fake.ForgetCalls()
	c.apply()
	if n := c.count("ModifyEndpoint") + c.count("ModifyNetwork") + c.count("CreateEndpoint") + c.count("DeleteEndpoint"); n > 0 {
		c.t.Errorf("to apply the same again writes %d times: %+v", n, c.fake.Calls())
	}
	c.dropRemotes()
	fresh := &churn{node: newNode(c.t, mustVersion(c.fake), c.config)}
	for _, id := range slices.Sorted(maps.Keys(c.attached)) {
		spec := c.attached[id]
		spec.NetNS = fresh.fake.AddNamespace()
		fresh.add(spec)
	}
	if _, err := fresh.backend.Apply(ctx, c.state); err != nil {
		c.t.Fatal(err)
	}
	got, want := endpointLines(c.fake), endpointLines(fresh.fake)
	for i := range got { // a pod that took a prepared endpoint has it under that name
		for id := range c.attached {
			if name := c.took[id]; name != "" {
				got[i] = strings.Replace(got[i], " "+name+" ", " "+fresh.name(id)+" ", 1)
			}
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		c.t.Errorf("installed\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// dropRemotes removes remote endpoints of other components that did not conflict with a pod.
func (c *churn) dropRemotes() {
	list, err := c.fake.AllEndpoints(ctx)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, e := range list {
		if s := c.fake.State(e.ID); s.Broken() {
			c.t.Errorf("endpoint %s is still %s", e.Name, s)
		}
		if !e.Remote() {
			continue
		}
		if err := c.fake.DeleteEndpoint(ctx, e.ID); err != nil {
			c.t.Fatal(err)
		}
	}
}

func mustVersion(f *hnstest.Fake) hns.Version {
	v, _ := f.Version(ctx) // a fake always knows
	return v
}

// endpointLines are the endpoints that a dump lists, without where they are
// attached and what HNS has dealt out.
func endpointLines(f *hnstest.Fake) []string {
	var lines []string
	for line := range strings.Lines(withoutMACs(f.Dump())) {
		if strings.HasPrefix(line, "  endpoint ") {
			before, where, _ := strings.Cut(strings.TrimSpace(line), " flags=0 ")
			attached := !strings.Contains(where, "detached")
			if !attached {
				before += " detached"
			}
			lines = append(lines, before)
		}
	}
	return lines
}

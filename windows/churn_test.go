// SPDX-License-Identifier: Apache-2.0

package windows_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy/compile"
	"github.com/isthmus-net/isthmus/test/hnsemu/fault"
	"github.com/isthmus-net/isthmus/test/world"
	"github.com/isthmus-net/isthmus/windows"
	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hns/hnstest"
)

// churn is a node whose pods and policies come and go on an HNS with faults.
type churn struct {
	*node
	faults   *fault.Faults
	target   fault.Target
	random   *rand.Rand
	snapshot *model.Snapshot
	state    *model.State // wanted last
	deny     *model.DenySet
	attached map[model.EndpointID]dataplane.EndpointSpec
	// may are the States that an endpoint's ACLs may be of: the one that was put
	// in force last, and those that could not be since. None means deny.
	may                     map[model.EndpointID][]*model.State
	checks, failures, added int
	// together counts ADDs that ran beside another one.
	together int
	// prepared counts endpoints that were prepared, used those that pods got.
	prepared, used int

	// published is what the checks within writes of ACLs read: they run on the goroutines of calls.
	published atomic.Pointer[possible]
	steps     atomic.Int64 // states between the ACLs of one write
	open      atomic.Int64 // ports that were open and must not be
	delayed   atomic.Int64 // those that were checked while a list or a set was not in force yet

	ways              []fault.Way // that this node can meet
	outcomes          map[string]*outcome
	disturbed, struck int
	turn, misses      int // which way is next, and how often it was not met
}

// TestChurnUnderFaults attaches and removes pods and changes policies while all faults of fault.Catalogue
// occur, in turn and with faults of single calls at random. At no time is an endpoint more open than a
// policy that it was given since the last one that was surely in force. That also holds while HNS changes the
// ACLs of one write one by one, and while packets meet sets, lists or both later than HNS answers. HNS answers in another order, and an Update replaces all policies. No call takes
// longer than its deadlines. When the faults end, installed and intended state are equal.
func TestChurnUnderFaults(t *testing.T) {
	overlay := overlayConfig()
	overlay.Sets = windows.SetsOn // faults of sets are met, too
	operations := 800
	switch text := os.Getenv("ISTHMUS_CHURN"); {
	case text != "":
		n, err := strconv.Atoi(text)
		if err != nil || n < 30 {
			t.Fatalf("ISTHMUS_CHURN %q: give a number of operations from 30 on", text)
		}
		operations = (n + 2) / 3
	case testing.Short():
		operations = 40
	}
	var total churnTotals
	t.Run("all", func(t *testing.T) {
		for _, of := range []struct {
			profile             hns.Version
			config              windows.Config
			reorder, replaceAll bool
		}{{hns.Server2019, bridgeConfig(), false, false}, {hns.Server2022, bridgeConfig(), true, true}, {hns.Server2025, overlay, true, true}} {
			t.Run(of.profile.String(), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					c := newChurn(t, of.profile, of.config, of.reorder, of.replaceAll)
					defer total.add(c, operations)
					c.run(operations)
				})
			})
		}
	})
	if os.Getenv("ISTHMUS_CHURN") != "" {
		fmt.Printf("churn: operations=%d added=%d together=%d prepared=%d used=%d failed=%d disturbed=%d struck=%d checks=%d between=%d open=%d\n", total.operations, total.added, total.together,
			total.prepared, total.used, total.failures, total.disturbed, total.struck, total.checks, total.steps, total.open)
	}
}

// churnTotals adds up what the nodes did.
type churnTotals struct {
	mu                                                                                      sync.Mutex
	operations, added, together, prepared, used, failures, disturbed, struck, checks, steps int
	open                                                                                    int64
}

func (y *churnTotals) add(c *churn, operations int) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.operations, y.added, y.prepared, y.used, y.failures = y.operations+operations, y.added+c.added, y.prepared+c.prepared, y.used+c.used, y.failures+c.failures
	y.together += c.together
	y.disturbed, y.struck, y.checks, y.steps = y.disturbed+c.disturbed, y.struck+c.struck, y.checks+c.checks, y.steps+int(c.steps.Load())
	y.open += c.open.Load()
}

// run does operations under faults, and ends them.
func (c *churn) run(operations int) {
	for i := range operations {
		if i%5 == 4 {
			c.strike()
		} else {
			c.disturb()
			c.fake.SetLate(i%4 == 0 || i%4 == 1, i%4 == 1 || i%4 == 2)
			c.operate(uint64(i))
		}
		c.look()
		if c.t.Failed() {
			c.t.Fatalf("after operation %d", i)
		}
	}
	for range mostSpoilt {
		if o := c.outcomes[c.ways[c.turn].Name]; o != nil && o.spoilt > 0 {
			c.strike() // again: it must be answered in the end
			c.look()
		}
	}
	c.target.Calm()
	c.fake.SetLate(true, true)
	c.settle()
	c.t.Logf("operations=%d added=%d together=%d prepared=%d used=%d failed=%d disturbed=%d struck=%d checks=%d between=%d late=%d", operations, c.added, c.together, c.prepared, c.used, c.failures, c.disturbed,
		c.struck, c.checks, c.steps.Load(), c.delayed.Load())
	if c.delayed.Load() == 0 && mustVersion(c.fake).Supports(hns.Sets) {
		c.t.Error("no state was checked in which a list or a set was late")
	}
	if c.steps.Load() == 0 {
		c.t.Error("no state between the ACLs of one write was checked")
	}
	if testing.Short() {
		return
	}
	if c.used == 0 {
		c.t.Error("no pod got a prepared endpoint")
	}
	if c.together == 0 {
		c.t.Error("no ADDs ran at once")
	}
	c.report()
}

var churnShape = world.Shape{Pods: 12, Policies: 5, Tiers: true}

func newChurn(t *testing.T, v hns.Version, config windows.Config, reorder, replaceAll bool) *churn {
	config.CallDeadline, config.NetworkWait, config.ConnectWait = churnDeadline, churnDeadline, time.Nanosecond
	config.PreparedFile = filepath.Join(t.TempDir(), "prepared-endpoints.json")
	c := &churn{node: &node{t: t, fake: hnstest.NewFake(v), config: config, took: make(map[model.EndpointID]string)}, random: rand.New(rand.NewPCG(uint64(v.Major), 1)),
		attached: make(map[model.EndpointID]dataplane.EndpointSpec), may: make(map[model.EndpointID][]*model.State), outcomes: make(map[string]*outcome)}
	c.fake.Reorder, c.fake.Respell, c.fake.UpdateReplacesAll, c.fake.Gradual = reorder, reorder, replaceAll, c.between
	c.fake.ManagementIP = config.NodeAddresses[0].String()
	c.faults = new(fault.Faults)
	c.target = fault.Target{HNS: c.fake, Faults: c.faults, Version: v}
	for _, r := range fault.Catalogue() {
		for _, w := range r.Ways {
			written := v.Supports(hns.Sets) || config.Mode == windows.Overlay // anything of networks
			if (w.Mode == "" || w.Mode == string(config.Mode)) && (written || len(w.Faults) == 0 || w.Faults[0].Op != "Modify.network") {
				c.ways = append(c.ways, w)
			}
		}
	}
	c.snapshot = snapshot(7, churnShape)
	if err := c.restart(); err != nil {
		t.Fatal(err)
	}
	return c
}

// restart is a new agent process. If it cannot start the old one goes on.
func (c *churn) restart() error {
	c.faults.Abandon()
	b, err := windows.New(ctx, c.config, &fault.Client{Fake: c.fake, Faults: c.faults}, discard)
	if err != nil {
		c.failures++
		return err
	}
	c.backend = b
	return nil
}

// operate does one thing that happens on nodes.
func (c *churn) operate(seed uint64) {
	start := time.Now()
	switch n := c.random.IntN(100); {
	case n < 1: // much is new
		c.snapshot = snapshot(seed, churnShape)
		c.apply()
	case n < 20:
		c.change(seed)
	case n < 30:
		c.stock()
	case n < 45:
		c.attachTogether()
	case n < 62:
		if spec, ok := c.next(); ok {
			_ = c.addBy(spec, c.attachBeside) // it counts
		}
	case n < 78:
		c.deleteOne()
	case n < 86:
		c.audit()
	case n < 88:
		c.move()
	case n < 97:
		c.apply()
	default:
		_ = c.restart() // it counts
	}
	if _, err := c.backend.Idle(ctx); err != nil {
		c.failures++
	}
	// Many retries and calls of one operation are allowed; but a call without an answer must not block it
	// for ever.
	if took := time.Since(start); took > time.Minute {
		c.t.Errorf("an operation took %s", took)
	}
}

// change edits the cluster a little.
func (c *churn) change(seed uint64) {
	c.snapshot = snapshotOf(world.Mutate(seed, c.snapshot, churnShape, 1))
	if c.random.IntN(3) == 0 { // a deny list, which concerns none of the probes, comes, goes or changes
		c.deny = []*model.DenySet{nil, denying(c.state, "203.0.113.0/24").Deny, denying(c.state, "203.0.113.0/25", "198.51.100.7/32").Deny}[c.random.IntN(3)]
	}
	c.apply()
}

// snapshotOf keeps pods off the addresses that HNS keeps for itself.
func snapshotOf(s *model.Snapshot) *model.Snapshot {
	next := *s
	for id, p := range s.Pods.All() {
		for _, ip := range p.IPs {
			if last := ip.AsSlice()[len(ip.AsSlice())-1]; !p.HostNetwork && last < 4 {
				next.Pods = next.Pods.Without(id)
			}
		}
	}
	return &next
}

// candidates are the pods of this node that own their address.
func (c *churn) candidates() map[model.EndpointID]compile.Endpoint {
	all := world.Endpoints(c.snapshot, "node1")
	owners := c.snapshot.Owners()
	maps.DeleteFunc(all, func(_ model.EndpointID, e compile.Endpoint) bool { return owners.Pods[e.IPs[0]].PodID != e.Pod })
	return all
}

// next chooses a pod that is to be attached, other than some.
func (c *churn) next(but ...dataplane.EndpointSpec) (dataplane.EndpointSpec, bool) {
	candidates := c.candidates()
	others := slices.AppendSeq(but, maps.Values(c.attached))
	for _, id := range slices.Sorted(maps.Keys(candidates)) {
		e := candidates[id]
		taken := slices.ContainsFunc(others, func(s dataplane.EndpointSpec) bool { return s.ID == id || s.IPs[0] == e.IPs[0] })
		if taken || c.random.IntN(2) == 0 {
			continue
		}
		container, ifName, _ := strings.Cut(string(id), ":")
		return dataplane.EndpointSpec{ID: id, ContainerID: container, IfName: ifName, Pod: e.Pod, IPs: e.IPs[:1]}, true
	}
	return dataplane.EndpointSpec{}, false
}

// addOne attaches a pod in a new namespace, in which its container starts.
func (c *churn) addOne(spec dataplane.EndpointSpec) error {
	return c.addBy(spec, func(spec dataplane.EndpointSpec) error {
		_, err := c.backend.AddEndpoint(ctx, spec)
		return err
	})
}

func (c *churn) addBy(spec dataplane.EndpointSpec, attach func(dataplane.EndpointSpec) error) error {
	spec.NetNS = c.fake.AddNamespace()
	if err := attach(spec); err != nil {
		c.failures++
		return err
	}
	c.runs(spec)
	return c.apply()
}

// runs starts the container of an attached pod.
func (c *churn) runs(spec dataplane.EndpointSpec) {
	if err := c.fake.PutContainer(spec.NetNS, spec.ContainerID, false); err != nil {
		c.t.Fatal(err)
	}
	c.attached[spec.ID] = spec
	c.added++
}

// stock prepares an endpoint for a pod that is not attached, or discards one.
func (c *churn) stock() {
	if ready := c.backend.Prepared(); len(ready) > 4 || len(ready) > 0 && c.random.IntN(4) == 0 {
		if c.backend.Discard(ctx, ready[0]) != nil {
			c.failures++
		}
		return
	}
	spec, ok := c.next()
	if !ok {
		return
	}
	if err := c.prepare(dataplane.Prepared{IPs: spec.IPs, DNS: spec.DNS}); err != nil {
		c.failures++
		return
	}
	c.prepared++
}

// started is an attachment that runs beside the agent's loop.
type started struct {
	spec   dataplane.EndpointSpec
	done   chan struct{}
	finish func(context.Context) (dataplane.Attachment, error)
}

// start begins an attachment, which uses a prepared endpoint if there is one with the pod's address.
func (c *churn) start(spec dataplane.EndpointSpec) (started, error) {
	// StartEndpoint reads HNS before it chooses, so it may find one that Prepared does not know of yet.
	name := "spare-" + spec.IPs[0].String() + "_prepared-endpoint_isthmus"
	maps.DeleteFunc(c.took, func(_ model.EndpointID, taken string) bool { return taken == name })
	c.took[spec.ID] = name
	s := started{spec: spec, done: make(chan struct{})}
	var err error
	s.finish, err = c.backend.StartEndpoint(ctx, spec, func() { close(s.done) })
	return s, err
}

// end waits for an attachment.
func (c *churn) end(s started) error {
	<-s.done
	_, err := s.finish(ctx)
	if err == nil && c.name(s.spec.ID) == c.took[s.spec.ID] {
		c.used++
	}
	return err
}

// attachBeside makes an attachment beside an Apply of the other pods' policies.
func (c *churn) attachBeside(spec dataplane.EndpointSpec) error {
	s, err := c.start(spec)
	if err != nil {
		return err
	}
	_ = c.apply() // it counts
	return c.end(s)
}

// attachTogether makes up to four attachments at once, beside an Apply of the other pods' policies.
func (c *churn) attachTogether() {
	var specs []dataplane.EndpointSpec
	var running []started
	for range 4 {
		spec, ok := c.next(specs...)
		if !ok {
			continue
		}
		specs = append(specs, spec)
		spec.NetNS = c.fake.AddNamespace()
		s, err := c.start(spec)
		if err != nil {
			c.failures++
			continue
		}
		running = append(running, s)
	}
	_ = c.apply() // it counts
	if len(running) > 1 {
		c.together += len(running)
	}
	for _, s := range running {
		if err := c.end(s); err != nil {
			c.failures++
			continue
		}
		c.runs(s.spec)
	}
	_ = c.apply() // it counts
}

// move gives a pod a new namespace, as when its sandbox is recreated.
func (c *churn) move() {
	for _, id := range slices.Sorted(maps.Keys(c.attached)) {
		spec := c.attached[id]
		c.fake.RemoveNamespace(spec.NetNS)
		delete(c.attached, id)
		_ = c.addOne(spec) // it counts
		return
	}
}

// audit does what the agent's audit does with attachments once a minute: it attaches damaged ones again,
// and removes unknown ones.
func (c *churn) audit() {
	found, err := c.backend.Endpoints(ctx)
	if err != nil {
		c.failures++
		return
	}
	there := make(map[model.EndpointID]bool)
	for _, e := range found {
		spec, known := c.attached[e.ID]
		there[e.ID] = known
		switch {
		case !known:
			err = c.backend.DeleteEndpoint(ctx, e.ID)
		case len(e.Problems) > 0:
			_, err = c.backend.AddEndpoint(ctx, spec)
		}
		if err != nil {
			c.failures++
		}
	}
	for id, spec := range c.attached {
		if _, err := c.backend.AddEndpoint(ctx, spec); !there[id] && err != nil {
			c.failures++
		}
	}
	c.apply()
}

func (c *churn) deleteOne() {
	for _, id := range slices.Sorted(maps.Keys(c.attached)) {
		if c.random.IntN(3) > 0 {
			continue
		}
		_ = c.remove(id) // it counts
		return
	}
}

// remove is DEL; one that fails is not repeated here, as after a crash.
func (c *churn) remove(id model.EndpointID) error {
	err := c.backend.DeleteEndpoint(ctx, id)
	if err != nil {
		c.failures++
	}
	c.fake.RemoveNamespace(c.attached[id].NetNS)
	delete(c.attached, id)
	return err
}

// apply puts the policies of the attached pods in force. Pods that are gone are
// removed before, as the runtime does.
func (c *churn) apply() error {
	candidates := c.candidates()
	input := compile.Input{Snapshot: c.snapshot, Node: "node1", Endpoints: make(map[model.EndpointID]compile.Endpoint), Previous: c.state}
	for _, id := range slices.Sorted(maps.Keys(c.attached)) {
		e, ok := candidates[id]
		if !ok || e.IPs[0] != c.attached[id].IPs[0] {
			_ = c.remove(id) // it counts
			continue
		}
		input.Endpoints[id] = compile.Endpoint{Pod: e.Pod, IPs: e.IPs[:1]}
	}
	c.state, _ = compile.Once(input)
	c.state.Deny = c.deny
	for id := range c.may {
		c.may[id] = append(c.may[id], c.state)
	}
	for id := range c.state.Policy.Endpoints {
		if c.may[id] == nil {
			c.may[id] = []*model.State{c.state}
		}
	}
	c.publish()
	_, err := c.backend.Apply(ctx, c.state)
	if err != nil {
		c.failures++
	}
	defer c.publish()
	for id := range c.may {
		if !dataplane.Concerns(err, id) {
			c.may[id] = []*model.State{c.state}
		}
	}
	return err
}

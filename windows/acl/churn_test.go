// SPDX-License-Identifier: Apache-2.0

package acl_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy/compile"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// churn is a cluster with changing pods, and the state of HNS on one node.
type churn struct {
	t        *testing.T
	o        acl.Options
	snapshot *model.Snapshot
	state    *model.State
	now      *acl.Ruleset
	// writes counts the steps of all plans by action.
	writes map[acl.Action]int
}

func newChurn(t *testing.T, o acl.Options, s *model.Snapshot) *churn {
	c := &churn{t: t, o: o, snapshot: s, now: &acl.Ruleset{Lists: map[model.EndpointID][]hns.ACL{}, Sets: map[string][]netip.Addr{}}, writes: map[acl.Action]int{}}
	c.settle(false)
	c.writes = map[acl.Action]int{}
	return c
}

// settle compiles, lowers and applies. With restart it forgets the numbers of classes.
func (c *churn) settle(restart bool) {
	c.t.Helper()
	in := compile.Input{Snapshot: c.snapshot, Node: "node0", Previous: c.state, Endpoints: map[model.EndpointID]compile.Endpoint{}}
	if restart {
		in.Previous = nil
	}
	for _, p := range c.snapshot.Pods.All() {
		if p.Node == "node0" && p.Namespace == "ns0" {
			in.Endpoints[model.MakeEndpointID(p.Name, "eth0")] = compile.Endpoint{Pod: p.PodID, IPs: p.IPs}
		}
	}
	c.state, _ = compile.Once(in)
	from := inForce(c.now, c.state)
	plan := acl.NewPlan(from, acl.Lower(c.state, c.o, "").Keep(from))
	now := clone(from)
	for _, s := range plan.Steps {
		c.writes[s.Action]++
		if err := apply(now, s); err != nil {
			c.t.Fatal(err)
		}
	}
	for id := range c.state.Policy.Endpoints {
		if err := acl.Check(c.state, id, c.o, now, hns.Reading{}); err != nil {
			c.t.Fatal(err)
		}
	}
	c.now = now
}

func (c *churn) add(pods ...*model.Pod) {
	for _, p := range pods {
		c.snapshot.Pods = c.snapshot.Pods.With(p.PodID, p)
	}
}

func (c *churn) remove(match func(*model.Pod) bool) (gone []*model.Pod) {
	for _, p := range c.snapshot.Pods.All() {
		if match(p) {
			gone = append(gone, p)
			c.snapshot.Pods = c.snapshot.Pods.Without(p.PodID)
		}
	}
	return gone
}

func app(name string) func(*model.Pod) bool {
	return func(p *model.Pod) bool {
		v, _ := p.Labels.Get("app")
		return v == name && p.Node != "node0"
	}
}

// expect fails unless exactly these writes were made.
func (c *churn) expect(what string, writes map[acl.Action]int) {
	c.t.Helper()
	for _, a := range []acl.Action{acl.AddMembers, acl.WriteList, acl.RemoveMembers, acl.RemoveSet} {
		if want, ok := writes[a]; ok && want != c.writes[a] || !ok && c.writes[a] != 0 {
			c.t.Errorf("%s: %d times %s, want %d (all: %v)", what, c.writes[a], a, want, c.writes)
		}
	}
	c.writes = map[acl.Action]int{}
}

// TestPeerChurnWritesNoList checks that with sets no change of pods rewrites a list.
func TestPeerChurnWritesNoList(t *testing.T) {
	c := newChurn(t, options(hns.Server2022), large(600))

	extra := largePod(9_001)
	extra.IPs = []netip.Addr{netip.MustParseAddr("10.0.77.200")}
	c.add(extra)
	c.settle(false)
	// Two rules for TCP and UDP name app1: ingress of policy1, and egress of policy0 (in ns0 only,
	// which has this pod).
	if c.writes[acl.WriteList] != 0 || c.writes[acl.AddMembers] == 0 || c.writes[acl.RemoveMembers] != 0 {
		t.Errorf("a new pod: %v", c.writes)
	}
	added := c.writes[acl.AddMembers]
	c.writes = map[acl.Action]int{}
	c.remove(func(p *model.Pod) bool { return p == extra })
	c.settle(false)
	c.expect("the same pod gone", map[acl.Action]int{acl.RemoveMembers: added})

	gone := c.remove(app("app4"))
	c.settle(false)
	if c.writes[acl.WriteList] != 0 || c.writes[acl.RemoveSet] != 0 {
		t.Errorf("an application scaled to nothing: %v", c.writes)
	}
	c.writes = map[acl.Action]int{}
	c.settle(true)
	c.expect("a restart meanwhile", nil)
	c.add(gone...)
	c.settle(false)
	if c.writes[acl.WriteList] != 0 {
		t.Errorf("an application scaled up again: %v", c.writes)
	}
	c.writes = map[acl.Action]int{}

	for _, p := range c.remove(app("app7")) { // a rolling restart: other names, other addresses
		q := *p
		q.Name += "-new"
		a := q.IPs[0].As4()
		a[3] += 100
		q.IPs = []netip.Addr{netip.AddrFrom4(a)}
		c.add(&q)
		c.settle(false)
	}
	if c.writes[acl.WriteList] != 0 {
		t.Errorf("a rolling restart: %v", c.writes)
	}
	c.writes = map[acl.Action]int{}

	other := largePod(9_002) // labels that no pod had before
	other.Labels = model.MakeLabels(map[string]string{"app": "app2", "release": "canary"})
	other.IPs = []netip.Addr{netip.MustParseAddr("10.0.78.200")}
	c.add(other)
	c.settle(false)
	if c.writes[acl.WriteList] != 0 {
		t.Errorf("a pod of a new kind: %v", c.writes)
	}
}

// TestOneSetPerRuleOfPolicies checks that tables from the same rules share sets, so that a pod of a
// known class is one edit for any number of endpoints.
func TestOneSetPerRuleOfPolicies(t *testing.T) {
	s := large(600)
	for _, p := range s.Policies.All() {
		s.Policies = s.Policies.Without(p.Origin.Key())
	}
	everyone := largePolicy(1) // for all pods in ns0: TCP 8001 from app1
	everyone.Rules[model.Ingress][0].Ports = everyone.Rules[model.Ingress][0].Ports[:1]
	everyone.Isolates[model.Egress] = false
	everyone.Rules[model.Egress] = nil
	s.Policies = s.Policies.With(everyone.Origin.Key(), everyone)
	for i := range 6 { // and one more for each pod of the node
		p := largePolicy(2)
		p.Origin.Name = fmt.Sprintf("own%d", i)
		p.Subject.Pods = model.MakeSelector(model.Requirement{Key: "own", Operator: model.In, Values: []string{fmt.Sprint(i)}})
		p.Rules[model.Ingress][0].Ports = []model.PortMatch{{Protocol: model.SCTP, First: uint16(9000 + i), Last: uint16(9000 + i)}}
		p.Isolates[model.Egress] = false
		p.Rules[model.Egress] = nil
		s.Policies = s.Policies.With(p.Origin.Key(), p)
		pod := largePod(i * 1000) // on node0, in ns0
		pod.Labels = model.MakeLabels(map[string]string{"app": "app0", "own": fmt.Sprint(i)})
		pod.IPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(200 + i)})}
		s.Pods = s.Pods.With(pod.PodID, pod)
	}
	c := newChurn(t, options(hns.Server2022), s)
	if len(c.state.Policy.Tables) < 6 {
		t.Fatalf("only %d tables", len(c.state.Policy.Tables))
	}
	extra := largePod(9_001)
	extra.IPs = []netip.Addr{netip.MustParseAddr("10.0.77.200")}
	c.add(extra)
	c.settle(false)
	c.expect("a new pod of app1", map[acl.Action]int{acl.AddMembers: 1})
}

// TestInlineChurn checks that without sets a pod causes one write for each endpoint that names it,
// and no other write.
func TestInlineChurn(t *testing.T) {
	c := newChurn(t, options(hns.Server2019), large(600))
	pods := len(c.state.Policy.Endpoints)
	extra := largePod(9_001)
	extra.IPs = []netip.Addr{netip.MustParseAddr("10.0.77.200")}
	c.add(extra)
	c.settle(false)
	c.expect("a new pod", map[acl.Action]int{acl.WriteList: pods})
	unselected := largePod(9_003)
	unselected.Labels = model.MakeLabels(map[string]string{"app": "unnamed"})
	unselected.IPs = []netip.Addr{netip.MustParseAddr("10.0.79.200")}
	c.add(unselected)
	c.settle(false)
	c.expect("a pod that no rule names", nil)
	c.settle(true)
	c.expect("a restart", nil)
}

// TestEqualIgnoresOrder: rules, addresses and members may come in another order. Anything else is a difference.
func TestEqualIgnoresOrder(t *testing.T) {
	list := append(acl.DenyAll(), hns.ACL{ID: "a", Protocols: "6", Action: hns.Allow, Direction: hns.In, RuleType: hns.Switch, Priority: 900, RemoteAddresses: "10.0.0.1,10.0.0.2,10.0.0.3"},
		hns.ACL{ID: "b", Protocols: "17", Action: hns.Allow, Direction: hns.In, RuleType: hns.Switch, Priority: 900, RemoteAddresses: "10.0.0.1"})
	other := slices.Clone(list)
	slices.Reverse(other)
	i := slices.IndexFunc(other, func(a hns.ACL) bool { return a.ID == "a" })
	other[i].RemoteAddresses = "10.0.0.3,10.0.0.1,10.0.0.2"
	if !acl.Equal(list, other) || !acl.Equal(other, list) {
		t.Error("another order is taken for another list")
	}
	for name, change := range map[string]func(l []hns.ACL) []hns.ACL{
		"an address":        func(l []hns.ACL) []hns.ACL { l[i].RemoteAddresses = "10.0.0.3,10.0.0.1,10.0.0.4"; return l },
		"a missing address": func(l []hns.ACL) []hns.ACL { l[i].RemoteAddresses = "10.0.0.3,10.0.0.1"; return l },
		"an address twice":  func(l []hns.ACL) []hns.ACL { l[i].RemoteAddresses = "10.0.0.3,10.0.0.1,10.0.0.1"; return l },
		"a priority":        func(l []hns.ACL) []hns.ACL { l[i].Priority = 901; return l },
		"an action":         func(l []hns.ACL) []hns.ACL { l[i].Action = hns.Block; return l },
		"a missing rule":    func(l []hns.ACL) []hns.ACL { return l[1:] },
		"a rule twice":      func(l []hns.ACL) []hns.ACL { l[0] = l[1]; return l },
	} {
		if acl.Equal(list, change(slices.Clone(other))) {
			t.Errorf("%s makes no difference", name)
		}
	}
}

// TestEqualIgnoresWhatHNSAdds compares a list with its form after a round trip through HNS.
func TestEqualIgnoresWhatHNSAdds(t *testing.T) {
	list := acl.DenyAll()
	other := slices.Clone(list)
	other[0].Protocols, other[0].ID = "", "renamed"
	other[1].Action = "BLOCK"
	if !acl.Equal(list, other) {
		t.Error("equal lists differ")
	}
	other[1].Action = hns.Allow
	if acl.Equal(list, other) {
		t.Error("different lists are equal")
	}
}

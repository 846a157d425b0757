// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/fabric"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/model/immutable"
	"github.com/isthmus-net/isthmus/common/policy/compile"
	"github.com/isthmus-net/isthmus/linux"
	"github.com/isthmus-net/isthmus/linux/denylist"
	"github.com/isthmus-net/isthmus/linux/loader"
)

// auditLab is a node with everything that an audit checks. It has pods on tcx links and on
// clsact hooks, one of them with limits. It reaches other nodes by route and by tunnel, and has
// a deny list on its uplink.
type auditLab struct {
	*lab
	rng    *rand.Rand
	tally  *tally
	others []link.Link // programs that a damage attached
	// links are the kinds of links that the kernel has: tcx since 6.6, netfilter since 6.4.
	links map[string]bool
}

func newAuditLab(t *testing.T) *auditLab {
	l := newLab(t)
	l.must(l.backend.Close())
	l.xdp = denylist.Devices{Auto: true}
	l.change = func(c *linux.Config) {
		c.Fabric.Mode = fabric.Auto
		// Reading a map costs as much as its capacity.
		c.MapEntries = loader.Sizes{"peers4": 1024, "peers6": 1024, "verdicts": 2048, "tables": 512, "rows": 1024, "conns4": 8192, "conns6": 8192}
	}
	l.must(l.node.Do(func() error { return route("0.0.0.0/0", outsideAddr4) }))
	l.must(l.outside.Do(func() error { return addresses("eth0", friend4+"/24", friend6+"/64") }))
	l.deny = denyList("198.51.100.0/24", "203.0.113.7/32", "2001:db8:bad::/48")
	l.limits = map[string]model.Bandwidth{"c": {Ingress: model.Limit{Rate: 1e8}, Egress: model.Limit{Rate: 1e8}}}
	l.start()
	a := &auditLab{lab: l, rng: rand.New(rand.NewPCG(1, 2)), links: map[string]bool{
		"tcx": hasTCX(t), "netfilter": features.HaveProgramType(ebpf.Netfilter) == nil}}
	for i, name := range []string{"a", "b", "c"} {
		l.pod(name, byte(11+i))
	}
	a.enforce(a.policies(0)...)
	time.Sleep(1100 * time.Millisecond) // fastpath.period
	for l.idle() {
	}
	l.pod("d", 14) // stays on clsact hooks
	a.enforce(a.policies(0)...)
	return a
}

// policies let a reach b at port 80, and friends from outside at 8080. variant changes only
// other flows.
func (a *auditLab) policies(variant int) []*model.Policy {
	return []*model.Policy{
		isolate("b", model.Ingress, accept(pods("a"), tcp(80), udp(80)), accept(block(friend4+"/32"), udp(8080), tcp(8080)),
			accept(block("172.20.0.0/14"), tcp(uint16(9100+variant%7)))),
		isolate("a", model.Egress, accept(pods("b"), tcp(80), udp(80), udp(81))),
		isolate("c", model.Ingress, accept(block(fmt.Sprintf("10.%d.0.0/16", 20+variant%5)), tcp(443)), accept(pods("a"))),
		isolate("d", model.Ingress, accept(pods("b"), udp(53))),
	}
}

// enforce applies policies to one node of three.
func (a *auditLab) enforce(policies ...*model.Policy) {
	a.t.Helper()
	prefixes := func(texts ...string) (all []netip.Prefix) {
		for _, t := range texts {
			all = append(all, netip.MustParsePrefix(t))
		}
		return all
	}
	nodes := []*model.Node{
		{Name: "node", OS: model.Linux, Addresses: []netip.Addr{netip.MustParseAddr(nodeAddr4), netip.MustParseAddr(nodeAddr6)}, PodCIDRs: prefixes("10.1.0.0/24", "fd01::/64")},
		{Name: "far", OS: model.Linux, Addresses: []netip.Addr{netip.MustParseAddr(outsideAddr4), netip.MustParseAddr(outsideAddr6)}, PodCIDRs: prefixes("10.2.0.0/24", "fd02::/64")},
		{Name: "beyond", OS: model.Linux, Addresses: []netip.Addr{netip.MustParseAddr("172.31.0.9")}, PodCIDRs: prefixes("10.3.0.0/24", "fd03::/64")},
	}
	var all []*model.Pod
	for _, e := range a.local {
		all = append(all, &model.Pod{PodID: e.Pod, Node: "node", IPs: e.IPs, Labels: model.MakeLabels(map[string]string{"name": e.Pod.Name})})
	}
	a.cluster = model.MakeSnapshot(nil, nodes, all, policies)
	a.cluster.DenyLists = immutable.MakeMap(map[string]*model.DenyList{a.deny[0].Name: a.deny[0]})
	a.must(a.node.Do(func() (err error) {
		a.state, _ = compile.Once(compile.Input{Snapshot: a.cluster, Node: "node", Endpoints: a.local, Previous: a.state})
		_, err = a.backend.Apply(context.Background(), a.state)
		return err
	}))
}

// audit compares, as an agent does.
func (a *auditLab) audit() (found []dataplane.Drift) {
	a.t.Helper()
	return append(a.auditPairs(), a.auditAlone()...)
}

// auditAlone audits without the findings of Endpoints.
func (a *auditLab) auditAlone() (found []dataplane.Drift) {
	a.t.Helper()
	a.must(a.node.Do(func() (err error) {
		found, err = a.backend.Audit(context.Background(), a.state)
		return err
	}))
	return found
}

func (a *auditLab) auditPairs() (found []dataplane.Drift) {
	a.t.Helper()
	a.must(a.node.Do(func() error {
		installed, err := a.backend.Endpoints(context.Background())
		if err != nil {
			return err
		}
		for _, i := range installed {
			for _, p := range i.Problems {
				found = append(found, dataplane.Drift{Object: "endpoint", Endpoint: i.ID, Detail: p})
			}
		}
		return nil
	}))
	return found
}

// repair repairs the findings as an agent does.
func (a *auditLab) repair(found []dataplane.Drift) {
	a.t.Helper()
	broken := make(map[model.EndpointID]bool)
	for _, d := range found {
		if d.Object == "endpoint" {
			broken[d.Endpoint] = true
		}
	}
	a.must(a.node.Do(func() error {
		for id := range broken {
			if err := a.addHere(a.local[id].Pod.Name, a.local[id].IPs[0].As4()[3]); err != nil {
				return err
			}
		}
		_, err := a.backend.Apply(context.Background(), a.state)
		return err
	}))
}

// tally counts the damages and their outcomes.
type tally struct{ damages, found, repaired, wrong, crashes int }

// TestAuditFindsDamage damages every kind of object that the agent writes. The next audit must
// find each damage, and the Apply after it must repair it.
func TestAuditFindsDamage(t *testing.T) {
	t.Parallel()
	a := newAuditLab(t)
	a.tally = &tally{}
	kinds := a.kinds()
	if drifts := a.audit(); len(drifts) > 0 {
		t.Fatalf("drifts before any damage: %v", drifts)
	}
	intended := a.fingerprint()
	traffic := a.startTraffic()
	const damages = 200
	began := time.Now()
	order := a.rng.Perm(len(kinds)) // every kind occurs at least once
	for i := range damages {
		k := kinds[order[i%len(order)]]
		a.damage(k, intended, traffic)
		if t.Failed() {
			t.Fatalf("damage %d of kind %s", i, k.name)
		}
	}
	traffic.finish()
	n := a.tally
	t.Logf("%d kinds of damage, %v", len(kinds), time.Since(began))
	result := fmt.Sprintf("%d damages: %d found, %d repaired, %d false, %d crashes", n.damages, n.found, n.repaired, n.wrong, n.crashes)
	fmt.Println(result)
	if result != "200 damages: 200 found, 200 repaired, 0 false, 0 crashes" {
		t.Error(result)
	}
	a.cleanUnderChurn(1000)
}

// damage does one damage and checks that it is found and repaired under traffic.
func (a *auditLab) damage(k kind, intended map[string]string, traffic *probes) {
	defer func() {
		if r := recover(); r != nil {
			a.tally.crashes++
			a.t.Errorf("%s: %v", k.name, r)
		}
	}()
	a.tally.damages++
	traffic.enter(k)
	var what string
	if err := a.node.Do(func() (err error) { what, err = k.do(); return err }); err != nil {
		a.t.Fatalf("%s: %v", k.name, err)
	}
	drifts := a.audit()
	named := slices.ContainsFunc(drifts, func(d dataplane.Drift) bool { return slices.Contains(k.objects, d.Object) })
	if named {
		a.tally.found++
	} else {
		a.t.Errorf("%s (%s) was not found; found %v", k.name, what, drifts)
	}
	for _, d := range drifts {
		if d.Object != "endpoint" && !slices.Contains(new(linux.Backend).AuditedObjects(), d.Object) {
			a.t.Errorf("AuditedObjects does not contain %q, which %s damages", d.Object, k.name)
		}
		if !slices.Contains(k.objects, d.Object) {
			a.tally.wrong++
			a.t.Errorf("%s (%s): something else was found: %v", k.name, what, d)
		}
	}
	a.repair(drifts)
	traffic.leave()
	for _, other := range a.others {
		a.must(other.Close())
	}
	a.others = nil
	again := a.audit()
	is := a.fingerprint()
	differ := differences(intended, is)
	if k.renumbers {
		differ = a.verdicts()
		a.repair(nil) // tables get their own identities back
		maps.Copy(intended, a.fingerprint())
	}
	if k.moves {
		differ = slices.DeleteFunc(differ, func(d string) bool { return strings.Contains(d, a.hostEnd("d")) })
		a.delete("d") // a new pod d starts on clsact hooks, as every pod does
		a.must(a.add("d", 14))
		a.repair(nil)
		clear(intended)
		maps.Copy(intended, a.fingerprint())
	}
	if len(again) == 0 && len(differ) == 0 {
		a.tally.repaired++
	} else {
		a.t.Errorf("%s (%s) was not repaired: drifts %v, differences %s", k.name, what, again, strings.Join(differ, "\n"))
	}
	if err := traffic.check(); err != nil {
		a.t.Errorf("%s (%s): %v", k.name, what, err)
	}
}

// differences lists the entries in which two fingerprints differ.
func differences(want, is map[string]string) (differ []string) {
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if want[name] != is[name] {
			differ = append(differ, fmt.Sprintf("%s: %.300q, want %.300q", name, is[name], want[name]))
		}
	}
	for name := range is {
		if _, ok := want[name]; !ok {
			differ = append(differ, name+" is new")
		}
	}
	return differ
}

// cleanUnderChurn audits while pods come and go and policies change. It must find nothing.
func (a *auditLab) cleanUnderChurn(audits int) {
	a.t.Helper()
	a.pods["e"] = a.namespace("e")
	there, drifts := false, 0
	for i := range audits {
		switch {
		case i%20 == 5 && !there:
			a.must(a.add("e", 15))
			there = true
		case i%20 == 15 && there:
			a.delete("e")
			there = false
		case i%50 == 9:
			a.idle() // moves programs to links
		}
		if i%4 == 0 {
			a.enforce(a.policies(i)...)
		}
		audit := a.auditAlone
		if i%10 == 0 {
			audit = a.audit
		}
		if found := audit(); len(found) > 0 {
			drifts += len(found)
			a.t.Errorf("audit %d: %v", i, found)
		}
		if drifts > 10 {
			break
		}
	}
	fmt.Printf("%d clean audits under churn: %d drifts\n", audits, drifts)
}

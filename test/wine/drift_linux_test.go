// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"context"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/hnsemu/host"
	"github.com/isthmus-net/isthmus/test/netns"
	"github.com/isthmus-net/isthmus/test/traffic"
	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hostfabric"
	"github.com/isthmus-net/isthmus/windows/hostroute"
)

// metric returns a value of the agent's metrics, or 0 without it. name has the labels.
func (m *Machine) metric(name string) float64 {
	page, _ := m.Get("/metrics")
	for line := range strings.Lines(page) {
		if text, ok := strings.CutPrefix(line, name+" "); ok {
			v, _ := strconv.ParseFloat(strings.TrimSpace(text), 64)
			return v
		}
	}
	return 0
}

// interval is how often the agent compares, in the tests: HNS by --audit-interval, the host by its own constant.
const interval = 5 * time.Second

// drift is a change by another process, with the counter of its repair.
type drift struct {
	what, counter string
	damage        func() error
	repaired      func() bool
}

// TestDrift changes the routes and the forwarding of both families, an ACL list and a set of a node behind the agent. The agent
// must find, repair and count each change within one interval. Then HNS restarts, and gives the host a new interface that does not
// forward. At last Isthmus is removed, and the host has no route and no forwarding of it any more.
func TestDrift(t *testing.T) {
	m := machine(t)
	logs(t, m)
	if err := m.StartEmulator(hns.Server2022); err != nil {
		t.Fatal(err)
	}
	dir := newManifests(t, "web", "client")
	dir.write(t, "node", dualNode("win1", "10.244.3.0/24", "fd00:10:3::/64", "192.0.2.13", "fd00:2::13"))
	dir.write(t, "other", dualNode("lin1", "10.244.4.0/24", "fd00:10:4::/64", "192.0.2.14", "fd00:2::14"))
	dir.write(t, "policy", "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: web, namespace: shop}\nspec:\n"+
		"  podSelector: {matchLabels: {app: web}}\n  ingress: [{from: [{podSelector: {matchLabels: {app: client}}}]}]\n")
	other := outside6(t, m)
	if err := m.StartAgent("win1", string(dir), "--audit-interval", interval.String()); err != nil {
		t.Fatal(err)
	}
	web, client := newInside(t, m, "web"), newInside(t, m, "client")
	dir.writePods(t, web, client)
	far, far6 := netip.MustParseAddr("10.244.4.9"), netip.MustParseAddr("fd00:10:4::9")
	for _, a := range []netip.Addr{far, far6} {
		if err := other.Do(func() error { return netns.AddAddresses("uplink", netip.PrefixFrom(a, a.BitLen())) }); err != nil {
			t.Fatal(err)
		}
		if err := traffic.ServersFor(t).Echo(other, netip.AddrPortFrom(a, 80), model.TCP); err != nil {
			t.Fatal(err)
		}
	}
	works := func() {
		t.Helper()
		await(t, "the host to route and forward", func() bool { return len(hosted(m)) == ofHost })
		passes(t, m, client.ns, model.TCP, netip.Addr{}, netip.AddrPortFrom(far, 80), true)
		passes(t, m, client.ns, model.TCP, netip.Addr{}, netip.AddrPortFrom(far6, 80), true)
		passes(t, m, client.ns, model.TCP, netip.Addr{}, netip.AddrPortFrom(web.address, 80), true)
		passes(t, m, other, model.TCP, far, netip.AddrPortFrom(web.address, 80), false)
		shared.mu.Lock()
		shared.routes += ofHost
		shared.mu.Unlock()
	}
	works()
	for _, d := range driftsOf(t, m, web, client) {
		d.happen(t, m)
		works()
	}
	if err := m.StopEmulator(); err != nil {
		t.Fatal(err)
	}
	if err := m.StartEmulator(hns.Server2022); err != nil {
		t.Fatal(err)
	}
	works()
	removed(t, m)
}

// ofHost is how many routes and forwarding flags the agent gives the host.
const ofHost = 6

// dualNode returns the manifest of a Node with pod ranges and addresses of both families.
func dualNode(name, range4, range6, address4, address6 string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Node\nmetadata: {name: %s}\nspec: {podCIDRs: [%s, '%s']}\n"+
		"status: {addresses: [{type: InternalIP, address: %s}, {type: InternalIP, address: '%s'}]}\n", name, range4, range6, address4, address6)
}

// removed uninstalls Isthmus while pods are attached.
func removed(t *testing.T, m *Machine) {
	t.Helper()
	if err := m.StopAgent(); err != nil {
		t.Fatal(err)
	}
	if all := hosted(m); len(all) != ofHost {
		t.Fatalf("when the agent had stopped, the host had %v", all)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	if out, err := m.Output(m.Command(ctx, filepath.Join(m.bin, "isthmus-agent.exe"), "uninstall", "--force")); err != nil {
		t.Fatalf("uninstall: %v\n%s", err, out)
	}
	if all := hosted(m); len(all) > 0 {
		t.Errorf("uninstall left %v", all)
	}
}

// driftsOf returns the changes.
func driftsOf(t *testing.T, m *Machine, web, client *inside) []drift {
	t.Helper()
	has := func(what string) func() bool { return func() bool { return slices.Contains(hosted(m), what) } }
	off := func(name string, f hostroute.Family) func() error {
		return func() error {
			return m.NS.Do(func() error {
				return onInterface(name, func(i uint32) error { return stack().SetForwarding(i, f, false) })
			})
		}
	}
	deleted := func(to string) func() error {
		return func() error { return m.NS.Do(func() error { return deleteRoute(netip.MustParsePrefix(to)) }) }
	}
	var set, members string
	await(t, "the set of the client", func() bool {
		dump, err := m.Control("/dump", nil)
		if err != nil {
			t.Fatal(err)
		}
		if found := setInDump.FindStringSubmatch(dump); found != nil {
			set, members = found[1], found[2]
		}
		return members == client.address.String()
	})
	const repairs = "isthmus_repairs_total"
	return []drift{
		{"host route deleted", repairs, deleted("10.244.4.0/24"), has("10.244.4.0/24 by 192.0.2.14")},
		{"IPv6 host route deleted", repairs, deleted("fd00:10:4::/64"), has("fd00:10:4::/64 by fd00:2::14")},
		{"forwarding of the host's interface to pods turned off", repairs, off("vEthernet", hostroute.IPv4), has("vEthernet forwards IPv4")},
		{"forwarding of the uplink turned off", repairs, off("uplink", hostroute.IPv4), has("uplink forwards IPv4")},
		{"IPv6 forwarding of the uplink turned off", repairs, off("uplink", hostroute.IPv6), has("uplink forwards IPv6")},
		{"ACL list emptied", `isthmus_audit_drifts_total{object="acl_list"}`, func() error {
			_, err := m.Control("/acl", url.Values{"address": {web.address.String()}, "empty": {"true"}})
			return err
		}, func() bool {
			verdict, err := m.Control("/decide", url.Values{"endpoint": {web.endpoint()}, "direction": {"In"}, "remote": {"10.9.9.9"}, "protocol": {"6"}, "port": {"80"}})
			return err == nil && verdict == block
		}},
		{"set changed", `isthmus_audit_drifts_total{object="set"}`, func() error {
			_, err := m.Control("/set", url.Values{"id": {set}, "values": {"10.9.9.9"}})
			return err
		}, func() bool {
			dump, err := m.Control("/dump", nil)
			return err == nil && strings.Contains(dump, `"Values":"`+members+`"`) && !strings.Contains(dump, `"Values":"10.9.9.9"`)
		}},
	}
}

// setInDump finds the name and the members of a set of Isthmus.
var setInDump = regexp.MustCompile(`"Id":"(isthmus-[0-9a-f]+-v4)".*"Values":"([0-9.,]+)"`)

// happen makes the change, and waits for its repair.
func (d drift) happen(t *testing.T, m *Machine) {
	t.Helper()
	const clean = `isthmus_audit_runs_total{result="clean"}`
	audits, counted, compared := m.metric(clean), m.metric(d.counter), len(comparisons(t, m))
	began := time.Now()
	if err := d.damage(); err != nil {
		t.Fatalf("%s: %v", d.what, err)
	}
	await(t, "the repair after: "+d.what, func() bool { return m.metric(d.counter) > counted && d.repaired() })
	took := time.Since(began)
	// An audit may have passed the object already when it changed. The next one must find the change.
	if d.counter != "isthmus_repairs_total" && m.metric(clean) > audits+1 {
		t.Errorf("%s: %v audits found nothing", d.what, m.metric(clean)-audits)
	}
	// Likewise the comparisons of the host, which have an interval of their own.
	if missed := slices.Index(comparisons(t, m)[compared:], true); d.counter == "isthmus_repairs_total" && (missed < 0 || missed > 1) {
		t.Errorf("%s: %d comparisons of the host found nothing before the repair (-1: there was none)", d.what, missed)
	}
	fmt.Printf("drift: %s: repaired after %.1fs, interval %s; %s %v -> %v\n", d.what, took.Seconds(), interval, d.counter, counted, m.metric(d.counter))
	if took > interval+busy {
		t.Errorf("%s: repaired after %s, interval %s", d.what, took, interval)
	}
	shared.mu.Lock()
	defer shared.mu.Unlock()
	shared.drifts++
}

// comparisons returns which comparisons of the host with its plan have changed something, as the agent logs them.
func comparisons(t *testing.T, m *Machine) (changed []bool) {
	t.Helper()
	text, err := os.ReadFile(m.File("agent.log"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "host fabric compared") {
			changed = append(changed, !strings.Contains(line, "changes=0"))
		}
	}
	return changed
}

// busy is how late a busy machine may be.
const busy = 20 * time.Second

// stack is the emulated IP stack of Windows in the namespace of the caller.
func stack() hostroute.Stack { return new(host.Host).Stack() }

// onInterface calls a function with the index of an interface.
func onInterface(name string, f func(index uint32) error) error {
	all, err := stack().Interfaces()
	if err != nil {
		return err
	}
	for _, i := range all {
		if i.Name == name {
			return f(i.Index)
		}
	}
	return fmt.Errorf("no interface is called %s", name)
}

// hosted lists what the agent gives the host: its routes, and the interfaces that forward.
func hosted(m *Machine) (all []string) {
	_ = m.NS.Do(func() error { // what cannot be read is not there
		routes, err := stack().Routes()
		if err != nil {
			return err
		}
		for _, r := range routes {
			if r.Metric == hostfabric.Metric {
				all = append(all, fmt.Sprintf("%s by %s", r.Destination, r.NextHop))
			}
		}
		interfaces, err := stack().Interfaces()
		for _, i := range interfaces {
			for _, f := range []hostroute.Family{hostroute.IPv4, hostroute.IPv6} {
				if i.Forwarding[f] {
					all = append(all, fmt.Sprintf("%s forwards %s", i.Name, f))
				}
			}
		}
		return err
	})
	return all
}

// deleteRoute deletes a route of the agent from the host.
func deleteRoute(to netip.Prefix) error {
	routes, err := stack().Routes()
	if err != nil {
		return err
	}
	for _, r := range routes {
		if r.Metric == hostfabric.Metric && r.Destination == to {
			return stack().Remove(r)
		}
	}
	return fmt.Errorf("the host has no route of the agent to %s", to)
}

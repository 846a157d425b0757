// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/netns"
	"github.com/isthmus-net/isthmus/test/traffic"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// TestPacketsIPv6 sends IPv6 packets through the ACLs of isthmus-agent.exe on a node of both families: between pods of the node,
// which ask for each other by neighbour discovery, from the node, and from another node.
func TestPacketsIPv6(t *testing.T) {
	m := machine(t)
	logs(t, m)
	if err := m.StartEmulator(hns.Server2022); err != nil {
		t.Fatal(err)
	}
	dir := newManifests(t, "web", "client", "db")
	dir.write(t, "node", "apiVersion: v1\nkind: Node\nmetadata: {name: win1}\nspec: {podCIDRs: [10.244.3.0/24, 'fd00:10:3::/64']}\n"+
		"status: {addresses: [{type: InternalIP, address: 192.0.2.13}, {type: InternalIP, address: 'fd00:2::13'}]}\n")
	other := outside6(t, m)
	if err := m.StartAgent("win1", string(dir)); err != nil {
		t.Fatal(err)
	}
	web, client, db := newInside(t, m, "web"), newInside(t, m, "client"), newInside(t, m, "db")
	for _, p := range []*inside{web, client, db} {
		p.address = p.all[1]
		if p.address.Is4() {
			t.Fatalf("pod %s has the addresses %s", p.Name, p.all)
		}
		if err := traffic.ServersFor(t).Echo(p.ns, netip.AddrPortFrom(p.address, 80), model.TCP, model.UDP); err != nil {
			t.Fatal(err)
		}
	}
	dir.writePods(t, web, client, db)
	near, far, at := netip.MustParseAddr("fd00:1::9"), netip.MustParseAddr("fd00:9::9"), netip.AddrPortFrom(web.address, 80)
	passes(t, m, other, model.TCP, far, at, true)
	passes(t, m, db.ns, model.UDP, netip.Addr{}, at, true)

	dir.write(t, "policy", policy("web", "fd00:1::/64", 80)+"  - {from: [{podSelector: {matchLabels: {app: client}}}], ports: [{port: 80}]}\n")
	decided(t, m, web.Pod, flow{"In", near.String(), tcp, 80, allow}, flow{"In", client.address.String(), tcp, 80, allow},
		flow{"In", far.String(), tcp, 80, block}, flow{"In", db.address.String(), tcp, 80, block}, flow{"In", "fe80::9", tcp, 80, block}, flow{"In", "10.9.9.9", tcp, 80, block})
	passes(t, m, other, model.TCP, near, at, true)
	passes(t, m, other, model.UDP, near, at, false)
	passes(t, m, other, model.TCP, far, at, false)
	for _, p := range []*inside{web, client, db} { // they discover each other again, while everything else is denied
		if err := p.ns.Do(netns.ForgetNeighbours); err != nil {
			t.Fatal(err)
		}
	}
	passes(t, m, client.ns, model.TCP, netip.Addr{}, at, true)
	passes(t, m, client.ns, model.UDP, netip.Addr{}, at, false)
	passes(t, m, db.ns, model.TCP, netip.Addr{}, at, false)
	passes(t, m, m.NS, model.UDP, netip.Addr{}, at, true) // the node itself
	explained(t, m, func() {}, fmt.Sprintf("ingress: %s -> %s TCP/80: isolated for ingress by NetworkPolicy shop/web, no rule accepts", far, web.address),
		fmt.Sprintf("%s (shop/db) -> %s TCP/80: ", db.address, web.address))
	for _, p := range []*inside{web, client, db} {
		counted(t, "DEL", m.Delete(context.Background(), p.Pod))
	}
	passes(t, m, other, model.TCP, far, at, false)
	countPackets(t, m)
}

// outside6 is outside, with both families.
func outside6(t *testing.T, m *Machine) *netns.NS {
	t.Helper()
	other := outside(t, m)
	node, world := netip.MustParseAddr("fd00:2::13"), netip.MustParseAddr("fd00:2::14")
	near, far := netip.MustParsePrefix("fd00:1::9/128"), netip.MustParsePrefix("fd00:9::9/128")
	if err := m.NS.Do(func() error {
		if err := netns.AddAddresses("uplink", netip.PrefixFrom(node, 64)); err != nil {
			return err
		}
		if err := netns.Route(near, world); err != nil {
			return err
		}
		return netns.Route(far, world)
	}); err != nil {
		t.Fatal(err)
	}
	if err := other.Do(func() error {
		if err := netns.AddAddresses("uplink", netip.PrefixFrom(world, 64), near, far); err != nil {
			return err
		}
		return netns.Route(netip.MustParsePrefix("fd00:10:3::/64"), node)
	}); err != nil {
		t.Fatal(err)
	}
	return other
}

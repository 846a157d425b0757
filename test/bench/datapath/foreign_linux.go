// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy/compile"
	"github.com/isthmus-net/isthmus/linux"
	"github.com/isthmus-net/isthmus/linux/link"
	"github.com/isthmus-net/isthmus/test/netns"
)

// form is a form in which other CNI plugins connect pods: by routes of the node, as ptp, aws-cni and azure-vnet do, or
// by a bridge, as bridge and flannel do.
type form struct {
	name    string
	connect func(*setups, string) (*setup, error)
}

var forms = []form{{"routed", (*setups).routed}, {"bridged", (*setups).bridged}}

// alone and beside name the setups of a form without policy, and with Isthmus in mode policy.
func (f form) alone() string { return f.name + ", no policy" }

func (f form) beside(policies int) string {
	return fmt.Sprintf("Isthmus, mode policy, %s, %s", f.name, count(policies))
}

// rules names a setup with a set for all peers, or with a rule for each.
func (f form) rules(set bool, policies int) string {
	kind := "list"
	if set {
		kind = "set"
	}
	return fmt.Sprintf("nftables %s, %s, %s", kind, f.name, count(policies))
}

func count(policies int) string {
	if policies == 1 {
		return "1 policy"
	}
	return fmt.Sprintf("%d policies", policies)
}

// foreignPolicies are the numbers of policies that are compared.
var foreignPolicies = []int{1, 10_000}

// masquerade are rules like those of plugins for packets that leave the pod ranges.
const masquerade = `table inet plugin {
	chain postrouting {
		type nat hook postrouting priority srcnat
		ip saddr 10.1.0.0/24 ip daddr != 10.0.0.0/8 masquerade
		ip6 saddr fd01::/64 ip6 daddr != fd00::/8 masquerade
	}
}
`

// plugin connects the pods of a setup as other CNI plugins do. In a cluster, rules for masquerading and for Services
// make the kernel track each connection, with policy or without.
func (w *setups) plugin(f form, name string) (*setup, error) {
	of, err := f.connect(w, name)
	if err != nil {
		return nil, err
	}
	return of, of.node.Do(func() error { return nft(masquerade) })
}

// foreign compares policy on interfaces of other CNI plugins with the same interfaces without policy, and with
// nftables.
func (o options) foreign(ctx context.Context) (rows []row, err error) {
	w, err := newSetups()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	for _, f := range forms {
		if err := w.foreign(f); err != nil {
			return nil, fmt.Errorf("%s pods: %w", f.name, err)
		}
	}
	for _, n := range foreignPolicies {
		if err := w.queues(ctx, foreignWorld(n)); err != nil {
			return nil, fmt.Errorf("%s, %s: %w", knp, count(n), err)
		}
	}
	in, err := newInjector(w)
	if err != nil {
		return nil, err
	}
	for _, l := range loads {
		all, err := o.inject(ctx, w, in, l)
		if err != nil {
			return rows, errors.Join(err, in.end())
		}
		rows = append(rows, foreignRows("foreign: forwarding, "+l.name, "ns/packet", all, goal{times: 1.3})...)
	}
	if err := in.end(); err != nil {
		return rows, err
	}
	all, err := w.each(ctx, o.rounds, (*setup).connect)
	if err != nil {
		return rows, fmt.Errorf("TCP_CRR: %w", err)
	}
	return append(rows, foreignRows("foreign: TCP_CRR", "us", all, goal{more: 3})...), nil
}

// foreignWorld has policies for pods whose interfaces another plugin made.
func foreignWorld(policies int) world {
	return world{policies: policies, pods: 1000, direction: model.Ingress}
}

// foreignRows compares each setup with the one without policy. Isthmus must also be as fast as nftables with a rule for
// each peer, and as kube-network-policies.
func foreignRows(part, unit string, all map[string]figure, g goal) (rows []row) {
	for _, f := range forms {
		base := all[f.alone()]
		rows = append(rows, newRow(part, f.alone(), unit, base))
		for _, n := range foreignPolicies {
			ours := newRow(part, f.beside(n), unit, all[f.beside(n)])
			rows = append(rows, ours.beside(f.alone(), base, g))
			for _, other := range []struct {
				name string
				goal goal
			}{{f.rules(true, n), goal{}}, {f.rules(false, n), goal{times: 1}}, {f.queue(n), goal{times: 1}}} {
				if theirs := all[other.name]; len(theirs) > 0 {
					rows = append(rows, ours.beside(other.name, theirs, other.goal), newRow(part, other.name, unit, theirs).beside(f.alone(), base, goal{}))
				}
			}
		}
	}
	return rows
}

// foreign makes the setups of a form.
func (w *setups) foreign(f form) error {
	if _, err := w.plugin(f, f.alone()); err != nil {
		return err
	}
	for _, n := range foreignPolicies {
		of := foreignWorld(n)
		if err := w.policyOn(f, f.beside(n), of); err != nil {
			return fmt.Errorf("%s: %w", f.beside(n), err)
		}
		if err := errors.Join(w.rulesOn(f, f.rules(true, n), nftSet(of)), w.rulesOn(f, f.rules(false, n), nftList(of))); err != nil {
			return fmt.Errorf("nftables, %s, %s: %w", f.name, count(n), err)
		}
	}
	return nil
}

// bridged connects the pods by a bridge, as the bridge plugin does.
func (w *setups) bridged(name string) (*setup, error) {
	const bridge = "cni0"
	of, err := w.pods(name, true)
	if err != nil {
		return nil, err
	}
	gateways := []netip.Prefix{netip.MustParsePrefix("10.1.0.1/24"), netip.MustParsePrefix("fd01::1/64")}
	if err := of.node.Do(func() error {
		return errors.Join(netns.Forward(), netns.Bridge(bridge), netns.AddAddresses(bridge, gateways...))
	}); err != nil {
		return nil, err
	}
	for _, p := range of.attachments() {
		if err := netns.Connect(netns.End{NS: of.node, Name: "veth-" + p.name, Bridge: bridge}, netns.End{NS: p.ns, Name: "eth0"}); err != nil {
			return nil, err
		}
		if err := p.ns.Do(func() error { return address("eth0", p.ips) }); err != nil {
			return nil, err
		}
		p.pair.Name = "veth-" + p.name
		if err := of.node.Do(func() (err error) { p.pair.Index, err = link.Index(p.pair.Name); return err }); err != nil {
			return nil, err
		}
		if p.pair.PodMAC, err = macIn(p.ns); err != nil {
			return nil, err
		}
	}
	// The pods send to each other's MAC, not to the node's.
	of.entry.HostMAC, of.exit.HostMAC = of.exit.PodMAC, of.entry.PodMAC
	return of, nil
}

// macIn returns the MAC of a pod.
func macIn(ns *netns.NS) (mac net.HardwareAddr, err error) {
	err = ns.Do(func() error {
		l, err := netlink.LinkByName("eth0")
		if err == nil {
			mac = l.Attrs().HardwareAddr
		}
		return err
	})
	return mac, err
}

// policyOn enforces the policies of a world by the real backend in mode policy.
func (w *setups) policyOn(f form, name string, of world) error {
	setup, err := w.plugin(f, name)
	if err != nil {
		return err
	}
	cfg := linux.Defaults()
	cfg.PolicyOnly, cfg.StateDir = true, filepath.Join(w.dir, fmt.Sprintf("%d-state", len(w.list)))
	if err := os.Mkdir(cfg.StateDir, 0o700); err != nil {
		return err
	}
	return setup.node.Do(func() error {
		b, err := w.backend(setup, cfg, "node")
		if err != nil {
			return err
		}
		endpoints := make(map[model.EndpointID]compile.Endpoint)
		for _, p := range setup.attachments() {
			pair := *p.pair
			if err := p.attach(b, endpoints); err != nil {
				return err
			}
			*p.pair = pair // the frames of the pods stay the same
		}
		return apply(b, of.state(endpoints))
	})
}

// rulesOn enforces policies by rules of nftables.
func (w *setups) rulesOn(f form, name, rules string) error {
	setup, err := w.filtered(f, name)
	if err != nil {
		return err
	}
	return setup.node.Do(func() error { return nft(rules) })
}

// filtered connects pods as plugin does. Packets on a bridge pass the rules of the node only with the setting that
// Kubernetes demands for that.
func (w *setups) filtered(f form, name string) (*setup, error) {
	setup, err := w.plugin(f, name)
	if err != nil {
		return nil, err
	}
	return setup, setup.node.Do(func() error {
		if err := os.WriteFile("/proc/sys/net/bridge/bridge-nf-call-iptables", []byte("1"), 0); err != nil && f.name == "bridged" {
			return err
		}
		return nil
	})
}

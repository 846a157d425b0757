// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/netns"
	"github.com/isthmus-net/isthmus/test/traffic"
)

const (
	// outside is an address beyond the cluster, to which the nodes' default routes lead.
	outside = "203.0.113.1"
	// servicePort is the port of pods that greet, and of the server outside.
	servicePort = 8080
)

// mixedServices are the Services of one pod of each system.
const mixedServices = `
{apiVersion: v1, kind: Service, metadata: {name: linux, namespace: mixed}, spec: {selector: {app: l1}, ports: [
 {name: tcp, port: 80, targetPort: 8080}, {name: udp, protocol: UDP, port: 80, targetPort: 8080}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: windows, namespace: mixed}, spec: {selector: {app: w1}, ports: [
 {name: tcp, port: 80, targetPort: 8080}, {name: udp, protocol: UDP, port: 80, targetPort: 8080}]}}
`

// mixedTraffic lets pods of both systems use names, Services, nodes and an address outside of the cluster, without
// policies.
func (l *lab) mixedTraffic(ctx context.Context, w *windowsNode, pods map[string]*talker) (err error) {
	servers := &traffic.Servers{}
	defer func() { err = errors.Join(err, servers.Close()) }()
	for _, p := range pods {
		if err := servers.Greet(p.ns, netip.AddrPortFrom(p.address, servicePort), traffic.WhoAmI); err != nil {
			return err
		}
	}
	if _, err := l.in(l.fabric, "ip", "address", "replace", outside+"/32", "dev", "lo"); err != nil {
		return err
	}
	beyond := netip.AddrPortFrom(netip.MustParseAddr(outside), servicePort)
	if err := servers.Greet(l.fabric, beyond, traffic.WhoAmI); err != nil {
		return err
	}
	if err := l.apply(mixedServices); err != nil {
		return err
	}
	services := make(map[string]netip.AddrPort)
	for _, name := range []string{"linux", "windows"} {
		ip, err := l.kubectl("-n", "mixed", "get", "service", name, "-o", "jsonpath={.spec.clusterIP}")
		if err != nil {
			return err
		}
		a, err := netip.ParseAddr(ip)
		if err != nil {
			return err
		}
		services[name] = netip.AddrPortFrom(a, 80)
	}
	var errs []error
	for _, c := range mixedCalls(l, pods, services, beyond) {
		errs = append(errs, until(ctx, time.Minute, c.name, c.try))
	}
	for _, name := range []string{"w1", "w2"} {
		errs = append(errs, w.resolvesAll(ctx, pods[name], services))
	}
	return errors.Join(errs...)
}

// mixedCall is a flow, and the address that its server must see.
type mixedCall struct {
	name string
	flow traffic.Flow
	seen netip.Addr
}

// try opens the flow once.
func (c mixedCall) try() error {
	seen, err := c.flow.Seen(2 * time.Second)
	if err == nil && seen != c.seen {
		err = fmt.Errorf("the server sees %s, want %s", seen, c.seen)
	}
	return err
}

// mixedCalls lists the calls by TCP and UDP: of Services by pods that are not behind them, of the server outside by
// all pods, and of all pods by the first node itself. Outside, pods have the address of their node.
func mixedCalls(l *lab, pods map[string]*talker, services map[string]netip.AddrPort, beyond netip.AddrPort) (all []mixedCall) {
	node, windows := l.nodes[0].addresses[0], l.primary().windows().Addr()
	nodeOf := map[string]netip.Addr{"l1": node, "l2": l.nodes[1].addresses[0], "w1": windows, "w2": windows}
	for _, p := range []model.Protocol{model.TCP, model.UDP} {
		add := func(from string, ns *netns.NS, what string, to netip.AddrPort, seen netip.Addr) {
			all = append(all, mixedCall{fmt.Sprintf("%s to %s by %s", from, what, p), traffic.Flow{NS: ns, To: to, Protocol: p}, seen})
		}
		for _, call := range [][2]string{{"w1", "linux"}, {"w2", "linux"}, {"w2", "windows"}, {"l1", "windows"}, {"l2", "windows"}, {"l2", "linux"}} {
			from := pods[call[0]]
			add(from.name, from.ns, "Service "+call[1], services[call[1]], from.address)
		}
		for name, pod := range pods {
			add(name, pod.ns, "outside", beyond, nodeOf[name])
		}
		for _, name := range []string{"w1", "w2"} {
			to := netip.AddrPortFrom(pods[name].address, servicePort)
			add(l.nodes[0].name, l.nodes[0].ns, name, to, node)
		}
	}
	return all
}

// resolvesAll checks that a pod resolves the names of the Services in all forms, and no other name.
func (n *windowsNode) resolvesAll(ctx context.Context, p *talker, services map[string]netip.AddrPort) error {
	var errs []error
	for service, at := range services {
		for _, name := range []string{service + ".mixed.svc.cluster.local", service + ".mixed", service} {
			errs = append(errs, until(ctx, time.Minute, p.name+" to resolve "+name, func() error {
				found, err := n.resolve(ctx, p, name)
				if err == nil && !slices.Equal(found, []netip.Addr{at.Addr()}) {
					err = fmt.Errorf("it resolves to %v, want %s", found, at.Addr())
				}
				return err
			}))
		}
	}
	found, err := n.resolve(ctx, p, "missing")
	if missing := (*net.DNSError)(nil); !errors.As(err, &missing) || !missing.IsNotFound {
		errs = append(errs, fmt.Errorf("%s resolves a name that does not exist to %v: %w", p.name, found, err))
	}
	return errors.Join(errs...)
}

// resolve asks for the IPv4 addresses of a name from within a Windows pod.
func (n *windowsNode) resolve(ctx context.Context, p *talker, name string) ([]netip.Addr, error) {
	pod := n.pod("mixed/" + p.name)
	if pod == nil {
		return nil, fmt.Errorf("pod %s does not run", p.name)
	}
	return n.machine.Resolve(ctx, p.ns, pod.hcn, name)
}

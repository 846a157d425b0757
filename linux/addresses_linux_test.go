// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/netns"
	"github.com/isthmus-net/isthmus/test/traffic"
)

// furtherIPs are addresses that a pod has besides podIPs.
func furtherIPs(n byte) []netip.Addr { return podIPs(n + 100) }

// furtherAddresses gives a pod a second address of each family, as its plugin does with several addresses per pod.
func (l *lab) furtherAddresses(pod string, n byte) {
	l.t.Helper()
	ips := furtherIPs(n)
	l.must(l.pods[pod].Do(func() error {
		return netns.AddAddresses("eth0", netip.PrefixFrom(ips[0], 32), netip.PrefixFrom(ips[1], 128))
	}))
	if l.bridged() {
		return
	}
	l.must(l.node.Do(func() error {
		veth, err := netlink.LinkByName("veth-" + pod)
		for _, ip := range ips {
			if err == nil {
				err = netlink.RouteReplace(&netlink.Route{LinkIndex: veth.Attrs().Index, Scope: netlink.SCOPE_LINK, Dst: &net.IPNet{IP: ip.AsSlice(), Mask: net.CIDRMask(ip.BitLen(), ip.BitLen())}})
			}
		}
		return err
	}))
}

// A process in a pod adds addresses that no network plugin named. Policy decides the packets of the pod's own ones. No packet from
// or to another passes, whatever policy says, and the address is reported.
func TestUnassignedAddresses(t *testing.T) {
	t.Parallel()
	onForeign(t, func(t *testing.T, l *lab) {
		a := l.running("a", 11)
		b := l.running("b", 12)
		l.furtherAddresses("b", 12)
		for _, ns := range []*netns.NS{a, b, l.outside, l.node} {
			l.echo(ns, 90)
		}
		for i, to := range furtherIPs(12) { // the network connects it
			l.allowed(a, "tcp", to.String(), 90)
			l.from(b, to, podIPs(11)[i], true)
			l.from(b, to, netip.MustParseAddr([]string{outsideAddr4, outsideAddr6}[i]), true)
		}
		l.must(l.add("a", 11))
		l.must(l.adopt("b", l.having(12)[0].Handle, 12))
		for _, policies := range [][]*model.Policy{nil, {isolate("b", model.Ingress, accept(pods("a"))), isolate("b", model.Egress, accept(pods("a")))}} {
			l.apply(policies...)
			for i, to := range furtherIPs(12) {
				l.allowed(a, "tcp", podIPs(12)[i].String(), 90)
				l.from(b, podIPs(12)[i], podIPs(11)[i], true)
				for _, from := range []*netns.NS{a, l.outside, l.node} {
					l.denied(from, "tcp", to.String(), 90)
				}
				for _, target := range []netip.Addr{podIPs(11)[i], netip.MustParseAddr([]string{outsideAddr4, outsideAddr6}[i]), netip.MustParseAddr([]string{nodeAddr4, nodeAddr6}[i])} {
					l.from(b, to, target, false)
				}
			}
		}
		l.reportsFurther(furtherIPs(12))
	})
}

// from sends from one address of a pod.
func (l *lab) from(pod *netns.NS, from, to netip.Addr, passes bool) {
	l.t.Helper()
	limit := silence
	if passes {
		limit = patience
	}
	err := traffic.Flow{NS: pod, From: from, To: netip.AddrPortFrom(to, 90), Protocol: model.TCP}.Try(context.Background(), limit)
	if passes != (err == nil) || err != nil && !passes && !traffic.Silent(err) {
		l.t.Errorf("from %s to %s: %v, want it to pass: %t", from, to, err, passes)
	}
}

// An address that a process adds to a pod which an ADD attached is reported, too. Its end is found by the network namespace.
func TestUnassignedAddressOfAttached(t *testing.T) {
	onForeign(t, func(t *testing.T, l *lab) {
		l.pod("b", 12)
		l.apply()
		l.furtherAddresses("b", 12)
		l.reportsFurther(furtherIPs(12))
	})
}

// reportsFurther checks that the further addresses of the only such pod are reported, and nothing else.
func (l *lab) reportsFurther(ips []netip.Addr) {
	l.t.Helper()
	var reported []string
	l.must(l.node.Do(func() error {
		all, err := l.backend.Endpoints(context.Background())
		for _, i := range all {
			reported = append(reported, i.InPod...)
			if len(i.Problems) > 0 || i.Unenforced {
				err = errors.Join(err, errors.New(strings.Join(i.Problems, ", ")))
			}
		}
		return err
	}))
	if len(reported) != 1 || !strings.Contains(reported[0], ips[0].String()+", "+ips[1].String()) {
		l.t.Errorf("reported %q, want the addresses %v", reported, ips)
	}
}

// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux"
	"github.com/isthmus-net/isthmus/test/traffic"
)

// observing returns a lab whose node observes its pods.
func observing(t *testing.T, l *lab) *lab {
	t.Helper()
	change := l.change
	l.change = func(c *linux.Config) {
		change(c)
		c.ObserveNode = l.observe == model.ObserveAll
	}
	l.observe = model.ObserveAll
	l.startAgain()
	return l
}

// startAgain replaces the agent by one that knows its pods again.
func (l *lab) startAgain() {
	l.t.Helper()
	l.must(l.backend.Close())
	l.start()
	l.state = nil
	for _, e := range l.local {
		l.must(l.add(e.Pod.Name, e.IPs[0].As4()[3]))
	}
}

// Observed pods lose no packet, before they have a policy and under one that denies everything. The denials are
// events with their cause. Enforcement begins and ends under traffic, without a restart of connections that policy
// allows.
func TestObserve(t *testing.T) {
	t.Parallel()
	onForeign(t, func(t *testing.T, l *lab) {
		observing(t, l)
		a, b := l.pod("a", 11), l.pod("b", 12)
		l.echo(b, 90)
		l.echo(b, 91)
		l.echo(l.outside, 90)
		everywhere := func() {
			t.Helper()
			for _, to := range []string{"10.1.0.12", "fd01::c", outsideAddr4, outsideAddr6} {
				l.allowed(a, "tcp", to, 90)
				l.allowed(a, "udp", to, 90)
			}
		}
		everywhere() // no State names the pods
		only91 := []*model.Policy{isolate("b", model.Ingress, accept(pods("a"), tcp(91))), isolate("a", model.Egress, accept(pods("b")))}
		l.apply(only91...)
		everywhere()
		l.takeObserved()
		l.allowed(a, "tcp", "10.1.0.12", 90)
		l.allowed(a, "tcp", "10.1.0.12", 91)
		l.allowed(l.outside, "tcp", "fd01::c", 90)
		const isolated = "isolated for ingress by NetworkPolicy default/b-ingress, no rule accepts"
		l.observes(
			"b: deny of ingress from 10.1.0.11 to 10.1.0.12 TCP/90: "+isolated,
			"b: deny of ingress from "+outsideAddr6+" to fd01::c TCP/90: "+isolated)

		// A new agent continues to observe, also before it knows the pods.
		l.must(l.backend.Close())
		everywhere()
		l.start()
		everywhere()
		l.startAgain()
		everywhere()
		l.apply(only91...)
		everywhere()
		l.sound()

		// Enforcement begins: the connection that policy denies stops, the other one continues.
		denied, kept := l.dial("a", "10.1.0.12", 90), l.dial("a", "10.1.0.12", 91)
		defer denied.Close()
		defer kept.Close()
		l.apply(isolate("b", model.Ingress), isolate("a", model.Egress)) // every flow is decided again
		l.must(traffic.Exchange(denied, patience))
		l.apply(only91...)
		l.must(traffic.Exchange(denied, patience))
		l.observe = model.ObserveSome
		l.apply(only91...)
		l.must(traffic.Exchange(kept, patience))
		if traffic.Exchange(denied, silence) == nil {
			t.Error("a connection that policy denies continues under enforcement")
		}
		l.denied(a, "tcp", "fd01::c", 90)
		l.denied(a, "udp", outsideAddr4, 90)
		l.observe = model.ObserveAll
		l.apply(only91...)
		l.must(traffic.Exchange(kept, patience))
		everywhere()
	})
}

// Observed pods reach every backend of Services, and every decision after DNAT is reported.
func TestObserveServices(t *testing.T) {
	t.Parallel()
	onForeign(t, func(t *testing.T, l *lab) {
		observing(t, serviceLab(t, l))
		l.apply(isolate("a", model.Egress))
		l.takeObserved()
		l.judge("a", [4]bool{true, true, true, true})
		if n := len(l.takeObserved()); n == 0 {
			t.Error("no event about a Service that policy denies")
		}
		l.observe = model.ObserveSome
		l.apply(isolate("a", model.Egress))
		l.judge("a", [4]bool{})
	})
}

// Packets that enforcement drops for other reasons than policy pass too, and are reported.
func TestObserveDrops(t *testing.T) {
	onForeign(t, func(t *testing.T, l *lab) {
		observing(t, l)
		a, b := l.pod("a", 11), l.pod("b", 12)
		l.apply()
		wa, wb := l.wire(a, "eth0"), l.wire(b, "eth0")
		l.must(l.node.Do(func() error {
			return errors.Join(sysctl("ipv4/conf/all/rp_filter", "0"), sysctl("ipv4/conf/veth-a/rp_filter", "0"), sysctl("ipv4/conf/eth0/rp_filter", "0"))
		}))
		for i, src := range []string{"10.1.0.77", "fd01::4d"} {
			word := fmt.Sprintf("forged-%d-", i)
			for _, to := range []net.HardwareAddr{l.hostMAC("a"), l.macIn(b, "eth0")} { // by the host, and by the bridge
				wa.send(udpFrame(wa, to, src, []string{"10.1.0.12", "fd01::c"}[i], 1, 9999, word))
			}
			if !wb.await(word) {
				t.Errorf("a packet from %s does not arrive", src)
			}
		}
		if got := l.takeObserved(); len(got) == 0 {
			t.Error("no event about packets with a forged source")
		}
		// No pod sends a packet that comes from the uplink with the address of one.
		wo, up := l.wire(l.outside, "eth0"), l.macIn(l.node, "eth0")
		for i, src := range []string{"10.1.0.11", "fd01::b"} {
			word := fmt.Sprintf("uplink-%d-", i)
			wo.send(udpFrame(wo, up, src, []string{"10.1.0.12", "fd01::c"}[i], 1, 9999, word))
			if !wb.await(word) {
				t.Errorf("a packet from the uplink with the source %s does not arrive", src)
			}
		}
	})
}

// takeObserved returns the events about observed packets since the last call, as takeEvents does.
func (l *lab) takeObserved() (all []string) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	l.must(l.backend.Watch(ctx, func(list []model.FlowEvent) {
		for _, e := range list {
			if e.Observed {
				all = append(all, eventText(e))
			}
		}
	}))
	return all
}

// observes checks that each of these events occurs about an observed packet, and no other denial.
func (l *lab) observes(want ...string) {
	l.t.Helper()
	missing, known := make(map[string]bool), make(map[string]bool)
	for _, w := range want {
		missing[w], known[w] = true, true
	}
	for began := time.Now(); len(missing) > 0 && time.Since(began) < patience; {
		for _, text := range l.takeObserved() {
			if !known[text] && strings.Contains(text, ": deny of ") { // and no drops, as of IGMP
				l.t.Errorf("unexpected event %q", text)
			}
			delete(missing, text)
		}
	}
	for text := range missing {
		l.t.Errorf("no event %q", text)
	}
}

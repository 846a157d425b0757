// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux"
	"github.com/isthmus-net/isthmus/linux/loader"
	"github.com/isthmus-net/isthmus/test/netns"
	"github.com/isthmus-net/isthmus/test/traffic"
)

// takeEvents returns the events since the last call, as text without source ports. It removes
// duplicates, for example of a retransmitted TCP SYN.
func (l *lab) takeEvents() []string {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	all := make(map[string]bool)
	l.must(l.backend.Watch(ctx, func(list []model.FlowEvent) {
		for _, e := range list {
			if ago := time.Since(e.Time); ago < 0 || ago > time.Minute {
				l.t.Errorf("an event %s ago", ago)
			}
			all[eventText(e)] = true
		}
	}))
	return slices.Sorted(maps.Keys(all))
}

// eventText returns an event as text without the source port.
func eventText(e model.FlowEvent) string {
	what := e.Verdict.String()
	if e.Drop != model.NotDropped {
		what = e.Drop.String()
	}
	to := fmt.Sprintf("%s %s/%d", e.Dst, e.Protocol, e.DstPort)
	if e.Service.IsValid() {
		to += " as " + e.Service.String()
	}
	why := "not known"
	if e.Cause != nil {
		why = e.Cause.String()
	}
	return fmt.Sprintf("%s: %s of %s from %s to %s: %s", e.Pod.Name, what, e.Direction, e.Src, to, why)
}

// emits checks that exactly these events occurred.
func (l *lab) emits(want ...string) {
	l.t.Helper()
	got := l.takeEvents()
	// On a busy machine events may be late. Surplus ones come no later than those that are due.
	for deadline := time.Now().Add(patience); len(got) < len(want) && time.Now().Before(deadline); {
		got = append(got, l.takeEvents()...)
		slices.Sort(got)
		got = slices.Compact(got)
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		l.t.Errorf("events\n%q, want\n%q", got, want)
	}
}

const open = "no policy isolates the pod for "

func TestFlowEvents(t *testing.T) {
	l := newLab(t)
	a, b := l.pod("a", 11), l.pod("b", 12)
	l.echo(b, 80)
	l.denied(a, "tcp", "10.1.0.12", 80)
	l.emits("a: deny of egress from 10.1.0.11 to 10.1.0.12 TCP/80: policy not known yet")
	l.apply()
	l.takeEvents()
	// Between two pods both ends cause an event, although one program decides for both.
	l.allowed(a, "tcp", "10.1.0.12", 80)
	l.allowed(a, "udp", "fd01::c", 80)
	l.emits("a: allow of egress from 10.1.0.11 to 10.1.0.12 TCP/80: "+open+"egress",
		"b: allow of ingress from 10.1.0.11 to 10.1.0.12 TCP/80: "+open+"ingress",
		"a: allow of egress from fd01::b to fd01::c UDP/80: "+open+"egress",
		"b: allow of ingress from fd01::b to fd01::c UDP/80: "+open+"ingress")

	l.apply(isolate("b", model.Ingress, accept(pods("a"), tcp(80))))
	l.takeEvents()
	const rule = "ingress rule 0 of NetworkPolicy default/b-ingress, tier NetworkPolicy"
	const isolated = "isolated for ingress by NetworkPolicy default/b-ingress, no rule accepts"
	l.allowed(a, "tcp", "10.1.0.12", 80)
	l.denied(a, "tcp", "fd01::c", 81)
	l.denied(l.outside, "tcp", "10.1.0.12", 80)
	l.emits("a: allow of egress from 10.1.0.11 to 10.1.0.12 TCP/80: "+open+"egress",
		"b: allow of ingress from 10.1.0.11 to 10.1.0.12 TCP/80: "+rule,
		"a: allow of egress from fd01::b to fd01::c TCP/81: "+open+"egress",
		"b: deny of ingress from fd01::b to fd01::c TCP/81: "+isolated,
		"b: deny of ingress from "+outsideAddr4+" to 10.1.0.12 TCP/80: "+isolated)

	// Flows that lose their policy cause an event when their packets are dropped.
	var c net.Conn
	l.must(a.Do(func() (err error) { c, err = net.Dial("tcp", "10.1.0.12:80"); return err }))
	defer c.Close()
	l.must(traffic.Exchange(c, patience))
	l.takeEvents()
	l.apply(isolate("b", model.Ingress))
	if traffic.Exchange(c, silence) == nil {
		t.Error("the connection goes on under a policy that denies it")
	}
	l.must(c.(*net.TCPConn).SetLinger(0))
	l.must(c.Close()) // prevents retransmissions
	l.emits("b: revoked of ingress from 10.1.0.11 to 10.1.0.12 TCP/80: not known")

	// A restarted agent reads the events since it stopped, and explains them as soon as it
	// knows the policies again.
	l.must(l.backend.Close())
	l.denied(l.outside, "tcp", "10.1.0.12", 80)
	l.start()
	l.state = nil
	l.must(l.add("a", 11))
	l.must(l.add("b", 12))
	l.apply(isolate("b", model.Ingress))
	l.emits("b: deny of ingress from " + outsideAddr4 + " to 10.1.0.12 TCP/80: " + isolated)

	// If policy changed before the event is read, the event names the rules of its time.
	l.denied(a, "tcp", "10.1.0.12", 80)
	l.apply()
	l.emits("a: allow of egress from 10.1.0.11 to 10.1.0.12 TCP/80: "+open+"egress",
		"b: deny of ingress from 10.1.0.11 to 10.1.0.12 TCP/80: "+isolated)
	if n := l.status().Events; n.Limited != 0 || n.Lost != 0 {
		t.Errorf("events were left out: %+v", n)
	}
}

// A flow to a Service causes an event after the verdict, with both addresses.
func TestFlowEventsOfServices(t *testing.T) {
	l := newServiceLab(t)
	l.apply(isolate("a", model.Egress, accept(pods("b"), tcp(8080))))
	l.takeEvents()
	l.allowed(l.pods["a"], "tcp", service4, 80)
	l.denied(l.pods["a"], "tcp", service6, 81)
	const isolated = "isolated for egress by NetworkPolicy default/a-egress, no rule accepts"
	l.emits("a: allow of egress from 10.1.0.11 to 10.1.0.12 TCP/8080 as "+service4+":80: egress rule 0 of NetworkPolicy default/a-egress, tier NetworkPolicy",
		"b: allow of ingress from 10.1.0.11 to 10.1.0.12 TCP/8080: "+open+"ingress",
		"a: deny of egress from fd01::b to "+outsideAddr6+" TCP/8080 as ["+service6+"]:81: "+isolated)
}

// An agent that supports events replaces one that does not: only the maps of events are
// missing.
func TestFlowEventsAfterUpgrade(t *testing.T) {
	l := newLab(t)
	a, b := l.pod("a", 11), l.pod("b", 12)
	l.echo(b, 80)
	l.apply()
	l.must(l.backend.Close())
	for _, name := range []string{"events", "event_budgets", "event_losses"} {
		l.must(os.Remove(filepath.Join(l.bpffs, loader.LayoutVersion, name)))
	}
	l.start()
	l.state = nil
	l.must(l.add("a", 11))
	l.must(l.add("b", 12))
	l.allowed(a, "tcp", "10.1.0.12", 80) // as before, by the policy in force
	l.apply()
	l.takeEvents()
	l.allowed(b, "udp", "10.1.0.12", 80) // itself
	l.allowed(a, "udp", "10.1.0.12", 80)
	l.emits("a: allow of egress from 10.1.0.11 to 10.1.0.12 UDP/80: "+open+"egress",
		"b: allow of ingress from 10.1.0.11 to 10.1.0.12 UDP/80: "+open+"ingress")
}

// Discarded events are counted once: also after a restart, and after another pod got the slot of the one that caused them.
func TestDiscardedEventsAreKept(t *testing.T) {
	const most = 5
	l := newLabWith(t, func(c *linux.Config) { c.Events.Rate, c.Events.Burst = 1, most })
	l.pod("a", 11)
	c, d := l.pod("c", 13), l.pod("d", 14)
	l.apply(isolate("a", model.Ingress), isolate("c", model.Egress), isolate("d", model.Egress))
	shown := func() (n int) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		l.must(l.backend.Watch(ctx, func(list []model.FlowEvent) { n += len(list) }))
		return n
	}
	flood := func(from *netns.NS) {
		t.Helper()
		shown()
		before := l.status()
		for range 100 {
			reach(from, "tcp", "10.1.0.11", 81, 5*time.Millisecond) // one SYN
		}
		now := l.status()
		denied, discarded := now.Verdicts[model.Egress][model.Deny]-before.Verdicts[model.Egress][model.Deny], now.Events.Limited-before.Events.Limited
		if events := shown(); discarded == 0 || uint64(events)+discarded != denied {
			t.Errorf("of %d denied flows %d caused events, and %d were discarded", denied, events, discarded)
		}
	}
	same := func(want uint64, after string) {
		t.Helper()
		if n := l.status().Events.Limited; n != want {
			t.Errorf("%d discarded events after %s, want %d", n, after, want)
		}
	}
	flood(d)
	flood(c)
	n := l.status().Events.Limited
	l.delete("d")
	same(n, "the pod is gone")
	l.must(l.backend.Close())
	l.start()
	l.state = nil
	same(n, "a restart")
	l.must(l.add("a", 11))
	l.must(l.add("c", 13))
	e := l.pod("e", 15)
	same(n, "another pod got the slot")
	l.apply(isolate("c", model.Egress), isolate("e", model.Egress))
	flood(e)
}

// SPDX-License-Identifier: Apache-2.0

package kubeproxy_test

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/kubeproxy"
)

// host holds the load balancers of a host.
type host struct {
	list  []hns.LoadBalancer
	err   error
	calls int
	takes time.Duration
}

func (h *host) LoadBalancers(context.Context) ([]hns.LoadBalancer, error) {
	h.calls++
	time.Sleep(h.takes)
	return h.list, h.err
}

// none are the addresses of the node.
func none() []netip.Addr { return nil }

// balancer is one of kube-proxy.
func balancer(dsr bool, addresses ...string) hns.LoadBalancer {
	b := hns.LoadBalancer{FrontendVIPs: addresses}
	if dsr {
		b.Flags = hns.DSRFlag
	}
	return b
}

// TestProblems checks which load balancers show that kube-proxy runs without DSR.
func TestProblems(t *testing.T) {
	nodePort, noAddress := balancer(false), balancer(false, "")
	for name, c := range map[string]struct {
		list     []hns.LoadBalancer
		old      bool
		problem  string // empty: none
		describe string
	}{
		"none":             {nil, false, "", "none, kube-proxy"},
		"with DSR":         {[]hns.LoadBalancer{balancer(true, "10.96.0.1"), balancer(true, "10.96.0.10"), nodePort}, false, "", "2 of 2"},
		"external address": {[]hns.LoadBalancer{balancer(true, "10.96.0.1"), balancer(false, "203.0.113.5")}, false, "", "1 of 2"},
		"without DSR":      {[]hns.LoadBalancer{balancer(false, "10.96.0.1"), balancer(false, "10.96.0.10"), nodePort}, false, "(2 load balancers)", "0 of 2"},
		"IPv6 without DSR": {[]hns.LoadBalancer{{FrontendVIPs: []string{"fd00::1"}, Flags: 2}}, false, "winkernel.enableDSR: true", "0 of 1"},
		"IPv6 with DSR":    {[]hns.LoadBalancer{{FrontendVIPs: []string{"fd00::1"}, Flags: 3}}, false, "", "1 of 1"},
		"node ports only":  {[]hns.LoadBalancer{nodePort, noAddress}, false, "", "none, kube-proxy"},
		"an old HNS":       {[]hns.LoadBalancer{balancer(false, "10.96.0.1")}, true, "update Windows", "0 of 1"},
	} {
		w := kubeproxy.New(&host{list: c.list}, !c.old, none, slog.New(slog.DiscardHandler))
		if err := w.Sync(t.Context(), time.Now()); err != nil {
			t.Fatal(err)
		}
		text := strings.Join(w.Problems(), "\n")
		if (text == "") != (c.problem == "") || !strings.Contains(text, c.problem) {
			t.Errorf("%s: problems %q, want %q", name, text, c.problem)
		}
		if f := w.Facts(); len(f) != 1 || !strings.Contains(f[0], "load balancers: "+c.describe) {
			t.Errorf("%s: facts %q", name, f)
		}
	}
}

// TestReadings checks that it reads once a minute, keeps what it has read when HNS does not answer, and sees a changed
// kube-proxy.
func TestReadings(t *testing.T) { synctest.Test(t, readings) }

func readings(t *testing.T) {
	h, now := &host{err: errors.New("planted")}, time.Now()
	w := kubeproxy.New(h, true, none, slog.New(slog.DiscardHandler))
	sync := func(after time.Duration) {
		t.Helper()
		if err := w.Sync(t.Context(), now.Add(after)); err != nil {
			t.Fatal(err)
		}
	}
	if sync(0); len(w.Problems()) > 0 || !slices.Equal(w.Facts(), []string{"load balancers: not read yet"}) {
		t.Errorf("%q %q", w.Problems(), w.Facts())
	}
	h.err, h.list = nil, []hns.LoadBalancer{balancer(false, "10.96.0.1")}
	if sync(time.Second); h.calls != 1 {
		t.Errorf("%d readings within a minute", h.calls)
	}
	if sync(kubeproxy.Interval); len(w.Problems()) != 1 {
		t.Errorf("%q", w.Problems())
	}
	h.err = errors.New("planted")
	if sync(2 * kubeproxy.Interval); len(w.Problems()) != 1 {
		t.Errorf("after a failed reading: %q", w.Problems())
	}
	h.err, h.list = nil, []hns.LoadBalancer{balancer(true, "10.96.0.1")}
	if sync(3 * kubeproxy.Interval); len(w.Problems()) != 0 || h.calls != 4 {
		t.Errorf("with DSR: %q after %d readings", w.Problems(), h.calls)
	}
}

// TestSlowReading checks a reading that takes longer than the time between two: the next is not made at once.
func TestSlowReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &host{err: errors.New("no answer"), takes: 2 * kubeproxy.Interval}
		w := kubeproxy.New(h, true, none, slog.New(slog.DiscardHandler))
		for _, c := range []struct {
			wait  time.Duration
			calls int
		}{{0, 1}, {time.Second, 1}, {kubeproxy.Interval - 2*time.Second, 1}, {time.Second, 2}} {
			time.Sleep(c.wait)
			if err := w.Sync(t.Context(), time.Now()); err != nil || h.calls != c.calls {
				t.Errorf("%d readings, want %d: %v", h.calls, c.calls, err)
			}
		}
	})
}

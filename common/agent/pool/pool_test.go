// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/ipam"
	"github.com/isthmus-net/isthmus/common/model"
)

func dnsOf(namespace string) model.DNS {
	return model.DNS{Servers: []netip.Addr{netip.MustParseAddr("10.96.0.10")}, Searches: []string{namespace + ".svc.cluster.local"}}
}

// data is a data path that prepares endpoints, each in a second.
type data struct {
	ready   []dataplane.Prepared
	fail    error
	made    int
	running int
	most    int
}

func (d *data) Starts() int { return 4 }

func (d *data) StartEndpoint(context.Context, dataplane.EndpointSpec, func()) (func(context.Context) (dataplane.Attachment, error), error) {
	return nil, errors.New("not used")
}

func (d *data) Prepared() []dataplane.Prepared { return slices.Clone(d.ready) }

func (d *data) Prepare(_ context.Context, p dataplane.Prepared, done func()) (func(context.Context) error, error) {
	d.running++
	d.most = max(d.most, d.running)
	go func() {
		time.Sleep(time.Second)
		done()
	}()
	return func(context.Context) error {
		d.running--
		if d.fail == nil {
			d.made++
			d.ready = append(d.ready, p)
		}
		return d.fail
	}, nil
}

func (d *data) Discard(_ context.Context, p dataplane.Prepared) error {
	d.ready = slices.DeleteFunc(d.ready, func(o dataplane.Prepared) bool { return slices.Equal(o.IPs, p.IPs) })
	return d.fail
}

// node runs a pool as the loop of an agent does.
type node struct {
	*Pool
	t        *testing.T
	data     *data
	posted   chan func()
	busy     bool
	stepping int
}

func newNode(t *testing.T, size Size, ranges ...string) *node {
	n := &node{t: t, data: &data{}, posted: make(chan func(), 100)}
	n.Pool = New(Config{Size: size, Backend: n.data, Log: slog.New(slog.DiscardHandler), Busy: func() bool { return n.busy },
		Context: func() (context.Context, context.CancelFunc) { return context.WithCancel(t.Context()) },
		Post:    func(f func()) { n.posted <- f }, Step: func(string) { n.stepping++ }})
	n.Use(allocator(t, ranges...))
	return n
}

func allocator(t *testing.T, ranges ...string) *ipam.Allocator {
	if len(ranges) == 0 {
		ranges = []string{"10.0.0.0/24"}
	}
	c := ipam.Config{Quarantine: 30 * time.Second}
	for _, r := range ranges {
		c.Prefixes = append(c.Prefixes, netip.MustParsePrefix(r))
	}
	a, err := ipam.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// idle runs the loop for a while, in which no request arrives.
func (n *node) idle(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		n.Idle()
		for again := true; again; {
			select {
			case f := <-n.posted:
				f()
			case <-time.After(time.Second + time.Millisecond):
				again = false
			}
		}
	}
	n.consistent()
}

// consistent checks that the allocator agrees with the data path.
func (n *node) consistent() {
	n.t.Helper()
	held := 0
	for _, e := range n.data.ready {
		if n.holds(e) {
			held += len(e.IPs)
		}
	}
	owned := 0
	for _, who := range n.allocator.Owners() {
		if strings.HasPrefix(who, ownerPrefix) {
			ips, _ := n.allocator.Allocate(who, time.Now())
			owned += len(ips)
		}
	}
	if held != owned || held == 0 && len(n.data.ready) > 0 {
		n.t.Errorf("%d addresses of %d prepared endpoints, %d in the allocator", held, len(n.data.ready), owned)
	}
}

func run(t *testing.T, f func(t *testing.T)) { t.Helper(); synctest.Test(t, f) }

// TestFill checks that the pool fills in parts while no pods wait, and returns endpoints that fit.
func TestFill(t *testing.T) {
	run(t, func(t *testing.T) {
		n := newNode(t, 6, "10.0.0.0/24", "fd00::/64")
		n.idle(5 * time.Second)
		if n.data.made != 0 {
			t.Error("endpoints were prepared before any pod was seen")
		}
		n.Note(dnsOf("a"), time.Now())
		n.busy = true
		n.idle(5 * time.Second)
		if n.data.made != 0 {
			t.Error("endpoints were prepared while pods wait")
		}
		n.busy = false
		n.idle(5 * time.Second)
		if s := n.Stats(); s.Ready != 6 || s.Wanted != 6 || s.Preparing != 0 || n.data.most != 2 {
			t.Errorf("%+v, %d at a time", s, n.data.most)
		}
		if ips := n.Take("c1:eth0", dnsOf("b")); ips != nil {
			t.Errorf("an endpoint with other settings: %v", ips)
		}
		ips := n.Take("c1:eth0", dnsOf("a"))
		if len(ips) != 2 || !ips[1].Is6() {
			t.Fatalf("got %v", ips)
		}
		for _, a := range ips {
			if who, _ := n.allocator.Owner(a); who != "c1:eth0" {
				t.Errorf("%s belongs to %q", a, who)
			}
		}
		if s := n.Stats(); s.Ready != 5 || s.Hits != 1 || s.Misses != 1 {
			t.Errorf("%+v", s)
		}
	})
}

// TestRestart checks that the next agent continues with the endpoints of the data path.
func TestRestart(t *testing.T) {
	run(t, func(t *testing.T) {
		n := newNode(t, 4)
		n.Note(dnsOf("a"), time.Now())
		n.idle(5 * time.Second)
		before := n.data
		n = newNode(t, 4)
		n.data = before
		n.cfg.Backend = before
		n.Note(dnsOf("a"), time.Now())
		n.idle(5 * time.Second)
		if n.data.made != 4 || n.Stats().Ready != 4 {
			t.Errorf("%d made, %+v", n.data.made, n.Stats())
		}
		// The range of the node changes, so the endpoints no longer fit.
		n.Use(allocator(t, "10.0.9.0/24"))
		n.idle(10 * time.Second)
		for _, e := range n.data.ready {
			if !strings.HasPrefix(e.IPs[0].String(), "10.0.9.") {
				t.Errorf("%v is still there", e.IPs)
			}
		}
		// HNS loses them: they are created again, and no address leaks.
		n.data.ready = nil
		n.idle(10 * time.Second)
		if n.Stats().Ready != 4 {
			t.Errorf("%+v", n.Stats())
		}
		// The pool is turned off.
		n = newNode(t, Off, "10.0.9.0/24")
		n.cfg.Backend, n.data = before, before
		n.Note(dnsOf("a"), time.Now())
		n.idle(10 * time.Second)
		if len(n.data.ready) > 0 || n.Take("c1:eth0", dnsOf("a")) != nil || n.Stats().Misses != 0 {
			t.Errorf("%d are left", len(n.data.ready))
		}
	})
}

// TestGiveWay checks that pods get the addresses of prepared endpoints if no others are free, or if
// they request them. The pool keeps at most half of the free addresses.
func TestGiveWay(t *testing.T) {
	run(t, func(t *testing.T) {
		n := newNode(t, 100, "10.0.0.0/28") // 13 addresses
		n.Note(dnsOf("a"), time.Now())
		n.idle(20 * time.Second)
		if got := n.Problems(); n.Stats().Ready != 6 || len(got) != 1 || !strings.Contains(got[0], "100 prepared endpoints are requested and at most 6 are kept") {
			t.Fatalf("%+v %q", n.Stats(), got)
		}
		asked := n.data.ready[0].IPs
		n.Yield(asked)
		if _, taken := n.allocator.Owner(asked[0]); taken || n.Stats().Ready != 5 {
			t.Errorf("%v is not free, %+v", asked, n.Stats())
		}
		pods := 0
		for {
			_, err := n.allocator.Allocate(fmt.Sprint("pod", pods), time.Now())
			if err == nil {
				pods++
				continue
			}
			if !n.GiveWay() {
				break
			}
		}
		if pods != 13 || n.Stats().Ready != 0 {
			t.Errorf("%d pods got an address, %+v", pods, n.Stats())
		}
		n.idle(5 * time.Second)
		if n.Stats().Ready != 0 {
			t.Errorf("%+v", n.Stats())
		}
	})
}

// TestFailures checks that the pool pauses for growing times after errors, reports them, and
// recovers.
func TestFailures(t *testing.T) {
	run(t, func(t *testing.T) {
		n := newNode(t, 2)
		n.Note(dnsOf("a"), time.Now())
		n.data.fail = errors.New("hns says\nno")
		n.idle(time.Hour)
		if tries := n.stepping / 2; tries < 5 || tries > 30 {
			t.Errorf("%d attempts in an hour", tries)
		}
		if got := n.Problems(); len(got) != 1 || got[0] != "warning: endpoint pool: hns says; no: pods start without prepared endpoints meanwhile" {
			t.Errorf("%q", got)
		}
		n.data.fail = nil
		n.Note(dnsOf("a"), time.Now())
		n.idle(10 * time.Minute)
		if n.Stats().Ready != 2 || len(n.Problems()) > 0 {
			t.Errorf("%+v %q", n.Stats(), n.Problems())
		}
	})
}

// TestAuto checks that the pool follows the pods that start within a minute, and forgets them after
// an hour.
func TestAuto(t *testing.T) {
	run(t, func(t *testing.T) {
		n := newNode(t, Auto)
		for range 5 {
			n.Note(dnsOf("a"), time.Now())
		}
		time.Sleep(10 * time.Minute)
		n.Note(dnsOf("a"), time.Now())
		n.Note(dnsOf("b"), time.Now())
		n.idle(time.Minute)
		if a, b := count(n.data.ready, dnsOf("a").String()), count(n.data.ready, dnsOf("b").String()); a != 5 || b != 1 {
			t.Errorf("%d and %d", a, b)
		}
		n.idle(2 * time.Hour)
		if n.Stats().Ready != 0 {
			t.Errorf("after two quiet hours: %+v", n.Stats())
		}
	})
}

// TestShares checks that a number is divided by use, and never exceeded, for any number of
// namespaces.
func TestShares(t *testing.T) {
	h := make(history)
	now := time.Now()
	for range 6 {
		h.note(dnsOf("a"), now)
	}
	for range 3 {
		h.note(dnsOf("b"), now)
	}
	if w := h.wanted(6, 100, now); w[dnsOf("a").String()] != 4 || w[dnsOf("b").String()] != 2 {
		t.Errorf("%v", w)
	}
	if w := h.wanted(6, 3, now); w[dnsOf("a").String()]+w[dnsOf("b").String()] != 3 {
		t.Errorf("%v", w)
	}
	for i := range 500 {
		h.note(dnsOf(fmt.Sprint("n", i)), now.Add(time.Duration(i)*time.Second))
	}
	for _, size := range []Size{Off, Auto, 1, 10, 256} {
		for _, most := range []int{0, 1, 7, 1000} {
			sum := 0
			for _, n := range h.wanted(size, most, now.Add(500*time.Second)) {
				sum += n
			}
			want := min(int(size), most)
			if size == Auto {
				want = min(maxAuto, most)
			}
			if sum != want {
				t.Errorf("size %d, most %d: %d", size, most, sum)
			}
		}
	}
	if len(h) > maxDNS {
		t.Errorf("%d settings are remembered", len(h))
	}
}

func TestParseSize(t *testing.T) {
	for text, want := range map[string]Size{"auto": Auto, "off": Off, "1": 1, "256": 256} {
		if got, err := ParseSize(text); err != nil || got != want {
			t.Errorf("%s: %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "0", "-1", "257", "on", "1.5", "0x10"} {
		if _, err := ParseSize(text); err == nil {
			t.Errorf("%s: no error", text)
		}
	}
}

// TestNilPool checks that a data path that prepares nothing has no pool.
func TestNilPool(t *testing.T) {
	var p *Pool
	p.Note(model.DNS{}, time.Now())
	p.Use(allocator(t))
	p.Idle()
	p.Yield([]netip.Addr{netip.MustParseAddr("10.0.0.1")})
	if p.Take("c:eth0", model.DNS{}) != nil || p.GiveWay() || p.Problems() != nil || p.Stats() != (Stats{}) {
		t.Error("it has something")
	}
}

// SPDX-License-Identifier: Apache-2.0

package hostaddr

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// host is a host whose interfaces change.
type host struct {
	addresses []netip.Addr
	err       error
	reads     int
}

func (h *host) read() ([]netip.Addr, error) { h.reads++; return h.addresses, h.err }

func (h *host) has(texts ...string) {
	h.addresses = nil
	for _, text := range texts {
		h.addresses = append(h.addresses, netip.MustParseAddr(text))
	}
}

// TestWatch follows a host: new addresses count at once, lost ones for the grace time, and failed reads change nothing.
func TestWatch(t *testing.T) {
	h := &host{}
	w := New(Config{Read: h.read, Interval: 5 * time.Second, Grace: 60 * time.Second})
	start := time.Now()
	for i, step := range []struct {
		at   int // seconds
		has  string
		err  error
		want string
		says string
	}{
		{0, "", errors.New("one\ntwo"), "[]", "one; two; the agent"},
		{4, "10.0.0.1", nil, "[]", "one"}, // not due
		{5, "10.0.0.2 10.0.0.1 fd00::1", nil, "[10.0.0.1 10.0.0.2 fd00::1]", ""},
		{10, "10.0.0.1 fd00::1 192.0.2.7", nil, "[10.0.0.1 10.0.0.2 192.0.2.7 fd00::1]", ""}, // one lost, one new
		{15, "10.0.0.1", errors.New("refused"), "[10.0.0.1 10.0.0.2 192.0.2.7 fd00::1]", "refused"},
		{69, "10.0.0.1 fd00::1 192.0.2.7", nil, "[10.0.0.1 10.0.0.2 192.0.2.7 fd00::1]", ""},
		{74, "10.0.0.1 fd00::1", nil, "[10.0.0.1 192.0.2.7 fd00::1]", ""},             // the grace time of .2 is over
		{80, "10.0.0.1 fd00::1 192.0.2.7", nil, "[10.0.0.1 192.0.2.7 fd00::1]", ""},   // came back in time
		{200, "10.0.0.1 fd00::1", nil, "[10.0.0.1 192.0.2.7 fd00::1]", ""},            // its grace time begins again
		{205, "127.0.0.1 10.0.0.1", nil, "[10.0.0.1 192.0.2.7 fd00::1]", "127.0.0.1"}, // of no use
		{300, "", nil, "[10.0.0.1]", ""},
	} {
		h.has(strings.Fields(step.has)...)
		h.err = step.err
		w.Sync(start.Add(time.Duration(step.at) * time.Second))
		said := strings.Join(w.Problems(), "|")
		if got := fmt.Sprint(w.With(nil)); got != step.want || step.says == "" && said != "" || !strings.Contains(said, step.says) {
			t.Errorf("step %d: %s, says %q; want %s, %q", i, got, said, step.want, step.says)
		}
	}
	if h.reads != 10 {
		t.Errorf("%d reads, want 10", h.reads)
	}
}

// TestMax: more addresses than fit are a problem, and the lowest count.
func TestMax(t *testing.T) {
	var all []netip.Addr
	for a := netip.MustParseAddr("10.0.0.1"); len(all) < Max+2; a = a.Next() {
		all = append(all, a)
	}
	w := New(Config{Read: func() ([]netip.Addr, error) { return all, nil }})
	w.Sync(time.Now())
	if got := w.With(nil); len(got) != Max || got[Max-1] != all[Max-1] || len(w.Problems()) != 1 {
		t.Errorf("%d addresses, problems %q", len(got), w.Problems())
	}
}

// TestWith: addresses that are known from elsewhere, too, count once.
func TestWith(t *testing.T) {
	h := &host{}
	h.has("10.0.0.2", "fd00::1")
	w := New(Config{Read: h.read})
	w.Sync(time.Now())
	more := []netip.Addr{netip.MustParseAddr("fd00::1"), netip.MustParseAddr("10.0.0.9"), netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.9")}
	before := fmt.Sprint(more)
	if got, want := fmt.Sprint(w.With(more)), "[10.0.0.1 10.0.0.2 10.0.0.9 fd00::1]"; got != want || fmt.Sprint(more) != before {
		t.Errorf("%s of %s, want %s", got, more, want)
	}
}

// TestUsable: no probe comes from a loopback or link-local address.
func TestUsable(t *testing.T) {
	for text, want := range map[string]bool{"10.0.0.1": true, "fd00::1": true, "127.0.0.1": false, "::1": false, "169.254.1.1": false,
		"fe80::1": false, "fe80::1%eth0": false, "fd00::1%eth0": false, "0.0.0.0": false, "::": false, "224.0.0.1": false, "::ffff:10.0.0.1": false} {
		if got := Usable(netip.MustParseAddr(text)); got != want {
			t.Errorf("%s: %t", text, got)
		}
	}
	if Usable(netip.Addr{}) {
		t.Error("the zero address was taken")
	}
	if (Config{Interval: -1, Grace: -1}).Validate() == nil || (Config{}).Defaults().Validate() != nil {
		t.Error("validation is wrong")
	}
}

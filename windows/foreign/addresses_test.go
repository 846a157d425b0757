// SPDX-License-Identifier: Apache-2.0

package foreign_test

import (
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/windows/foreign"
	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/hostaddr"
)

// TestHostAddresses checks that an address that the host gets reaches pods from the next Apply on. A failed read
// keeps it and is reported. A lost one does not reach pods after the grace time.
func TestHostAddresses(t *testing.T) {
	n := newNode(t, hns.L2Bridge)
	var addresses []netip.Addr
	var failed error
	follow := hostaddr.Config{Read: func() ([]netip.Addr, error) { return addresses, failed }, Interval: time.Millisecond, Grace: time.Nanosecond}
	b, err := foreign.New(ctx, foreign.Config{HostAddresses: follow, File: n.file}, n.fake, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	n.backend = b
	pod := n.chained("web", "10.1.0.5", theirs()...)
	idle := func(outdated bool) {
		t.Helper()
		time.Sleep(2 * follow.Interval) // the next read is then due
		if _, err := b.Idle(ctx); err != nil || b.Outdated() != outdated {
			t.Errorf("outdated: %t, %v", b.Outdated(), err)
		}
	}
	n.apply(state(pod))
	n.want(pod, "in out")
	idle(false)

	addresses = []netip.Addr{netip.MustParseAddr(others)}
	idle(true)
	n.apply(state(pod))
	n.want(pod, "in other out")
	idle(false)

	addresses, failed = nil, errors.New("access is denied")
	idle(false)
	if faults := strings.Join(b.Faults(), "\n"); !strings.Contains(faults, "access is denied") {
		t.Errorf("faults %q", faults)
	}
	failed = nil
	idle(false) // the grace time begins
	idle(true)
	n.apply(state(pod))
	n.want(pod, "in out")

	if _, err := foreign.New(ctx, foreign.Config{HostAddresses: hostaddr.Config{Interval: -1}}, n.fake, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("a negative interval was accepted")
	}
}

// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux"
	"github.com/isthmus-net/isthmus/linux/loader"
	"github.com/isthmus-net/isthmus/linux/policymap"
	"github.com/isthmus-net/isthmus/test/netns"
	"github.com/isthmus-net/isthmus/test/traffic"
)

func cidr(s string) model.Peer {
	return model.Peer{Kind: model.PeerBlock, Block: model.IPBlock{CIDR: netip.MustParsePrefix(s)}}
}

// open creates a backend with maps of other sizes.
func (l *lab) open(entries loader.Sizes) error {
	return l.node.Do(func() error {
		cfg := linux.Defaults()
		cfg.BPFFS, cfg.Uplink, cfg.MapEntries = l.bpffs, "eth0", entries
		b, err := linux.New(context.Background(), cfg, slog.New(slog.DiscardHandler))
		if err == nil {
			l.backend = b
		}
		return err
	})
}

func (l *lab) restart(entries loader.Sizes) {
	l.t.Helper()
	l.must(l.backend.Close())
	l.must(l.open(entries))
}

// usage checks the usage of a map that the backend reports.
func (l *lab) usage(name string, capacity int) {
	l.t.Helper()
	c, err := l.backend.Counters(context.Background())
	l.must(err)
	if u := c.Maps[name]; u.Capacity != capacity || u.Entries > u.Capacity {
		l.t.Errorf("map %s: %+v, want a capacity of %d", name, u, capacity)
	}
}

// hold opens a connection; the returned function exchanges data on it.
func (l *lab) hold(from *netns.NS, to string, port uint16) func() {
	l.t.Helper()
	var c net.Conn
	l.must(from.Do(func() (err error) {
		c, err = net.DialTimeout("tcp", net.JoinHostPort(to, fmt.Sprint(port)), patience)
		return err
	}))
	l.t.Cleanup(func() { c.Close() })
	return func() {
		l.t.Helper()
		if err := traffic.Exchange(c, patience); err != nil {
			l.t.Errorf("a connection to %s was cut: %v", to, err)
		}
	}
}

// A State for which a map is too small is rejected before any part of it is in force. The
// previous State stays, and a new pod stays denied. A larger map replaces the full one while
// flows continue.
func TestFullMapKeepsTheOldPolicy(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.restart(loader.Sizes{"prefixes4": 8, "prefixes6": 8, "verdicts": 16, "rows": 8})
	l.pod("web", 2)
	l.pod("client", 3)
	l.echo(l.pods["web"], 80)
	web := isolate("web", model.Ingress, accept(pods("client"), tcp(80)))
	l.apply(web)
	l.allowed(l.pods["client"], "tcp", "10.1.0.2", 80)
	l.denied(l.outside, "tcp", "10.1.0.2", 80)

	// Many blocks at the port of outside, with the client removed from the rule.
	var blocks []model.Peer
	for i := range 20 {
		blocks = append(blocks, cidr(fmt.Sprintf("20.%d.0.0/16", i)))
	}
	large := isolate("web", model.Ingress, model.Rule{Action: model.ActionAccept, Peers: append(blocks, cidr("192.168.9.2/32")), AnyPort: true})
	l.pod("late", 4)
	err := l.tryApply(large)
	var full *policymap.FullError
	if !errors.As(err, &full) || !errors.Is(err, dataplane.ErrTooManyPeers) || full.Map != "prefixes4" || full.Max != 8 || !strings.Contains(err.Error(), "--map-entries prefixes4=") {
		t.Fatalf("a State with 21 prefixes for a map of 8: %v", err)
	}
	l.allowed(l.pods["client"], "tcp", "10.1.0.2", 80)
	l.denied(l.outside, "tcp", "10.1.0.2", 80)
	l.denied(l.pods["late"], "tcp", "10.1.0.2", 80)
	l.usage("prefixes4", 8)

	held := l.hold(l.pods["client"], "10.1.0.2", 80)
	l.restart(loader.Sizes{"prefixes4": 64, "verdicts": 4096, "conns4": 20000})
	l.usage("prefixes4", 64)
	held()
	l.allowed(l.pods["client"], "tcp", "10.1.0.2", 80)
	l.must(l.tryApply(large))
	l.allowed(l.outside, "tcp", "10.1.0.2", 80)
	l.denied(l.pods["client"], "tcp", "10.1.0.2", 80)

	// The enforced State no longer fits into the small map.
	l.backend.Close()
	err = l.open(loader.Sizes{"prefixes4": 8})
	if err == nil || !strings.Contains(err.Error(), "map prefixes4") || !strings.Contains(err.Error(), "drain the node") {
		t.Fatalf("maps that cannot hold what is in force: %v", err)
	}
	l.must(l.open(nil))
	l.usage("prefixes4", 64)
	l.allowed(l.outside, "tcp", "10.1.0.2", 80)
}

// SPDX-License-Identifier: Apache-2.0

package sources_test

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/fabric"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/loader"
	"github.com/isthmus-net/isthmus/linux/sources"
)

// maps records what is written.
type maps struct {
	owners  map[netip.Prefix]loader.Owner
	senders []loader.TunnelNode
	kinds   map[loader.TunnelKind]int
	writes  int
	fails   error
}

func (m *maps) SetOwners(o map[netip.Prefix]loader.Owner) error {
	m.writes++
	if m.fails == nil {
		m.owners = o
	}
	return m.fails
}

func (m *maps) SetTunnelNodes(n []loader.TunnelNode) error {
	m.writes++
	if m.fails == nil {
		m.senders = n
	}
	return m.fails
}

func (m *maps) SetTunnelKinds(k map[loader.TunnelKind]int) error {
	m.writes++
	if m.fails == nil {
		m.kinds = k
	}
	return m.fails
}

// TestOwnersAndSenders: the node's pod range has an owner, so has a pod outside it. Unchanged content is not
// written again, and a failed write is a problem until it succeeds.
func TestOwnersAndSenders(t *testing.T) {
	m := &maps{fails: errors.New("no memory")}
	pods := []netip.Addr{netip.MustParseAddr("10.1.0.5"), netip.MustParseAddr("192.0.2.7")}
	tunnels := []fabric.Sender{{Node: "b", Underlay: []netip.Addr{netip.MustParseAddr("172.30.0.12")}}}
	c := sources.New(m, func() []netip.Addr { return pods }, func() []fabric.Sender { return tunnels },
		dataplane.Host{Log: slog.New(slog.DiscardHandler), Step: func(string) {}})
	ctx, now := context.Background(), time.Now()
	if err := c.Sync(ctx, now); err != nil || m.writes > 0 {
		t.Errorf("before the first Apply there are %d writes, %v", m.writes, err)
	}
	pool := netip.MustParsePrefix("10.1.0.0/24")
	s := &model.State{Fabric: model.FabricState{PodCIDRs: []netip.Prefix{pool}}}
	if _, err := c.Apply(ctx, s); err != nil {
		t.Fatal(err)
	}
	if p := c.Problems(); len(p) != 3 || !strings.Contains(p[0], "no memory") {
		t.Errorf("problems %q", p)
	}
	m.fails = nil
	now = now.Add(time.Minute)
	if err := c.Sync(ctx, now); err != nil || len(c.Problems()) > 0 {
		t.Errorf("after a retry: %v, %q", err, c.Problems())
	}
	outside := netip.PrefixFrom(pods[1], 32)
	if m.owners[pool] != loader.PodsOwn || m.owners[outside] != loader.PodsOwn || m.owners[netip.PrefixFrom(pods[0], 32)] != 0 {
		t.Errorf("owners %v", m.owners)
	}
	if len(m.senders) != 1 || m.senders[0].Name != "b" {
		t.Errorf("senders %v", m.senders)
	}
	m.writes = 0
	if c.Sync(ctx, now.Add(time.Minute)); m.writes > 0 {
		t.Errorf("%d writes although nothing changed", m.writes)
	}
	pods = pods[:1]
	c.Sync(ctx, now.Add(2*time.Minute))
	if _, still := m.owners[outside]; still || m.writes != 1 {
		t.Errorf("the pod is gone: owners %v, %d writes", m.owners, m.writes)
	}
}

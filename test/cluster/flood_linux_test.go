// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/test/cluster"
	"github.com/isthmus-net/isthmus/test/cluster/readers"
	"github.com/isthmus-net/isthmus/test/traffic"
)

// TestFloodIsAccounted floods a pod with SYNs that policy denies, while 16 clients of different speed follow the events
// of the node and two of them stall. Every client knows of every event: as an event, or as one that its stream reports
// as missing. The counters of the programs say how many there were. Events are missing for each reason.
func TestFloodIsAccounted(t *testing.T) {
	const each, segments = 8, 20_000
	c, pods := startCluster(t, manifests, cluster.Config{Linux: 1, AgentFlags: []string{"--flow-event-rate=200", "--flow-event-burst=8000"}})
	ctx := t.Context()
	syns, err := traffic.OpenSYNs(pods["client"].NS, address(pods["client"], false), address(pods["server"], false))
	if err != nil {
		t.Fatal(err)
	}
	defer syns.Close()
	group, err := readers.Start(ctx, c.Nodes[0], each, each, readers.Uneven)
	if err != nil {
		t.Fatal(err)
	}
	defer group.Close()
	if err := group.Begin(ctx, func() error { return syns.Send(9) }); err != nil {
		t.Fatal(err)
	}
	before, err := group.Quiet(ctx)
	if err != nil {
		t.Fatal(err)
	}
	group.Stall()
	for range segments {
		if err := syns.Send(9); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(time.Second)
	group.Resume()
	after, err := group.Quiet(ctx)
	if err != nil {
		t.Fatal(err)
	}
	d := after.Since(before)
	e := d.Emitted
	if e.Decided < 2*segments || e.Limited == 0 {
		t.Errorf("%d segments, of which some must be over the limit: %+v", segments, e)
	}
	if err := group.Check(d); err != nil {
		t.Fatal(err)
	}
	fmt.Printf("flood: readers=%d events=%d delivered=%d limited=%d lost=%d, and every reader knows of each\n", len(group.Readers), e.Decided, e.Seen, e.Limited, e.Lost)
}

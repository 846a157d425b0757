// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/agent"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/dataplane/dataplanetest"
	"github.com/isthmus-net/isthmus/common/model"
)

// announcing is a data path with data for the Node object. It records the requested writes. The
// agent reads while the test writes.
type announcing struct {
	*dataplanetest.Fake
	mu    sync.Mutex
	says  model.NodeInfo
	asked []model.NodeInfo
}

func (a *announcing) NodeInfo() model.NodeInfo {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.says
}

func (a *announcing) ask(to model.NodeInfo) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = append(a.asked, to)
}

// say changes the data.
func (a *announcing) say(to model.NodeInfo) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.says = to
}

// taken returns the recorded requests and clears them.
func (a *announcing) taken() []model.NodeInfo {
	a.mu.Lock()
	defer a.mu.Unlock()
	asked := a.asked
	a.asked = nil
	return asked
}

// TestAnnounce checks that the agent requests the write until the Node object has the data, and
// again after a change.
func TestAnnounce(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		says := model.NodeInfo{Fabric: "vxlan"}
		path := &announcing{says: says}
		var asked []model.NodeInfo
		writes := true
		r.change = func(c *agent.Config) {
			c.Open = func(context.Context, model.Node) (dataplane.Backend, error) {
				r.fake.Reopen()
				path.Fake = r.fake
				return path, nil
			}
			if writes {
				c.Announce = path.ask
			}
		}
		publish := func(a model.NodeInfo) {
			own := node("node1", "10.0.1.0/24")
			own.Addresses, own.NodeInfo = []netip.Addr{netip.MustParseAddr("192.0.2.1")}, a
			r.agent.Publish(cluster{nodes: []*model.Node{own}}.snapshot())
			path.taken()
			time.Sleep(3 * time.Second)
			asked = path.taken()
		}
		warned := func() bool {
			return r.problems() != "0"
		}
		r.start()
		publish(model.NodeInfo{})
		if len(asked) == 0 || asked[0] != says || !warned() {
			t.Errorf("asked for %v, warned %t", asked, warned())
		}
		publish(says)
		if len(asked) != 0 || warned() {
			t.Errorf("asked for %v although it is said, warned %t", asked, warned())
		}
		// The Node's first address needs no annotation, another address does.
		says.Tunnel = netip.MustParseAddr("192.0.2.1")
		path.say(says)
		publish(model.NodeInfo{Fabric: "vxlan"})
		if len(asked) != 0 {
			t.Errorf("asked for %v, which everybody knows", asked)
		}
		says.Tunnel, says.VTEP = netip.MustParseAddr("192.0.2.2"), model.MAC{2, 0, 0, 0, 0, 1}
		path.say(says)
		publish(model.NodeInfo{Fabric: "vxlan"})
		if len(asked) == 0 || asked[0] != says {
			t.Errorf("asked for %v, want %v", asked, says)
		}
		publish(says)
		if len(asked) != 0 || warned() {
			t.Errorf("asked for %v, warned %t", asked, warned())
		}
		r.end()
		writes = false // a directory of manifests
		r.start()
		publish(model.NodeInfo{Fabric: "vxlan"})
		if len(asked) != 0 || !warned() {
			t.Errorf("asked for %v where nothing can be written, warned %t", asked, warned())
		}
		r.end()
	})
}

// TestPublish checks that the agent publishes what the configuration adds, and warns of what cannot be published.
func TestPublish(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		path := &announcing{says: model.NodeInfo{Fabric: "vxlan"}}
		r.change = func(c *agent.Config) {
			c.Open = func(context.Context, model.Node) (dataplane.Backend, error) {
				r.fake.Reopen()
				path.Fake = r.fake
				return path, nil
			}
			c.Announce = path.ask
			c.Publish = func(n *model.Node, ranges []netip.Prefix, info model.NodeInfo) (model.NodeInfo, string) {
				if n.Overlay.Subnets != "" {
					return info, "it is a node of OVN"
				}
				info.Overlay = model.Overlay{Subnet: ranges[0].String(), MAC: n.Name}
				return info, ""
			}
		}
		publish := func(overlay model.Overlay) []model.NodeInfo {
			own := node("node1", "10.0.1.0/24")
			own.NodeInfo = model.NodeInfo{Fabric: "vxlan", Overlay: overlay}
			r.agent.Publish(cluster{nodes: []*model.Node{own}}.snapshot())
			path.taken()
			time.Sleep(3 * time.Second)
			return path.taken()
		}
		r.start()
		want := model.Overlay{Subnet: "10.0.1.0/24", MAC: "node1"}
		for _, has := range []model.Overlay{{}, {Subnet: "10.0.1.0/24"}, {MAC: "node1"}} {
			if asked := publish(has); len(asked) == 0 || asked[0] != (model.NodeInfo{Fabric: "vxlan", Overlay: want}) || r.problems() != "1" {
				t.Errorf("with %+v the agent writes %+v, problems %s", has, asked, r.problems())
			}
		}
		if asked := publish(want); len(asked) > 0 || r.problems() != "0" {
			t.Errorf("the agent writes %+v again, problems %s", asked, r.problems())
		}
		if asked := publish(model.Overlay{Subnets: "x"}); len(asked) > 0 || r.problems() != "1" {
			t.Errorf("the agent writes %+v for a node of OVN, problems %s", asked, r.problems())
		}
		r.end()
	})
}

// TestForeignRange checks that the range of a foreign node does not stop additions of pods; that of another node does.
func TestForeignRange(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.start()
		for _, foreign := range []bool{true, false} {
			other := node("node2", "10.0.1.0/25")
			other.Foreign = foreign
			r.agent.Publish(cluster{nodes: []*model.Node{node("node1", "10.0.1.0/24"), other}}.snapshot())
			time.Sleep(3 * time.Second)
			if want := map[bool]string{true: "0", false: "1"}[foreign]; r.problems() != want {
				t.Errorf("foreign %t: %s problems, want %s", foreign, r.problems(), want)
			}
		}
		r.end()
	})
}

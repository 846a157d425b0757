// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/agent"
	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
)

// announcing is a data path that has something to say.
type announcing struct {
	*dataplane.Fake
	says *model.Announcement
}

func (a announcing) Announcement() model.Announcement { return *a.says }

// TestAnnounce: what a data path says is asked to be written for as long as the
// Node does not say it, and again if that changes.
func TestAnnounce(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		says := model.Announcement{Fabric: "vxlan"}
		var asked []model.Announcement
		writes := true
		r.change = func(c *agent.Config) {
			c.Open = func(context.Context, model.Node) (dataplane.Backend, error) {
				r.fake.Reopen()
				return announcing{r.fake, &says}, nil
			}
			if writes {
				c.Announce = func(a model.Announcement) { asked = append(asked, a) }
			}
		}
		publish := func(a model.Announcement) {
			own := node("node1", "10.0.1.0/24")
			own.Addresses, own.Announcement = []netip.Addr{netip.MustParseAddr("192.0.2.1")}, a
			r.agent.Publish(cluster{nodes: []*model.Node{own}}.snapshot())
			asked = nil
			time.Sleep(3 * time.Second)
		}
		warned := func() bool {
			_, body := r.get("/metrics")
			return !strings.Contains(body, "isthmus_problems 0")
		}
		r.start()
		publish(model.Announcement{})
		if len(asked) == 0 || asked[0] != says || !warned() {
			t.Errorf("asked for %v, warned %t", asked, warned())
		}
		publish(says)
		if len(asked) != 0 || warned() {
			t.Errorf("asked for %v although it is said, warned %t", asked, warned())
		}
		// The Node's first address need not be said, another one has to be.
		says.Tunnel = netip.MustParseAddr("192.0.2.1")
		publish(model.Announcement{Fabric: "vxlan"})
		if len(asked) != 0 {
			t.Errorf("asked for %v, which everybody knows", asked)
		}
		says.Tunnel, says.VTEP = netip.MustParseAddr("192.0.2.2"), model.MAC{2, 0, 0, 0, 0, 1}
		publish(model.Announcement{Fabric: "vxlan"})
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
		publish(model.Announcement{Fabric: "vxlan"})
		if len(asked) != 0 || !warned() {
			t.Errorf("asked for %v where nothing can be written, warned %t", asked, warned())
		}
		r.end()
	})
}

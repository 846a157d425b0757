// SPDX-License-Identifier: Apache-2.0

package path

import (
	"net/netip"

	"github.com/isthmus-net/isthmus/linux/migrate"
	"github.com/isthmus-net/isthmus/test/path/reference"
)

// upgrade makes the programs share the records with those of an older layout, or stop sharing.
func (r *Runner) upgrade(how string) error {
	shared, handover := how != "done", how == "none"
	if shared != r.node.Shared || shared != r.shared {
		if err := r.path.ShareRecords(shared); err != nil {
			return err
		}
	}
	r.shared, r.node.Shared, r.node.Handover = shared, shared, handover
	if handover == r.handover {
		return nil
	}
	r.handover = handover
	return r.restart()
}

// adopt removes all flows from the table, and adds them again through the migration from an older layout.
func (r *Runner) adopt(layout int) error {
	slots := make(map[netip.Addr]uint32)
	for _, pod := range r.node.Pods {
		for _, a := range pod.Addrs {
			slots[a] = uint32(pod.Slot)
		}
	}
	r.node.Adopt(layout)
	return r.replay.Adopt(slots, migrate.FlowFields{
		End: layout >= reference.WithClients, Backend: layout >= reference.WithBackends, Client: layout >= reference.WithClients,
	})
}

// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
)

// announce has what other nodes must know of this one said by its Node object,
// and returns a warning while it does not.
func (l *loop) announce() []string {
	a, ok := l.backend.(dataplane.Announcer)
	if !ok || l.snapshot == nil {
		return nil
	}
	node, ok := l.snapshot.Nodes.Get(l.cfg.NodeName)
	if !ok {
		return nil
	}
	said := a.Announcement()
	unsaid := said.Unsaid(node)
	if unsaid == (model.Announcement{}) {
		return nil
	}
	remedy := "annotate it"
	if l.cfg.Announce != nil {
		l.cfg.Announce(said)
		remedy = "the agent is writing it; if this stays see its log"
	}
	return []string{fmt.Sprintf("warning: pods of node %s cannot be reached by other nodes until its Node object says %s: %s", l.cfg.NodeName, unsaid.Text(), remedy)}
}

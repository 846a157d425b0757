// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
)

// announce requests that the Node object carries the data that other nodes need. It returns a warning while
// data is missing there.
func (l *loop) announce() []string {
	a, ok := l.backend.(dataplane.Announcer)
	if !ok || l.snapshot == nil {
		return nil
	}
	node, ok := l.snapshot.Nodes.Get(l.cfg.NodeName)
	if !ok {
		return nil
	}
	info := a.NodeInfo()
	missing := info.Missing(node)
	if missing == (model.NodeInfo{}) {
		return nil
	}
	remedy := "add the annotation"
	if l.cfg.Announce != nil {
		l.cfg.Announce(info)
		remedy = "the agent writes it; if this warning persists, see the agent's log"
	}
	return []string{fmt.Sprintf("warning: pods of node %s are unreachable from other nodes until its Node object has %s: %s", l.cfg.NodeName, missing.Text(), remedy)}
}

// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/windows/hns"
)

var _ dataplane.Faulty = (*Backend)(nil)

// Faults implements dataplane.Faulty.
func (b *Backend) Faults() []string {
	all := slices.Concat(b.components.Problems(), b.natProblems(), b.addresses.Problems(), b.idle, b.misresolved)
	for _, p := range []string{b.routeFault, b.orphanFault} {
		if p != "" {
			all = append(all, strings.ReplaceAll(p, "\n", "; "))
		}
	}
	return all
}

// checkHost forgets the host's endpoint if it has left the host: Audit says so, and ensureHostEndpoint attaches it again. An HNS that
// never showed it as attached proves nothing by another state.
func (b *Backend) checkHost(list []hns.Endpoint, states map[string]hns.State) {
	host := findNamed(list, b.config.HostEndpoint())
	if b.config.Mode != L2Bridge || host == nil {
		return
	}
	switch states[strings.ToLower(host.ID)] {
	case hns.StateAttached, hns.StateAttachedSharing:
		b.hostShown = host.ID
	case hns.StateCreated, hns.StateDetached:
		if b.hostShown == host.ID {
			b.host = ""
		}
	}
}

// checkStates returns the attached endpoints that HNS has stopped serving, by GUID in lower case. It
// records those that stay unconnected.
func (b *Backend) checkStates(list []hns.Endpoint, states map[string]hns.State) (broken map[string]hns.State) {
	broken = make(map[string]hns.State)
	since := make(map[string]time.Time)
	b.idle = nil
	for i := range list {
		e := &list[i]
		if _, ours := b.config.parseEndpointName(e.Name); !ours || e.HostComputeNamespace == "" {
			continue
		}
		id := strings.ToLower(e.ID)
		s := states[id]
		if s.Broken() {
			broken[id] = s
		}
		if s != hns.StateCreated && s != hns.StateDetached {
			continue
		}
		if since[id] = b.created[id]; since[id].IsZero() {
			since[id] = time.Now()
		}
		if time.Since(since[id]) >= b.config.ConnectWait { // the text stays the same: each other one is an event of the Node
			b.idle = append(b.idle, fmt.Sprintf("hns has not connected endpoint %q since %s or earlier (state %s): check that its container runs, or restart the pod",
				e.Name, since[id].UTC().Format(time.RFC3339), s))
		}
	}
	b.created = since
	return broken
}

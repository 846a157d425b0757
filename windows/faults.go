// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/windows/hns"
)

var _ dataplane.Faulty = (*Backend)(nil)

// Faults implements dataplane.Faulty.
func (b *Backend) Faults() []string {
	all := slices.Clone(b.unreachable)
	if b.tunnel != "" {
		all = append(all, b.tunnel)
	}
	if b.routesDue != nil {
		all = append(all, "some routes to other nodes could not be written: the agent retries, see its log")
	}
	return append(all, b.idle...)
}

// checkTunnel finds problems of an overlay network's tunnel endpoint.
func (b *Backend) checkTunnel(n *hns.Network) {
	was := b.tunnel
	b.tunnel = ""
	if b.config.Mode != Overlay {
		return
	}
	address, ok := tunnelAddress(n)
	switch {
	case !ok || tunnelMAC(n) == "":
		b.tunnel = fmt.Sprintf("hns network %q has no tunnel address yet: no other node reaches the pods; if this persists, check Get-NetIPAddress and restart the hns service", n.Name)
	case !slices.Contains(b.config.NodeAddresses, address):
		b.tunnel = fmt.Sprintf("the tunnel address of hns network %q is %s, not one of this node's addresses (%v), to which other nodes send: restart the hns service, or the machine", n.Name, address, b.config.NodeAddresses)
	}
	if b.tunnel != "" && b.tunnel != was {
		b.log.Warn("tunnel", "problem", b.tunnel)
	}
}

// tunnelAddress returns the tunnel address of an overlay network. While the adapter is being bound to a new
// switch the network has no address, or a self-assigned one.
func tunnelAddress(n *hns.Network) (netip.Addr, bool) {
	for _, p := range n.Policies {
		var pa hns.ProviderAddress
		if !p.Is(hns.TypeProviderAddress) || p.Decode(&pa) != nil {
			continue
		}
		a, err := netip.ParseAddr(pa.ProviderAddress)
		return a, err == nil && !a.IsLinkLocalUnicast() && !a.IsUnspecified()
	}
	return netip.Addr{}, false
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
		if waited := time.Since(since[id]); waited >= b.config.ConnectWait {
			b.idle = append(b.idle, fmt.Sprintf("hns has not connected endpoint %q for %s (state %s): check that its container runs, or restart the pod", e.Name, waited.Round(time.Second), s))
		}
	}
	b.created = since
	return broken
}

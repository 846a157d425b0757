// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"net/netip"
	"slices"
)

// nodeAddresses returns the addresses of the node that reach all its pods, besides those that the State has.
func (b *Backend) nodeAddresses() []netip.Addr {
	own := slices.Clone(b.config.NodeAddresses)
	if b.config.Mode == L2Bridge {
		for _, p := range b.config.PodCIDRs {
			own = append(own, hostAddress(p))
		}
	}
	return b.addresses.With(own)
}

// Outdated implements dataplane.Dependent.
func (b *Backend) Outdated() bool { return !slices.Equal(b.nodeAddresses(), b.options.Node) }

// adoptAddresses makes an Apply use the present addresses of the host.
func (b *Backend) adoptAddresses() {
	if !b.Outdated() {
		return
	}
	now := b.nodeAddresses()
	b.log.Info("addresses of the host have changed; pods now accept the new ones", "before", b.options.Node, "now", now)
	b.options.Node = now
	b.deny.SetExempt(now)
}

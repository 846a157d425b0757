// SPDX-License-Identifier: Apache-2.0

package model

import "net/netip"

// KindServiceCIDR is the kind of the API objects that ServiceCIDR represents.
const KindServiceCIDR = "ServiceCIDR"

// ServiceCIDR is an object that lists ranges of the addresses of Services. It is immutable.
type ServiceCIDR struct {
	Name string
	// Prefixes are its ranges, at most one per family. It is empty if none is valid.
	Prefixes []netip.Prefix
}

// Origin names the object in reports.
func (c *ServiceCIDR) Origin() Origin { return Origin{Kind: KindServiceCIDR, Name: c.Name} }

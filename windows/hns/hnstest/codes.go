// SPDX-License-Identifier: Apache-2.0

package hnstest

import "github.com/isthmus-net/isthmus/windows/hns"

// The result codes (HRESULT) that only a Fake returns: the product treats them as class ErrRefused, whatever
// their number.
const (
	CodeAddressInvalid     uint32 = 0x803B002F // reserved or outside the subnets
	CodeHasReferences      uint32 = 0x803B002C
	CodeInvalidEndpoint    uint32 = 0x803B000C
	CodeInvalidHandle      uint32 = 0x80070006 // E_HANDLE
	CodeInvalidNetwork     uint32 = 0x803B000A
	CodeInvalidNetworkType uint32 = 0x803B000B
	CodeInvalidPrefix      uint32 = 0x803B0030
	CodeRemoteEndpoint     uint32 = 0x803B000F // not possible with a remote endpoint
)

// The types of networks that other components create on the same service.
const (
	NAT         hns.NetworkType = "NAT"
	ICS         hns.NetworkType = "ICS"
	Transparent hns.NetworkType = "Transparent"
	L2Tunnel    hns.NetworkType = "L2Tunnel"
	Private     hns.NetworkType = "Private"
	Internal    hns.NetworkType = "Internal"
)

// The versions of HNS since which it has a feature that Isthmus does not use. They are those that clients in
// the field check.
var (
	WFPProxies              = hns.Version{Major: 13, Minor: 2}
	TierACLs                = hns.Version{Major: 14, Minor: 0}
	NetworkACLs             = hns.Version{Major: 15, Minor: 0}
	ModifiableLoadBalancers = hns.Version{Major: 15, Minor: 4}
)

// Since reports whether a version is the given one or a later one.
func Since(v, first hns.Version) bool { return v.AtLeast(first.Major, first.Minor) }

// SPDX-License-Identifier: Apache-2.0

package hns

import "fmt"

// Version is the version of the HNS service. It is more precise than the Windows build: servicing updates
// raise it.
type Version struct {
	Major int
	Minor int
}

// The versions that all tests run with.
var (
	Server2019 = Version{9, 5}
	Server2022 = Version{13, 3}
	Server2025 = Version{15, 5}
)

// Profiles returns those versions.
func Profiles() []Version { return []Version{Server2019, Server2022, Server2025} }

// String returns "13.3".
func (v Version) String() string { return fmt.Sprintf("%d.%d", v.Major, v.Minor) }

// AtLeast compares versions.
func (v Version) AtLeast(major, minor int) bool {
	return v.Major > major || v.Major == major && v.Minor >= minor
}

// Feature is a capability that not every HNS has.
type Feature uint8

// The features that matter here. The versions are those that clients in the field check.
const (
	// Schema2API: HCN objects of schema 2, remote subnets, host routes.
	Schema2API Feature = iota
	// DirectServerReturn: load balancing at the source pod, which keeps the pod's address; without it
	// policies see the node instead.
	DirectServerReturn
	// DualStack: endpoints with IPv6 addresses.
	DualStack
	// Sets: SetPolicy, sets of addresses that ACLs refer to.
	Sets
	// CanonicalCIDRs: prefixes with host bits are refused.
	CanonicalCIDRs
)

// Supports reports whether this version has a feature.
func (v Version) Supports(f Feature) bool {
	switch f {
	case Schema2API:
		return v.AtLeast(9, 2)
	case DirectServerReturn:
		// 9.3 came to Windows Server 2019 by an update; 10.0 and 10.1 are older.
		return v.Major == 9 && v.Minor >= 3 || v.AtLeast(10, 2)
	case DualStack:
		return v.AtLeast(11, 10)
	case Sets, CanonicalCIDRs:
		return v.AtLeast(13, 0)
	}
	return false
}

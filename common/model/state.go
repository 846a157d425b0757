// SPDX-License-Identifier: Apache-2.0

package model

// EndpointID identifies a local pod's attachment: "containerID:ifname".
type EndpointID string

// MakeEndpointID joins the two keys of an attachment in the runtime.
func MakeEndpointID(containerID, ifName string) EndpointID {
	return EndpointID(containerID + ":" + ifName)
}

// State is everything that one node should enforce. Equal inputs give equal States. It is immutable.
//
// It has one section per feature of the data path. A component of a backend reads its own section.
type State struct {
	Node   string
	Policy PolicyState
	Fabric FabricState
	// Deny is the deny list of uplinks; nil without deny lists.
	Deny *DenySet
}

// SameSlice reports whether two slices of States share their memory, which is cheaper than comparing elements. States
// share slices that did not change, so slices that differ may still be equal.
func SameSlice[T any](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

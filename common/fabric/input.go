// SPDX-License-Identifier: Apache-2.0

package fabric

import "github.com/isthmus-net/isthmus/common/model"

// Input is what Make needs of a State. The zero value holds nothing.
type Input struct {
	Self  Self
	Peers []model.Route
	// Known is true after the first call of Set.
	Known bool
}

// Set replaces the input, and reports whether it changed. It compares slices by their memory: States share
// unchanged slices, and a copy with the same elements counts as changed.
func (i *Input) Set(self Self, peers []model.Route) (changed bool) {
	if i.Known && model.SameSlice(i.Peers, peers) && model.SameSlice(i.Self.PodCIDRs, self.PodCIDRs) && model.SameSlice(i.Self.Addresses, self.Addresses) {
		return false
	}
	*i = Input{Self: self, Peers: peers, Known: true}
	return true
}

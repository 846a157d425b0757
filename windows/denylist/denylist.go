// SPDX-License-Identifier: Apache-2.0

package windows

import "github.com/isthmus-net/isthmus/common/model"

// undenied reports that deny lists are not enforced: HNS ACLs apply to pods' ports only, and listed sources
// may also send to the host.
func (b *Backend) undenied(set *model.DenySet) []model.Unsupported {
	if set == nil {
		return nil
	}
	f := b.Features()
	var all []model.Unsupported
	for _, l := range set.Lists {
		all = append(all, model.Unsupported{Policy: l.Origin(), Rule: -1, Construct: "spec.entries", OS: f.OS, Platform: f.Platform,
			Effect: model.Refused, Reason: "deny lists are not enforced on Windows nodes: use a ClusterNetworkPolicy for pods there"})
	}
	return all
}

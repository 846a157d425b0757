// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/isthmus-net/isthmus/common/analysis/complete"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/policy/compile"
)

// Denied names the entries of deny lists by which nodes drop the packets from src to dst. They do so where a packet arrives on an
// uplink, before policy decides, for pods and for Linux nodes. A source of the cluster is not denied: its packets may come through a tunnel, by
// whose outer source nodes judge them. set is that of the snapshot; it may be nil.
func Denied(set *model.DenySet, s *model.Snapshot, owners model.Owners, src, dst netip.Addr) []string {
	if set == nil || !set.Denies(src) || owners.Pods[src] != nil || s.PodRange(src) {
		return nil
	}
	if node := owners.Nodes[dst]; owners.Pods[dst] == nil && (node == nil || node.OS == model.Windows) {
		return nil
	}
	return set.Listing(src)
}

// denyLists adds what deny lists do to a flow.
func (x *Report) denyLists(s *model.Snapshot, owners model.Owners, src, dst netip.Addr) {
	set := compile.DenySet(s)
	if x.DenyLists = Denied(set, s, owners, src, dst); len(x.DenyLists) > 0 {
		x.Verdict = model.Deny.String()
		return
	}
	if set == nil || len(x.Sides) == 0 || !apart(s, owners, src, dst) {
		return
	}
	from := owners.Pods[src]
	if from != nil && set.Denies(src) {
		x.Notes = append(x.Notes, fmt.Sprintf("other nodes drop packets from %s, unless a tunnel carries them (%s)", src, strings.Join(set.Listing(src), ", ")))
	}
	if set.Denies(dst) && (from == nil || complete.OSOf(s, from) != model.Windows) { // Windows denies new connections only
		x.Notes = append(x.Notes, fmt.Sprintf("uplinks drop answers from %s, unless a tunnel carries them (%s)", dst, strings.Join(set.Listing(dst), ", ")))
	}
}

// apart reports whether packets between two addresses arrive on an uplink, as far as that is known.
func apart(s *model.Snapshot, owners model.Owners, a, b netip.Addr) bool {
	from, to := endOf(s, owners, a).Node, endOf(s, owners, b).Node
	return from == "" || from != to
}

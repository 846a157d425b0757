// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"fmt"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
)

// checkServiceAddresses finds blocks with addresses of Services. Nodes replace the address of a Service by that
// of a backend before policy decides, so such an address matches no packet. A block that has nothing else
// is a mistake. Others, such as a whole private range, match their other addresses.
func checkServiceAddresses(l *Cluster) []Finding {
	var all []Finding
	l.eachRule(func(p *model.Policy, d model.Direction, r *model.Rule) {
		for i, peer := range r.Peers {
			if peer.Kind != model.PeerBlock || peer.Block.CIDR.Bits() == 0 {
				continue
			}
			found := l.servicesIn(peer.Block)
			if len(found) == 0 {
				continue
			}
			severity := Warning
			if l.hasOthers(peer.Block) {
				severity = Note
			}
			field := fmt.Sprintf("spec.%s[%d].%s[%d]", d, r.Index, [...]string{"from", "to"}[d], i)
			all = append(all, atRule(severity, "service-address", p, d, r, "%s: %s contains %s: policy sees the pod behind a Service, "+
				"so its address never matches; select the pods with podSelector and namespaceSelector", field, peer.Block, first(found)))
		}
	})
	return all
}

// servicesIn lists the addresses of Services that a block contains, with their Services. An address that a pod or
// a node also has is none of them.
func (l *Cluster) servicesIn(b model.IPBlock) (found []string) {
	owners := l.Snapshot.Owners()
	for _, s := range l.Services {
		for _, a := range s.Addresses {
			if b.Contains(a) && owners.Pods[a] == nil && owners.Nodes[a] == nil {
				found = append(found, fmt.Sprintf("%s of Service %s/%s", a, s.Namespace, s.Name))
			}
		}
	}
	slices.Sort(found)
	return found
}

// hasOthers reports whether a block certainly or probably is about more than Services: it has an address of a
// pod or a node, or is larger than the largest usual range of Services.
func (l *Cluster) hasOthers(b model.IPBlock) bool {
	owners := l.declared.Owners()
	for a := range owners.Pods {
		if b.Contains(a) {
			return true
		}
	}
	for a := range owners.Nodes {
		if b.Contains(a) {
			return true
		}
	}
	if b.CIDR.Addr().Is4() {
		return b.CIDR.Bits() < maxServiceRange4
	}
	return b.CIDR.Bits() < maxServiceRange6
}

// The longest prefixes that a range of Services usually has: --service-cluster-ip-range of the API server allows
// /12, and /108 for IPv6.
const (
	maxServiceRange4 = 12
	maxServiceRange6 = 108
)

// first names the first of several things and counts the rest.
func first(found []string) string {
	if len(found) == 1 {
		return found[0]
	}
	return fmt.Sprintf("%s and %d more", found[0], len(found)-1)
}

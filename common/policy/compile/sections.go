// SPDX-License-Identifier: Apache-2.0

package compile

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
)

// A State has sections besides policy. Each is a function of the Snapshot, and all of them are here: a new
// section edits this file only.

// otherObjects reports which objects changed that only sections besides policy read.
type otherObjects struct{ denyLists, serviceCIDRs bool }

func compareOthers(was, is *model.Snapshot) otherObjects {
	return otherObjects{denyLists: is.DenyLists != was.DenyLists, serviceCIDRs: is.ServiceCIDRs != was.ServiceCIDRs}
}

// refreshSections brings the sections besides policy up to date. A section whose objects did not change
// stays, so that its component finds by comparing pointers that there is nothing to do.
func refreshSections(s *model.State, d *difference, now *model.Snapshot) {
	if len(d.nodes) > 0 {
		ranges := s.Fabric.ServiceCIDRs
		s.Fabric = fabricState(now, s.Node)
		s.Fabric.ServiceCIDRs = ranges
	}
	if d.others.serviceCIDRs {
		s.Fabric.ServiceCIDRs = serviceCIDRs(now)
	}
	if len(d.nodes) > 0 || d.others.denyLists {
		s.Deny = denySet(s.Deny, now, d.others.denyLists)
	}
}

// enforcementReports returns the namespaces of endpoints whose annotation about observation has no effect on this node.
func (c *Compiler) enforcementReports(s *model.State, now *model.Snapshot) (all []model.Unsupported) {
	if c.observe == model.ObserveNone {
		return nil
	}
	names := make(map[string]bool)
	for _, e := range s.Policy.Endpoints {
		names[e.Pod.Namespace] = true
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if problem := c.observe.Problem(now.Namespace(name).Enforcement); problem != "" {
			all = append(all, model.Unsupported{Policy: model.Origin{Kind: "Namespace", Name: name}, Rule: -1,
				Construct: "annotation " + model.AnnotationEnforcement, Effect: model.Refused, Reason: problem})
		}
	}
	return all
}

// sectionReports returns what the sections do not enforce as written, on any operating system.
func sectionReports(s *model.State, now *model.Snapshot) []model.Unsupported {
	return exemptNodes(s.Deny, now)
}

// sameState reports whether a State shares everything with another one.
func sameState(a, b *model.State) bool {
	return a.Node == b.Node && samePolicy(&a.Policy, &b.Policy) && sameFabric(&a.Fabric, &b.Fabric) && a.Deny == b.Deny
}

func samePolicy(a, b *model.PolicyState) bool {
	return same(a.Endpoints, b.Endpoints) && same(a.Tables, b.Tables) && a.Addresses == b.Addresses && same(a.Prefixes, b.Prefixes) &&
		same(a.Ports, b.Ports) && same(a.PeerClasses, b.PeerClasses) && same(a.PortClasses, b.PortClasses) &&
		same(a.PeerTerms, b.PeerTerms) && same(a.PeerNames, b.PeerNames) && a.NextPeerClass == b.NextPeerClass
}

func sameFabric(a, b *model.FabricState) bool {
	return same(a.PodCIDRs, b.PodCIDRs) && same(a.NodeAddresses, b.NodeAddresses) && same(a.Routes, b.Routes) && same(a.ServiceCIDRs, b.ServiceCIDRs)
}

// same reports whether two maps, or two slices, share their memory.
func same(a, b any) bool { return reflect.ValueOf(a).Pointer() == reflect.ValueOf(b).Pointer() }

// fabricState locates the pods of a cluster, as seen from one node.
func fabricState(s *model.Snapshot, self string) model.FabricState {
	f := model.FabricState{Routes: routes(s, self)}
	if n, ok := s.Nodes.Get(self); ok {
		f.PodCIDRs, f.NodeAddresses = n.PodCIDRs, n.Addresses
	}
	return f
}

// serviceCIDRs returns the ranges of all ServiceCIDRs, each once, sorted.
func serviceCIDRs(s *model.Snapshot) (all []netip.Prefix) {
	for _, c := range s.ServiceCIDRs.All() {
		all = append(all, c.Prefixes...)
	}
	slices.SortFunc(all, model.ComparePrefixes)
	return slices.Compact(all)
}

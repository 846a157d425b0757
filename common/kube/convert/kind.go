// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/isthmus-net/isthmus/common/model"
)

// Kinds returns the table of the kinds that are read from manifests and from an API server. All other kinds
// are ignored.
//
// To add a kind:
//
//  1. Write one file with its Kind, the conversion to a noun of package model, and nothing else.
//     denylist.go is an example of a custom kind, namespace.go of a built-in one.
//  2. Add a line to this table.
//  3. Give model.Objects and model.Snapshot a field for it, and Objects.Snapshot a line.
//
// Manifests, discovery, the watch, the last valid version of an invalid object, and the API version in
// events follow from the table. Nodes also need the right to list and watch the kind: add it to the
// roles under deploy.
func Kinds() []Kind {
	return []Kind{
		namespaceKind(),
		nodeKind(),
		podKind(),
		serviceKind(),
		endpointSliceKind(),
		replicationControllerKind(),
		deploymentKind(),
		replicaSetKind(),
		statefulSetKind(),
		daemonSetKind(),
		jobKind(),
		cronJobKind(),
		networkPolicyKind(),
		clusterNetworkPolicyKind(),
		adminNetworkPolicyKind(),
		baselineAdminNetworkPolicyKind(),
		denyListKind(),
		serviceCIDRKind(),
	}
}

// Kind is a kind of object that is read.
type Kind struct {
	// Name is the kind, Group its API group, empty for the core group.
	Name, Group string
	// Versions are the supported versions, best first. They have one shape. Messages and events name the
	// last one, which is served for longest.
	Versions []string
	// Resource is the plural in the paths of the API; empty for a kind that is read from manifests only.
	Resource string
	// Namespaced is true if its objects belong to namespaces.
	Namespaced bool
	// Policy is true if its objects become model.Policies. Findings about single objects are then reported, and so
	// are unknown fields of stored ones, which may restrict traffic, unless a client drops them (NetworkPolicy).
	Policy bool
	// Reported is true if agents write conditions to the status of its objects, which are not policies.
	Reported bool

	// Typed is an empty object of a kind that every API server serves, and AddToScheme registers its group.
	// They are nil for a custom kind. A custom kind may be absent, and its objects arrive untyped.
	Typed       runtime.Object
	AddToScheme func(*runtime.Scheme) error

	// Read decodes a manifest in JSON.
	Read func(k *Kind, raw []byte, s Strictness) Draft
	// Put adds the Value of a Result to the objects of a set of manifests. It is nil for workloads, whose
	// Value is a *Workload: pods stand for them.
	Put func(o *model.Objects, value any)
	// Record converts an object of an API server; it returns nil for an object of another type. It is nil
	// for a kind without Resource.
	Record func(runtime.Object) *Record
	// store is nil for a kind without Resource.
	store store
}

// Custom reports whether an API server may or may not serve the kind.
func (k *Kind) Custom() bool { return k.Resource != "" && k.Typed == nil }

// APIVersion returns the group and version that messages and events name; empty for the zero Kind.
func (k *Kind) APIVersion() string {
	if len(k.Versions) == 0 {
		return ""
	}
	version := k.Versions[len(k.Versions)-1]
	if k.Group == "" {
		return version
	}
	return k.Group + "/" + version
}

// Apply edits the objects of the kind in a snapshot. With complete, changes are all of them, and others are
// removed. keep reports whether the predecessor of a record stays; known is true if there is one. Apply
// reports whether anything changed.
func (k *Kind) Apply(s *model.Snapshot, changes map[string]*Record, complete bool, keep func(r *Record, known bool) bool) bool {
	return k.store.apply(s, changes, complete, keep)
}

// GroupVersion returns the best version, for a client.
func (k *Kind) GroupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: k.Group, Version: k.Versions[0]}
}

// BuiltinKinds lists the watched kinds that every API server serves.
func BuiltinKinds() []Kind {
	return slices.DeleteFunc(Kinds(), func(k Kind) bool { return k.Typed == nil })
}

// CustomKinds lists the kinds that an API server may or may not serve.
func CustomKinds() []Kind {
	return slices.DeleteFunc(Kinds(), func(k Kind) bool { return !k.Custom() })
}

// KindOf returns the kind with a name; false if it is not in the table.
func KindOf(name string) (Kind, bool) {
	all := Kinds()
	i := slices.IndexFunc(all, func(k Kind) bool { return k.Name == name })
	if i < 0 {
		return Kind{}, false
	}
	return all[i], true
}

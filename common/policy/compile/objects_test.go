// SPDX-License-Identifier: Apache-2.0

package compile_test

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/common/model/immutable"
	"github.com/isthmus-net/isthmus/common/policy/compile"
	"github.com/isthmus-net/isthmus/test/world"
)

// podEdits change one field of a pod each, by the name of the field.
var podEdits = map[string][]func(*model.Pod){
	"UID": {func(p *model.Pod) { p.UID += "2" }},
	"Labels": {
		func(p *model.Pod) { p.Labels = model.MakeLabels(map[string]string{"app": "a", "tier": "b"}) },
		func(p *model.Pod) { p.Labels = model.Labels{} },
	},
	"Node": {
		func(p *model.Pod) { p.Node = "node1" },
		func(p *model.Pod) { p.Node = "node2" },
		func(p *model.Pod) { p.Node = "" },
	},
	"IPs": {
		func(p *model.Pod) { p.IPs = []netip.Addr{netip.MustParseAddr("10.0.1.77")} },
		func(p *model.Pod) { p.IPs = []netip.Addr{netip.MustParseAddr("10.0.1.3")} }, // possibly the address of another pod
		func(p *model.Pod) { p.IPs = nil },
	},
	"HostNetwork": {func(p *model.Pod) { p.HostNetwork = !p.HostNetwork }},
	"Finished":    {func(p *model.Pod) { p.Finished = !p.Finished }},
	"Created":     {func(p *model.Pod) { p.Created = 100 }, func(p *model.Pod) { p.Created = -1 }},
	"Started":     {func(p *model.Pod) { p.Started = 100 }},
	"Ports": {
		func(p *model.Pod) { p.Ports = nil },
		func(p *model.Pod) {
			p.Ports = []model.NamedPort{{Name: "http", Protocol: model.TCP, Port: 443}, {Name: "dns", Protocol: model.SCTP, Port: 1}}
		},
		func(p *model.Pod) {
			if len(p.Ports) > 0 {
				p.Ports[0].Port++
			}
		},
		func(p *model.Pod) {
			if len(p.Ports) > 0 {
				p.Ports[0].Protocol = model.UDP
			}
		},
	},
	"FixedIPs":  {func(p *model.Pod) { p.FixedIPs = "10.0.1.9" }},
	"HostPorts": {func(p *model.Pod) { p.HostPorts = []model.HostPort{{Number: 80, Protocol: model.TCP, Port: 80}} }},
}

// nodeEdits change one field of a node each.
var nodeEdits = map[string][]func(*model.Node){
	"OS":     {func(n *model.Node) { n.OS = model.Windows }},
	"Labels": {func(n *model.Node) { n.Labels = model.MakeLabels(map[string]string{"app": "a"}) }},
	"Addresses": {
		func(n *model.Node) { n.Addresses = nil },
		func(n *model.Node) { n.Addresses = []netip.Addr{netip.MustParseAddr("192.168.0.77")} },
		func(n *model.Node) { n.Addresses = []netip.Addr{netip.MustParseAddr("10.0.1.3")} }, // possibly the address of a pod
	},
	"PodCIDRs": {
		func(n *model.Node) { n.PodCIDRs = nil },
		func(n *model.Node) { n.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.0.2.128/25")} },
	},
	"NodeInfo": {func(n *model.Node) { n.NodeInfo.Fabric = "x" }},
	"Foreign":  {func(n *model.Node) { n.Foreign = true }},
}

// TestObjectFieldsAreFollowed edits every field of every pod, node and namespace, one at a
// time, under a Compiler that has compiled the cluster before. A new field fails here until
// an edit of it is listed.
func TestObjectFieldsAreFollowed(t *testing.T) {
	fieldsAreListed(t, reflect.TypeFor[model.Pod](), podEdits, "PodID")
	fieldsAreListed(t, reflect.TypeFor[model.Node](), nodeEdits, "Name")
	seeds := uint64(3)
	if testing.Short() {
		seeds = 1
	}
	edits, cells := 0, 0
	for i, shape := range world.Shapes {
		shape.Pods = min(shape.Pods, 6)
		for seed := range seeds {
			t.Run(fmt.Sprintf("shape%d/%d", i, seed), func(t *testing.T) {
				was := world.Random(seed+900, shape)
				in := func(s *model.Snapshot) compile.Input {
					return compile.Input{Snapshot: s, Node: "node1", Endpoints: world.Endpoints(s, "node1")}
				}
				c := compile.New()
				c.Compile(in(was))
				try := func(s *model.Snapshot, field string) {
					t.Helper()
					sameAsScratch(t, c, in(s), field)
					if edits++; edits%4 == 0 {
						state, _ := c.Compile(in(s))
						cells += equalToReference(t, in(s), state)
					}
					sameAsScratch(t, c, in(was), field+" undone")
				}
				forEveryEdit(was.Pods, podEdits, func(pods immutable.Map[model.PodID, *model.Pod], field string) {
					s := *was
					s.Pods = pods
					try(&s, "Pod."+field)
				})
				forEveryEdit(was.Nodes, nodeEdits, func(nodes immutable.Map[string, *model.Node], field string) {
					s := *was
					s.Nodes = nodes
					try(&s, "Node."+field)
				})
				for name := range was.Namespaces.All() {
					s := *was
					s.Namespaces = was.Namespaces.With(name, model.NewNamespace(name, map[string]string{"app": "a", "env": "c"}))
					try(&s, "Namespace.Labels")
					s.Namespaces = was.Namespaces.Without(name)
					try(&s, "Namespace")
				}
			})
		}
	}
	t.Logf("edits=%d cells=%d", edits, cells)
}

// fieldsAreListed fails for exported fields, other than a name, that no edit changes.
func fieldsAreListed[T any](t *testing.T, of reflect.Type, edits map[string][]func(*T), name string) {
	t.Helper()
	for _, field := range fieldNames(of) {
		if field != name && len(edits[field]) == 0 {
			t.Errorf("no edit of %s.%s is listed", of.Name(), field)
		}
	}
}

// forEveryEdit calls try with a map in which one field of one object is changed.
func forEveryEdit[K comparable, T any](m immutable.Map[K, *T], edits map[string][]func(*T), try func(immutable.Map[K, *T], string)) {
	var keys []K
	for k := range m.All() {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b K) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	for _, k := range keys {
		for _, field := range slices.Sorted(maps.Keys(edits)) {
			for _, edit := range edits[field] {
				object, _ := m.Get(k)
				changed := *object
				if p, ok := any(&changed).(*model.Pod); ok {
					p.Ports = slices.Clone(p.Ports)
				}
				edit(&changed)
				try(m.With(k, &changed), field)
			}
		}
	}
}

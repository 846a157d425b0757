// SPDX-License-Identifier: Apache-2.0

package page

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/isthmus-net/isthmus/common/analysis/reach"
	"github.com/isthmus-net/isthmus/common/model"
)

// View is a cluster prepared for the pages. It is safe for concurrent use.
type View struct {
	cluster *Cluster
	// families are the namespaces with pods of one address family: IPv4, IPv6.
	families [2]map[string]*namespace
	policies []*model.Policy // in the order of evaluation

	mutex     sync.Mutex // of partition, which caches
	partition *reach.Partition
}

// namespace holds the workloads of a namespace by their keys.
type namespace struct {
	end       End
	workloads map[string]*workload
}

// workload is a workload with its pods, or a pod that belongs to none.
type workload struct {
	end  End
	pods []End // by name
}

// End is what a row or column of a matrix stands for: a namespace, a workload or a pod.
type End struct {
	// Key identifies the end in addresses of pages: a namespace, "Deployment/web", or the name of a pod.
	Key string
	// Pods counts its pods, and OS lists the operating systems of their nodes.
	Pods int
	OS   []model.OS
	// parts are the groups of its pods, with the number of pods.
	parts []part
	// port is a port that the pod names; 0 if it names none.
	port uint16
}

// part is the pods of an end that no policy distinguishes.
type part struct {
	group *reach.Group
	pods  int
}

// NewView prepares a cluster. It divides the cluster into groups, which takes a second for 10,000 pods.
func NewView(c *Cluster) *View {
	v := &View{cluster: c, partition: reach.New(c.Snapshot), policies: c.Snapshot.SortedPolicies()}
	for i := range v.families {
		v.families[i] = make(map[string]*namespace)
		for _, g := range v.partition.Groups(i == 1) {
			for _, m := range g.Pods {
				v.addPod(v.families[i], g, m)
			}
		}
		for _, n := range v.families[i] {
			for _, w := range n.workloads {
				slices.SortFunc(w.pods, func(a, b End) int { return cmp.Compare(a.Key, b.Key) })
			}
		}
	}
	return v
}

// addPod adds a pod to its workload and its namespace.
func (v *View) addPod(family map[string]*namespace, g *reach.Group, m *reach.Member) {
	n := family[m.ID.Namespace]
	if n == nil {
		n = &namespace{end: End{Key: m.ID.Namespace}, workloads: make(map[string]*workload)}
		family[m.ID.Namespace] = n
	}
	key, pod := "Pod/"+m.ID.Name, End{Key: m.ID.Name}
	if p, ok := v.cluster.Snapshot.Pods.Get(m.ID); ok {
		id, ok := v.cluster.Workloads[m.ID]
		if !ok {
			id, ok = p.Workload()
		}
		if ok {
			key = id.Kind + "/" + id.Name
		}
		if len(p.Ports) > 0 {
			pod.port = p.Ports[0].Port
		}
	}
	w := n.workloads[key]
	if w == nil {
		w = &workload{end: End{Key: key}}
		n.workloads[key] = w
	}
	pod.add(g)
	w.end.add(g)
	n.end.add(g)
	w.pods = append(w.pods, pod)
}

// add counts a pod of a group.
func (e *End) add(g *reach.Group) {
	e.Pods++
	for _, os := range g.OS {
		if !slices.Contains(e.OS, os) {
			e.OS = append(e.OS, os)
			slices.Sort(e.OS)
		}
	}
	if n := len(e.parts); n > 0 && e.parts[n-1].group == g { // pods come group by group
		e.parts[n-1].pods++
		return
	}
	e.parts = append(e.parts, part{g, 1})
}

// Namespaces lists the namespaces with pods of an address family.
func (v *View) Namespaces(v6 bool) []End {
	var all []End
	for _, name := range slices.Sorted(maps.Keys(v.family(v6))) {
		all = append(all, v.family(v6)[name].end)
	}
	return all
}

// Workloads lists the workloads of a namespace. Pods that belong to none are listed as workloads of kind Pod.
func (v *View) Workloads(v6 bool, name string) ([]End, error) {
	n := v.family(v6)[name]
	if n == nil {
		return nil, fmt.Errorf("namespace %q has no pods with %s addresses that policies apply to: check the spelling", name, familyName(v6))
	}
	all := make([]End, 0, len(n.workloads))
	for _, key := range slices.Sorted(maps.Keys(n.workloads)) {
		all = append(all, n.workloads[key].end)
	}
	return all, nil
}

// Pods lists the pods of a workload, by the namespace and the key of the workload.
func (v *View) Pods(v6 bool, name, key string) ([]End, error) {
	if _, err := v.Workloads(v6, name); err != nil {
		return nil, err
	}
	w := v.family(v6)[name].workloads[key]
	if w == nil {
		return nil, fmt.Errorf("namespace %q has no workload %q: give KIND/NAME, as Deployment/web", name, key)
	}
	return w.pods, nil
}

func (v *View) family(v6 bool) map[string]*namespace {
	if v6 {
		return v.families[1]
	}
	return v.families[0]
}

func familyName(v6 bool) string {
	if v6 {
		return "IPv6"
	}
	return "IPv4"
}

// Systems names the operating systems of an end: "linux", or "linux, windows".
func (e End) Systems() string {
	texts := make([]string, len(e.OS))
	for i, os := range e.OS {
		texts[i] = string(os)
	}
	return strings.Join(texts, ", ")
}

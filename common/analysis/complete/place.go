// SPDX-License-Identifier: Apache-2.0

package complete

import (
	"cmp"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"

	"github.com/isthmus-net/isthmus/common/model"
)

// The source of addresses that manifests omit: the range for shared address space (RFC
// 6598), which policies hardly name.
var (
	assumedRanges = map[model.OS]netip.Prefix{
		model.Linux:   netip.MustParsePrefix("100.64.0.0/16"),
		model.Windows: netip.MustParsePrefix("100.65.0.0/16"),
	}
	assumedNodes = map[model.OS]netip.Addr{
		model.Linux:   netip.MustParseAddr("100.127.0.1"),
		model.Windows: netip.MustParseAddr("100.127.0.2"),
	}
	// elsewhere is for pods on nodes that have no range.
	elsewhere = netip.MustParsePrefix("100.72.0.0/13")
)

const (
	osLabel = "kubernetes.io/os"
	// firstHost skips the addresses at the start of a range, which gateways and nodes use.
	firstHost = 10
)

// placer gives nodes and addresses to pods that have none: pods of workloads, and Pod
// objects that no cluster created. It remembers the addresses across several sets of
// objects, so that a pod of two sets has the same address in both.
type placer struct {
	used  map[netip.Addr]bool
	given map[placing]netip.Addr
	next  map[netip.Prefix]netip.Addr
}

// placing is a pod and the range of its address.
type placing struct {
	pod  model.PodID
	from netip.Prefix
}

// Placed is the result of Place.
type Placed struct {
	// Nodes are the names of nodes that no manifest describes, in order.
	Nodes []string
	// Bound is the number of pods that got a node; Addressed is the number of pods that got
	// addresses.
	Bound, Addressed int
}

// Place gives nodes and addresses to pods that have none, in sets of objects that
// are versions of one cluster: a pod of several sets has the same address in each.
// It changes the sets and none of the objects in them.
func Place(sets ...*model.Objects) Placed {
	p := &placer{used: make(map[netip.Addr]bool), given: make(map[placing]netip.Addr), next: make(map[netip.Prefix]netip.Addr)}
	for _, o := range sets {
		for _, pod := range o.Pods {
			for _, a := range pod.IPs {
				p.used[a] = true
			}
		}
		for _, n := range o.Nodes {
			for _, a := range n.Addresses {
				p.used[a] = true
			}
		}
	}
	nodes, pods, addresses := make(map[string]bool), make(map[model.PodID]bool), make(map[model.PodID]bool)
	for _, o := range sets {
		p.complete(o, nodes, pods, addresses)
	}
	return Placed{Nodes: slices.Sorted(maps.Keys(nodes)), Bound: len(pods), Addressed: len(addresses)}
}

// complete adds the missing nodes and addresses to one set of objects, and records them.
func (p *placer) complete(o *model.Objects, newNodes map[string]bool, bound, addressed map[model.PodID]bool) {
	known := make(map[string]*model.Node, len(o.Nodes))
	for _, n := range o.Nodes {
		known[n.Name] = n
	}
	add := func(n *model.Node) *model.Node {
		known[n.Name] = n
		newNodes[n.Name] = true
		o.Nodes = append(o.Nodes, n)
		return n
	}
	listed := slices.Clone(o.Nodes)
	pods := slices.Clone(o.Pods)
	for i, was := range pods {
		pod := *was
		if pod.Node == "" {
			n := choose(listed, &pod, o.NodeSelectors[pod.PodID])
			if n == nil {
				n = assumedNode("assumed-"+string(wantedOS(o.NodeSelectors[pod.PodID])), wantedOS(o.NodeSelectors[pod.PodID]), true)
			}
			pod.Node = n.Name
			bound[pod.PodID] = true
			if known[n.Name] == nil {
				add(n)
			}
		} else if known[pod.Node] == nil {
			add(assumedNode(pod.Node, wantedOS(o.NodeSelectors[pod.PodID]), false))
		}
		if len(pod.IPs) == 0 && pod.Policed() {
			pod.IPs = p.addresses(pod.PodID, known[pod.Node])
			addressed[pod.PodID] = true
		}
		pods[i] = &pod
	}
	o.Pods = pods
	slices.SortFunc(o.Nodes, func(a, b *model.Node) int { return cmp.Compare(a.Name, b.Name) })
}

// choose picks one of the suitable nodes, always the same for one pod.
func choose(nodes []*model.Node, pod *model.Pod, wants model.Selector) *model.Node {
	var fit []*model.Node
	for _, n := range nodes {
		if wants.Matches(n.Labels) {
			fit = append(fit, n)
		}
	}
	if len(fit) == 0 {
		return nil
	}
	h := fnv.New32a()
	h.Write([]byte(pod.PodID.String()))
	return fit[int(h.Sum32())%len(fit)]
}

// wantedOS is the operating system that a pod requests.
func wantedOS(s model.Selector) model.OS {
	for _, r := range s.Requirements() {
		if r.Key == osLabel && r.Operator == model.In && slices.Contains(r.Values, string(model.Windows)) {
			return model.Windows
		}
	}
	return model.Linux
}

// assumedNode stands for nodes that no manifest describes. A node with a range of its own
// stands for all nodes of an operating system.
func assumedNode(name string, os model.OS, own bool) *model.Node {
	n := &model.Node{Name: name, OS: os, Labels: model.MakeLabels(map[string]string{osLabel: string(os), "kubernetes.io/hostname": name})}
	if own {
		n.Addresses = []netip.Addr{assumedNodes[os]}
		n.PodCIDRs = []netip.Prefix{assumedRanges[os]}
	}
	return n
}

// addresses gives a pod an address of each of its node's ranges.
func (p *placer) addresses(pod model.PodID, n *model.Node) []netip.Addr {
	ranges := n.PodCIDRs
	if len(ranges) == 0 {
		ranges = []netip.Prefix{elsewhere}
	}
	var all []netip.Addr
	families := make(map[bool]bool)
	for _, r := range ranges {
		if families[r.Addr().Is6()] {
			continue
		}
		a, ok := p.address(pod, r)
		if !ok && r.Addr().Is4() {
			a, ok = p.address(pod, elsewhere) // the range is exhausted
		}
		if !ok {
			continue
		}
		families[r.Addr().Is6()] = true
		all = append(all, a)
	}
	return all
}

func (p *placer) address(pod model.PodID, from netip.Prefix) (netip.Addr, bool) {
	key := placing{pod, from}
	if a, ok := p.given[key]; ok {
		return a, true
	}
	a, ok := p.next[from]
	if !ok {
		a = from.Addr()
		for range firstHost {
			a = a.Next()
		}
	}
	for p.used[a] {
		a = a.Next()
	}
	if !from.Contains(a.Next()) { // the last address may be the broadcast address
		return netip.Addr{}, false
	}
	p.next[from] = a.Next()
	p.used[a], p.given[key] = true, a
	return a, true
}

// OSOf returns the operating system of the node that enforces for a pod, and Linux if that
// is not known.
func OSOf(s *model.Snapshot, pod *model.Pod) model.OS {
	if n, ok := s.Nodes.Get(pod.Node); ok && n.OS != "" {
		return n.OS
	}
	return model.Linux
}

// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/endpoint"
	"github.com/isthmus-net/isthmus/common/model"
)

// Name returns the name of an endpoint's host end in mode full.
type Name func(model.EndpointID) string

// oldest is the first kernel with tcx hooks. An interface that is up can be renamed since 6.2.
var oldest = [2]int{6, 6}

// planner collects reasons while it makes a Plan.
type planner struct {
	node    *Node
	plan    *Plan
	reasons []string
}

// Make plans the migration of a node. With reasons, the node must not be changed: each names an object, the
// problem and the remedy.
func Make(n *Node, name Name) (*Plan, []string) {
	p := &planner{node: n, plan: &Plan{Boot: n.Boot, Network: n.Network, Bridge: n.Bridge, Tunnels: n.Tunnels}}
	if len(n.Tunnels) == 0 {
		p.plan.Routes = n.Routes
	}
	p.checkNode()
	for _, port := range n.Ports {
		p.pod(port, name)
	}
	p.records()
	slices.SortFunc(p.plan.Pods, func(a, b Pod) int { return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name) })
	if len(p.reasons) > 0 {
		return nil, p.reasons
	}
	p.steps()
	return p.plan, nil
}

func (p *planner) refuse(format string, args ...any) {
	p.reasons = append(p.reasons, fmt.Sprintf(format, args...))
}

func (p *planner) checkNode() {
	n := p.node
	if n.Kernel[0] < oldest[0] || n.Kernel[0] == oldest[0] && n.Kernel[1] < oldest[1] {
		p.refuse("kernel %d.%d has no tcx hooks, which take packets past the bridge: drain the node, or boot Linux %d.%d or later", n.Kernel[0], n.Kernel[1], oldest[0], oldest[1])
	}
	for _, d := range n.Tunnels {
		if !d.Up {
			p.refuse("device %s of flannel's VXLAN backend is down: restart flanneld, or remove the device if flannel has another backend", d.Name)
		}
		if d.MTU < p.node.Bridge.MTU {
			p.refuse("device %s has MTU %d, less than the %d of bridge %s: remove the device if flannel has another backend, or recreate the pods", d.Name, d.MTU, p.node.Bridge.MTU, p.node.Bridge.Name)
		}
	}
	if len(n.Bridge.Addresses) == 0 {
		p.refuse("bridge %s has no address: its pods have another gateway than this node", n.Bridge.Name)
	}
	for _, a := range n.Bridge.Addresses {
		if !inside(n.Network.Ranges, a.Addr()) {
			p.refuse("address %s of bridge %s is not in the node's ranges %s: the network has other ranges now", a.Addr(), n.Bridge.Name, joinPrefixes(n.Network.Ranges))
		}
	}
}

// pod plans the move of the pod behind a port.
func (p *planner) pod(port Port, name Name) {
	if port.Problem != "" {
		p.refuse("port %s of bridge %s: %s: remove it from the bridge", port.Name, p.node.Bridge.Name, port.Problem)
		return
	}
	i := slices.IndexFunc(p.node.Records, func(r endpoint.Record) bool { return port.Endpoint != "" && r.ID() == port.Endpoint })
	if i < 0 {
		p.refuse("the pod behind port %s has no policy: run the agent with --mode=policy until it has adopted all pods", port.Name)
		return
	}
	was := p.node.Records[i]
	count := len(p.reasons)
	p.checkPod(port, was)
	lease := p.lease(port, was)
	if len(p.reasons) > count {
		return
	}
	record := was
	record.Kind, record.ContainerID, record.IfName, record.Network = endpoint.Migrated, lease.ContainerID, port.Pod.IfName, p.node.Network.Name
	if strings.HasPrefix(record.NetNS, dataplane.HandlePrefix) {
		record.NetNS = port.Pod.NetNS
	}
	p.plan.Pods = append(p.plan.Pods, Pod{Namespace: was.Namespace, Name: was.Name, Was: was, Record: record,
		Port: port.Name, Index: port.Index, HostMAC: port.MAC, MTU: port.MTU, Hairpin: port.Hairpin, Sysctls: port.Sysctls, NewName: name(record.ID()),
		PeerIndex: port.Pod.PeerIndex, IfName: port.Pod.IfName, MAC: port.Pod.MAC, NetNS: port.Pod.NetNS, Addresses: port.Pod.Addresses})
}

// checkPod refuses a pod with another form than the bridge plugin gives it.
func (p *planner) checkPod(port Port, was endpoint.Record) {
	pod, end := was.Pod(), port.Pod
	if was.State != endpoint.Ready || was.Kind != endpoint.Foreign {
		p.refuse("pod %s is being attached or removed: try again", pod)
	}
	if end.NetNS == "" {
		p.refuse("pod %s: no path leads to its network namespace: run isthmusctl in the PID and mount namespaces of the node", pod)
	}
	if len(end.Others) > 0 {
		p.refuse("pod %s has more interfaces than %s: %s: delete the pod", pod, end.IfName, strings.Join(end.Others, ", "))
	}
	var has []netip.Addr
	for _, a := range end.Addresses {
		has = append(has, a.Addr())
		gateway, ok := p.node.Bridge.Gateway(a.Addr())
		if !ok || !inside(p.node.Network.Ranges, a.Addr()) {
			p.refuse("pod %s has the address %s outside of the node's ranges %s: delete the pod", pod, a.Addr(), joinPrefixes(p.node.Network.Ranges))
			continue
		}
		if !slices.Contains(end.Gateways, gateway) {
			p.refuse("pod %s has no default route via %s, the address of bridge %s: delete the pod", pod, gateway, p.node.Bridge.Name)
		}
	}
	if len(was.Further) > 0 {
		p.refuse("pod %s has further addresses %v, and mode full gives a pod one of each IP version: delete the pod", pod, was.Further)
	} else if !sameAddresses(has, was.IPs) {
		p.refuse("pod %s has the addresses %v, policy is in force for %v: wait until the agent has noticed, or delete the pod", pod, has, was.IPs)
	}
	for _, g := range end.Gateways {
		if !slices.ContainsFunc(p.node.Bridge.Addresses, func(a netip.Prefix) bool { return a.Addr() == g }) {
			p.refuse("pod %s has a default route via %s, which is not bridge %s: delete the pod", pod, g, p.node.Bridge.Name)
		}
	}
}

// lease finds the entry of host-local for a pod.
func (p *planner) lease(port Port, was endpoint.Record) (found Lease) {
	for _, ip := range was.IPs {
		i := slices.IndexFunc(p.node.Leases, func(l Lease) bool { return l.IP == ip })
		switch {
		case i < 0:
			p.refuse("pod %s has the address %s, which host-local did not assign in %s: delete the pod", was.Pod(), ip, p.node.Network.Leases)
		case found.ContainerID != "" && p.node.Leases[i].ContainerID != found.ContainerID, p.node.Leases[i].IfName != port.Pod.IfName:
			p.refuse("pod %s: host-local assigned %s to interface %s of container %s, not to this pod: delete the pod", was.Pod(), ip, p.node.Leases[i].IfName, p.node.Leases[i].ContainerID)
		default:
			found = p.node.Leases[i]
		}
	}
	if p.node.HostPorts[found.ContainerID] {
		p.refuse("pod %s has host ports, whose rules belong to the plugin portmap: delete the pod", was.Pod())
	}
	return found
}

// records refuses pods that the agent knows but that are not behind the bridge.
func (p *planner) records() {
	for _, r := range p.node.Records {
		moved := slices.ContainsFunc(p.node.Ports, func(port Port) bool { return port.Endpoint == r.ID() })
		if r.State != endpoint.Released && !moved {
			p.refuse("pod %s is not behind bridge %s: delete the pod", r.Pod(), p.node.Bridge.Name)
		}
	}
}

// steps orders the changes. All pods are routed before the first one sends to another by the gateway: the
// node would otherwise redirect it to the bridge. A pod leaves the bridge when no pod sends to it there.
func (p *planner) steps() {
	add := func(s Step) { p.plan.Steps = append(p.plan.Steps, s) }
	each := func(k Kind) {
		for i := range p.plan.Pods {
			add(Step{Kind: k, Pod: i})
		}
	}
	var changed []Step
	for _, s := range settings(p.node.Bridge.Name) {
		if was, ok := p.node.Sysctls[s.Path]; ok && was != s.Value {
			changed = append(changed, Step{Kind: SetSysctl, Path: s.Path, Was: was, Value: s.Value})
			add(changed[len(changed)-1])
		}
	}
	each(RoutePod)
	each(ConfigurePod)
	add(Step{Kind: KeepGateway})
	each(LeaveBridge)
	each(RenamePort)
	for i := range p.plan.Routes {
		add(Step{Kind: OwnRoute, Route: i})
	}
	each(WriteRecord)
	if p.plan.Network.Wrapped != "" { // first: the list that remains names the plugin, and ADD fails meanwhile
		add(Step{Kind: KeepConf, Path: p.plan.Network.Wrapped})
	}
	if p.plan.Network.Conf != "" {
		add(Step{Kind: KeepConf, Path: p.plan.Network.Conf})
	}
	for _, s := range changed {
		add(Step{Kind: SetSysctl, Path: s.Path, Was: s.Value, Value: s.Was})
	}
	add(Step{Kind: RemoveBridge})
}

// settings are those that packets need on their way from the bridge to an interface. Connection tracking must
// accept connections of which it saw one direction only. Packets of a pod arrive by the bridge when the node
// already has a route by its interface: 2 accepts a source to which any interface leads.
func settings(bridge string) []Step {
	return []Step{{Path: "netfilter/nf_conntrack_tcp_be_liberal", Value: "1"}, {Path: "ipv4/conf/" + bridge + "/rp_filter", Value: "2"}}
}

func inside(ranges []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(a) })
}

func sameAddresses(a, b []netip.Addr) bool {
	a, b = slices.Clone(a), slices.Clone(b)
	slices.SortFunc(a, netip.Addr.Compare)
	slices.SortFunc(b, netip.Addr.Compare)
	return slices.Equal(a, b)
}

func joinPrefixes(all []netip.Prefix) string {
	var texts []string
	for _, p := range all {
		texts = append(texts, p.String())
	}
	return strings.Join(texts, ", ")
}

// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"go4.org/netipx"

	"github.com/isthmus-net/isthmus/windows"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// AgentFlags returns the flags of the agent that decide about the network.
func (p *Plan) AgentFlags() []string {
	flags := []string{"--mode=full", "--hns-network=" + p.Config.Network, "--hns-mode=" + string(p.Config.Mode)}
	if p.Config.Mode == windows.Overlay {
		flags = append(flags, fmt.Sprintf("--vni=%d", p.Config.VNI))
	}
	return flags
}

// ChartValues returns the same as values of the chart.
func (p *Plan) ChartValues() []string {
	values := []string{"mode=full", "windows.enabled=true", "windows.network=" + p.Config.Network, "windows.mode=" + string(p.Config.Mode)}
	if p.Config.Mode == windows.Overlay {
		values = append(values, fmt.Sprintf("fabric.vni=%d", p.Config.VNI))
	}
	return values
}

// Notes returns what the comparison of the network does not show.
func (p *Plan) Notes() (all []string) {
	if p.Config.Mode == windows.Overlay {
		all = append(all, fmt.Sprintf("the agents of all nodes must have --vni=%d; while flannel's tunnels connect a node, pods of this node do not reach those of that node", p.Config.VNI))
	}
	return all
}

// Steps returns what the administrator does, in this order. There are none if no agent starts with these settings, or on
// this HNS.
func (p *Plan) Steps() (steps []string) {
	if len(p.invalid)+len(p.Unsupported) > 0 {
		return nil
	}
	step := func(format string, args ...any) { steps = append(steps, fmt.Sprintf(format, args...)) }
	if !p.given {
		step("compare the ranges of the Node with %s: kubectl get node %s -o jsonpath='{.spec.podCIDRs}'", Join(p.Config.PodCIDRs), p.Node)
	}
	step("drain the node: kubectl drain %s --ignore-daemonsets --delete-emptydir-data", p.Node)
	if len(p.Pods) > 0 {
		step("plan again; for each endpoint that is still named, keep the DaemonSet of its pod off the node, and delete the pod; remove an endpoint that has no pod (Remove-HnsEndpoint)")
	}
	step("%s out of the directory of the runtime: pods that start meanwhile wait for the agent", p.stop())
	switch {
	case len(p.Network) > 0:
		step("remove the network, from the console of the node, whose connections it interrupts: Get-HnsNetwork | Where-Object Name -EQ %s | Remove-HnsNetwork", quote(p.Config.Network))
	case len(p.Host) > 0:
		step("remove the host's endpoint: Get-HnsEndpoint | Where-Object Name -EQ %s | Remove-HnsEndpoint", quote(p.Config.HostEndpoint()))
	}
	if have, want := p.sourceVIP(); have != "" {
		step("set winkernel.sourceVip of kube-proxy to %s, which no pod gets (now %s), restart kube-proxy, and remove its endpoint %s: a pod could get that address", want, have, sourceVIPName)
	}
	step("start the agent with %s (chart: %s)", strings.Join(p.AgentFlags(), " "), strings.Join(p.ChartValues(), ","))
	step("when isthmusctl status on the node has no problem: kubectl uncordon %s", p.Node)
	return steps
}

// stop says how the program that made the network is stopped, and what is moved.
func (p *Plan) stop() string {
	if p.From == FromFlannel {
		return "stop flanneld (Stop-Service flanneld, or keep its DaemonSet off the node), and move the CNI configuration of flannel"
	}
	return "disable what makes the network when the node starts, and move the CNI configuration of win-bridge"
}

// sourceVIPName is the name of the endpoint of kube-proxy for the address of its own on overlay networks.
const sourceVIPName = "SourceVIP"

// sourceVIP returns the address of kube-proxy's endpoint, and that which Isthmus keeps free for it; "" if they are the same,
// or there is no such endpoint.
func (p *Plan) sourceVIP() (have, want string) {
	i := slices.IndexFunc(p.Config.PodCIDRs, func(r netip.Prefix) bool { return r.Addr().Is4() })
	if p.Config.Mode != windows.Overlay || i < 0 {
		return "", ""
	}
	want = netipx.PrefixLastIP(p.Config.PodCIDRs[i]).Prev().String()
	for _, e := range p.Found.Endpoints {
		for _, a := range e.IPConfigurations {
			if isSourceVIP(e) && a.IPAddress != want {
				return a.IPAddress, want
			}
		}
	}
	return "", ""
}

func isSourceVIP(e hns.Endpoint) bool {
	return e.Name == sourceVIPName && e.HostComputeNamespace == "" && !e.Remote()
}

// quote writes a name as PowerShell reads it.
func quote(name string) string { return "'" + strings.ReplaceAll(name, "'", "''") + "'" }

// Join lists ranges.
func Join(ranges []netip.Prefix) string {
	var texts []string
	for _, r := range ranges {
		texts = append(texts, r.String())
	}
	return strings.Join(texts, " ")
}

// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
)

// Kind is what a step changes.
type Kind string

// The kinds, in the order of a Plan.
const (
	// SetSysctl changes a setting of the kernel for the time of the change.
	SetSysctl Kind = "sysctl"
	// RoutePod gives a port of the bridge its MAC, and lets the node reach the pod by this interface.
	RoutePod Kind = "route"
	// ConfigurePod lets a pod reach its subnet by the gateway, and makes the gateway's MAC permanent.
	ConfigurePod Kind = "pod"
	// LeaveBridge makes a port an interface to which the node routes.
	LeaveBridge Kind = "leave"
	// RenamePort gives the interface the name and alias of mode full, and its programs' pins likewise.
	RenamePort Kind = "rename"
	// KeepGateway gives lo the addresses of the bridge, for connections of the node that use them.
	KeepGateway Kind = "gateway"
	// OwnRoute marks a route to another node as one of Isthmus.
	OwnRoute Kind = "own"
	// KeepConf moves the configuration of the network aside.
	KeepConf Kind = "conf"
	// WriteRecord replaces the record of a pod.
	WriteRecord Kind = "record"
	// RemoveBridge removes the bridge, which has no ports by then.
	RemoveBridge Kind = "bridge"
)

// Step is one change. It can be repeated, and so can its reversal.
type Step struct {
	Kind Kind `json:"kind"`
	// Pod is an index in Plan.Pods: of RoutePod, ConfigurePod, LeaveBridge, RenamePort and WriteRecord.
	Pod int `json:"pod,omitempty"`
	// Route is an index in Plan.Routes, of OwnRoute.
	Route int `json:"route,omitempty"`
	// Path is a sysctl below net, or a file. Was and Value are the contents of the sysctl.
	Path  string `json:"path,omitempty"`
	Was   string `json:"was,omitempty"`
	Value string `json:"value,omitempty"`
}

// Plan is the migration of a node.
type Plan struct {
	// Boot is the ID of the node's boot. Interfaces and network namespaces end with it.
	Boot    string  `json:"boot,omitempty"`
	Network Network `json:"network"`
	Bridge  Bridge  `json:"bridge"`
	Pods    []Pod   `json:"pods"`
	// Routes become those of Isthmus. It is empty with Tunnels, whose routes stay those of flanneld.
	Routes  []Route  `json:"routes,omitempty"`
	Tunnels []Tunnel `json:"tunnels,omitempty"`
	Steps   []Step   `json:"steps"`
}

// AsideSuffix ends the name of a configuration that was moved aside. Runtimes ignore such a file.
const AsideSuffix = ".before-isthmus"

// AgentFlags returns the flags that the agent of mode full needs: they leave the routes to other nodes with their
// owner. The MTU is that of a tunnel, which is the limit of new pods, too.
func (p *Plan) AgentFlags() []string {
	if len(p.Tunnels) == 0 {
		return []string{"--mode=full", "--fabric=routes"}
	}
	mtu := p.Tunnels[0].MTU
	for _, t := range p.Tunnels[1:] {
		mtu = min(mtu, t.MTU)
	}
	return []string{"--mode=full", "--fabric=none", fmt.Sprintf("--mtu=%d", mtu)}
}

// Describe says in one line what a step changes.
func (p *Plan) Describe(s Step) string {
	switch s.Kind {
	case SetSysctl:
		return fmt.Sprintf("set sysctl net.%s to %s (was %s)", strings.ReplaceAll(s.Path, "/", "."), s.Value, s.Was)
	case KeepGateway:
		return fmt.Sprintf("add %s of %s to lo", joinAddresses(p.Bridge.Addresses), p.Bridge.Name)
	case OwnRoute:
		r := p.Routes[s.Route]
		return fmt.Sprintf("keep the route to %s via %s dev %s as one of Isthmus", r.Prefix, r.Via, r.Device)
	case KeepConf:
		return fmt.Sprintf("rename %s to %s", s.Path, filepath.Base(s.Path)+AsideSuffix)
	case RemoveBridge:
		return fmt.Sprintf("remove bridge %s, which has no ports", p.Bridge.Name)
	}
	pod := p.Pods[s.Pod]
	name := "pod " + pod.Namespace + "/" + pod.Name
	switch s.Kind {
	case RoutePod:
		return fmt.Sprintf("%s: give %s the MAC %s of %s, route %s dev %s, neighbour %s permanent", name, pod.Port, p.Bridge.MAC, p.Bridge.Name, joinAddresses(pod.Addresses), pod.Port, pod.MAC)
	case ConfigurePod:
		return fmt.Sprintf("%s: route its subnet via its gateway dev %s, neighbour %s permanent", name, pod.IfName, p.Bridge.MAC)
	case LeaveBridge:
		return fmt.Sprintf("%s: remove %s from %s", name, pod.Port, p.Bridge.Name)
	case RenamePort:
		return fmt.Sprintf("%s: rename %s to %s", name, pod.Port, pod.NewName)
	case WriteRecord:
		return fmt.Sprintf("%s: record %s with the addresses that host-local assigned to container %s", name, joinAddresses(pod.Addresses), pod.Record.ContainerID)
	}
	return string(s.Kind)
}

func joinAddresses(all []netip.Prefix) string {
	var texts []string
	for _, p := range all {
		texts = append(texts, p.Addr().String())
	}
	return strings.Join(texts, " and ")
}

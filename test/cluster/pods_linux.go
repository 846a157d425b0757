// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/netns"
)

// Pod is an attached pod.
type Pod struct {
	*model.Pod
	Node        *Node
	NS          *netns.NS
	containerID string
	netnsPath   string
	running     bool // whether HNS has its container
}

// Schedule assigns every policed pod to a node in turn, and writes it to the manifests. The node selector chooses
// the operating system; the default is Linux, as taints of mixed clusters enforce it. It ignores other
// requirements of selectors. It places at most limit pods; the others stay in the manifests without an address.
func (c *Cluster) Schedule(o model.Objects, limit int) ([]*model.Pod, error) {
	var bySystem = map[model.OS][]*Node{}
	for _, n := range c.Nodes {
		bySystem[n.OS] = append(bySystem[n.OS], n)
	}
	next := map[model.OS]int{}
	var placed []*model.Pod
	for _, p := range o.Pods {
		if !p.Policed() || len(placed) == limit {
			continue
		}
		system := model.Linux
		for _, r := range o.NodeSelectors[p.PodID].Requirements() {
			if strings.HasSuffix(r.Key, "kubernetes.io/os") && r.Operator == model.In && slices.Contains(r.Values, string(model.Windows)) {
				system = model.Windows
			}
		}
		nodes := bySystem[system]
		if len(nodes) == 0 {
			continue
		}
		pod := *p
		pod.IPs = nil
		pod.Node = nodes[next[system]%len(nodes)].Name
		next[system]++
		// The name of a DaemonSet's pod contains the name of its node.
		for _, n := range nodes {
			if strings.HasSuffix(p.Name, "-"+n.Name) {
				pod.Node = n.Name
			}
		}
		if err := c.Manifests.WritePod(&pod); err != nil {
			return nil, err
		}
		placed = append(placed, &pod)
	}
	return placed, nil
}

// Attach makes the namespace of a pod, connects it by CNI ADD, starts its container, and publishes its addresses. If ADD fails it
// removes the pod, as a runtime does.
func (c *Cluster) Attach(ctx context.Context, pod *model.Pod) (*Pod, time.Duration, error) {
	i := slices.IndexFunc(c.Nodes, func(n *Node) bool { return n.Name == pod.Node })
	p := &Pod{Pod: pod, Node: c.Nodes[i], containerID: strings.NewReplacer("/", "-").Replace(pod.PodID.String())}
	if c.cfg.OtherCNI != "" { // some plugins distinguish pods by the first digits of an identifier as runtimes have it
		p.containerID = fmt.Sprintf("%x", sha256.Sum256([]byte(p.containerID)))
	}
	if err := p.makeNamespace(ctx, c); err != nil {
		return nil, 0, err
	}
	c.pods = append(c.pods, p)
	start := time.Now()
	added, err := p.add(ctx)
	if err != nil {
		return nil, 0, errors.Join(fmt.Errorf("CNI ADD of %s on %s: %w", pod.PodID, pod.Node, err), c.Detach(ctx, p))
	}
	took := time.Since(start)
	if err := p.startContainer(ctx); err != nil {
		return nil, 0, err
	}
	result, err := types100.GetResult(added)
	if err != nil {
		return nil, 0, err
	}
	pod.IPs, pod.Started = nil, time.Now().Unix()
	for _, ip := range result.IPs {
		a, ok := netip.AddrFromSlice(ip.Address.IP)
		if !ok {
			return nil, 0, fmt.Errorf("CNI ADD of %s gave address %s", pod.PodID, ip.Address.IP)
		}
		pod.IPs = append(pod.IPs, a.Unmap())
	}
	return p, took, c.Manifests.WritePod(pod)
}

// Detach ends a pod's container and removes the pod by CNI DEL.
func (c *Cluster) Detach(ctx context.Context, p *Pod) error {
	if err := p.endContainer(ctx); err != nil {
		return err
	}
	if err := p.del(ctx); err != nil {
		return fmt.Errorf("CNI DEL of %s on %s: %w", p.PodID, p.Node.Name, err)
	}
	c.pods = slices.DeleteFunc(c.pods, func(o *Pod) bool { return o == p })
	return p.NS.Close()
}

func (p *Pod) makeNamespace(ctx context.Context, c *Cluster) (err error) {
	if p.NS, err = netns.Prepared(filepath.Join(c.cfg.Dir, "ns", "pod-"+p.containerID)); err != nil {
		return err
	}
	p.netnsPath = p.NS.Path()
	if p.Node.OS == model.Windows {
		if p.netnsPath, err = p.Node.makeHCNNamespace(ctx, p.NS.Path()); err != nil {
			return err
		}
	}
	return nil
}

// HostPort is the port mapping that a runtime passes for a container's port with a hostPort.
type HostPort struct {
	HostPort      int    `json:"hostPort"`
	ContainerPort int    `json:"containerPort"`
	Protocol      string `json:"protocol"`
	HostIP        string `json:"hostIP"`
}

// Bandwidth holds the limits that a runtime passes for the bandwidth annotations of a pod: in bits per second,
// and bits.
type Bandwidth struct {
	IngressRate  uint64 `json:"ingressRate,omitempty"`
	IngressBurst uint64 `json:"ingressBurst,omitempty"`
	EgressRate   uint64 `json:"egressRate,omitempty"`
	EgressBurst  uint64 `json:"egressBurst,omitempty"`
}

func (p *Pod) runtime() *libcni.RuntimeConf {
	capabilities := map[string]any{}
	if ports := p.Node.cluster.cfg.HostPorts[p.Name]; len(ports) > 0 {
		capabilities["portMappings"] = ports
	}
	if limits, ok := p.Node.cluster.cfg.Bandwidth[p.Name]; ok {
		capabilities["bandwidth"] = limits
	}
	capabilities["dns"] = clusterFirst(p.Namespace) // libcni drops it if the configuration does not declare the capability
	return &libcni.RuntimeConf{CapabilityArgs: capabilities, ContainerID: p.containerID, NetNS: p.netnsPath, IfName: "eth0", Args: [][2]string{
		{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", p.Namespace}, {"K8S_POD_NAME", p.Name}, {"K8S_POD_INFRA_CONTAINER_ID", p.containerID},
	}}
}

// DetachAll removes all pods.
func (c *Cluster) DetachAll(ctx context.Context) error {
	var errs []error
	for _, p := range slices.Clone(c.pods) {
		errs = append(errs, c.Detach(ctx, p))
	}
	return errors.Join(errs...)
}

// Port is a destination port of flows.
type Port struct {
	Protocol model.Protocol
	Number   uint16
}

// Ports returns the ports that a pod declares, and one that it does not declare, so that policy has something to
// deny.
func (p *Pod) Ports() []Port {
	var all []Port
	for _, n := range p.Pod.Ports {
		if at := (Port{n.Protocol, n.Port}); !slices.Contains(all, at) {
			all = append(all, at)
		}
	}
	if other := (Port{model.TCP, 9999}); !slices.Contains(all, other) {
		all = append(all, other)
	}
	return all
}

// Serve starts echo servers at all ports of all pods.
func (c *Cluster) Serve() error {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	for _, p := range c.pods {
		for _, at := range p.Ports() {
			wg.Go(func() {
				if err := c.ServeAt(p, at); err != nil {
					mu.Lock()
					defer mu.Unlock()
					errs = append(errs, err)
				}
			})
		}
	}
	wg.Wait()
	return errors.Join(errs...)
}

// ServeAt starts echo servers at one port of a pod.
func (c *Cluster) ServeAt(p *Pod, at Port) error {
	for _, a := range p.IPs {
		if err := c.servers.Echo(p.NS, netip.AddrPortFrom(a, at.Number), at.Protocol); err != nil {
			return fmt.Errorf("serve %s: %w", p.PodID, err)
		}
	}
	return nil
}

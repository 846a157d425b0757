// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
)

// The networks from which nodes can be migrated.
const (
	FromBridge  = "bridge"
	FromFlannel = "flannel"
	FromKubenet = "kubenet"
)

// Networks lists them.
func Networks() []string { return []string{FromBridge, FromFlannel, FromKubenet} }

// Network is the network that made the interfaces of pods.
type Network struct {
	// From is one of Networks.
	From string `json:"from"`
	// Name is that of the CNI network, Bridge that of its device.
	Name   string `json:"name"`
	Bridge string `json:"bridge"`
	// Conf is the path of its configuration; "" for kubenet of a runtime that has it in memory.
	Conf string `json:"conf,omitempty"`
	// Wrapped is the path of the configuration of one plugin that Conf, a list of the agent of mode policy, wraps;
	// "" if Conf is the file of the network.
	Wrapped string `json:"wrapped,omitempty"`
	// ConfDir is the directory of configurations, in which the agent of mode full adds its own.
	ConfDir string `json:"confDir"`
	// Leases is the directory of host-local's files.
	Leases string `json:"leases"`
	// Ranges are the node's subnets. Cluster are those of all nodes, if the network says so.
	Ranges  []netip.Prefix `json:"ranges"`
	Cluster []netip.Prefix `json:"cluster,omitempty"`
	// SubnetFile is the file in which flanneld writes the subnet; "" for other networks.
	SubnetFile string `json:"-"`
}

// maxConf bounds a configuration, in bytes.
const maxConf = 1 << 20

// defaultLeases is where host-local keeps its files, in a directory for each network.
const defaultLeases = "/var/lib/cni/networks"

// Kubenet is the network of a runtime that calls the plugins by itself, without a file: cri-dockerd with
// --network-plugin=kubenet, and the kubelet until Kubernetes 1.23.
func Kubenet() Network {
	return Network{From: FromKubenet, Name: "kubenet", Bridge: "cbr0", Leases: filepath.Join(defaultLeases, "kubenet")}
}

// plugin holds the keys of a plugin's configuration that the planner reads.
type plugin struct {
	Type       string          `json:"type"`
	Bridge     string          `json:"bridge"`
	IsGateway  bool            `json:"isGateway"`
	IsDefault  bool            `json:"isDefaultGateway"`
	VLAN       int             `json:"vlan"`
	VLANTrunk  json.RawMessage `json:"vlanTrunk"`
	Spoofing   bool            `json:"macspoofchk"`
	IPAM       ipam            `json:"ipam"`
	SubnetFile string          `json:"subnetFile"`
	Delegate   *plugin         `json:"delegate"`
}

type ipam struct {
	Type    string `json:"type"`
	DataDir string `json:"dataDir"`
	Subnet  string `json:"subnet"`
	Ranges  [][]struct {
		Subnet string `json:"subnet"`
	} `json:"ranges"`
}

// Beside are plugins that may follow in the list. They configure no interface.
var beside = []string{"portmap", "isthmus-cni"}

// ParseNetwork reads a configuration, a list or a single one. The error joins everything that cannot be
// migrated.
func ParseNetwork(from, path string, text []byte) (Network, error) {
	n := Network{From: from, Conf: path}
	var conf struct {
		Name    string   `json:"name"`
		Plugins []plugin `json:"plugins"`
	}
	if len(text) > maxConf {
		return n, fmt.Errorf("%s has %d bytes, more than %d", path, len(text), maxConf)
	}
	if err := json.Unmarshal(text, &conf); err != nil {
		return n, fmt.Errorf("parse %s: %w", path, err)
	}
	if len(conf.Plugins) == 0 {
		var single plugin
		if err := json.Unmarshal(text, &single); err != nil {
			return n, fmt.Errorf("parse %s: %w", path, err)
		}
		conf.Plugins = []plugin{single}
	}
	n.Name = conf.Name
	var errs []error
	if conf.Name == "" || strings.ContainsAny(conf.Name, "/\x00") || conf.Name == "." || conf.Name == ".." {
		errs = append(errs, fmt.Errorf("name %q is not that of a network", conf.Name))
	}
	for _, p := range conf.Plugins[1:] {
		if !slices.Contains(beside, p.Type) {
			errs = append(errs, fmt.Errorf("plugin %q changes pods in a way that is not known: delete its pods and its entry first", p.Type))
		}
	}
	errs = append(errs, n.first(conf.Plugins[0]))
	if err := errors.Join(errs...); err != nil {
		return n, fmt.Errorf("%s: %w", path, err)
	}
	return n, nil
}

// first reads the plugin that makes the interfaces.
func (n *Network) first(p plugin) error {
	want := n.From
	if want == FromKubenet {
		want = FromBridge
	}
	if p.Type != want {
		return fmt.Errorf("the first plugin is %q, not %q: name its network with --from", p.Type, want)
	}
	if n.From == FromFlannel {
		return n.flannel(p)
	}
	return n.bridge(p, true)
}

// bridge reads the bridge plugin, which has the ranges only if flannel did not pass them.
func (n *Network) bridge(p plugin, ranges bool) error {
	var errs []error
	if n.Bridge = p.Bridge; n.Bridge == "" {
		n.Bridge = "cni0"
	}
	if strings.ContainsAny(n.Bridge, "/ ") || len(n.Bridge) > 15 || n.Bridge == "." || n.Bridge == ".." {
		errs = append(errs, fmt.Errorf("bridge %q is not the name of an interface", n.Bridge))
	}
	if p.VLAN != 0 || len(p.VLANTrunk) > 0 && string(p.VLANTrunk) != "null" {
		errs = append(errs, errors.New("vlan and vlanTrunk: a routed interface has no VLAN: remove the keys and recreate the pods"))
	}
	if p.Spoofing {
		errs = append(errs, errors.New("macspoofchk: its nftables rules name ports of the bridge: remove the key and recreate the pods"))
	}
	if ranges && !p.IsGateway && !p.IsDefault {
		errs = append(errs, errors.New("isGateway is not set: the pods have another gateway than this node"))
	}
	if p.IPAM.Type != "host-local" && (ranges || p.IPAM.Type != "") {
		errs = append(errs, fmt.Errorf("ipam plugin %q: only addresses of host-local can be adopted", p.IPAM.Type))
	}
	if p.IPAM.DataDir == "" {
		p.IPAM.DataDir = defaultLeases
	}
	if !filepath.IsAbs(p.IPAM.DataDir) {
		errs = append(errs, fmt.Errorf("ipam dataDir %q is not an absolute path", p.IPAM.DataDir))
	}
	n.Leases = filepath.Join(p.IPAM.DataDir, n.Name)
	if ranges {
		errs = append(errs, n.ranges(p.IPAM))
	}
	return errors.Join(errs...)
}

func (n *Network) ranges(i ipam) error {
	var all []string
	if i.Subnet != "" {
		all = append(all, i.Subnet)
	}
	for _, set := range i.Ranges {
		if len(set) != 1 {
			return errors.New("ipam ranges: a set must have one range, because a node has one for each IP version")
		}
		all = append(all, set[0].Subnet)
	}
	for _, text := range all {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return fmt.Errorf("ipam range %q is not a prefix", text)
		}
		n.Ranges = append(n.Ranges, p.Masked())
	}
	if len(n.Ranges) == 0 {
		return errors.New("ipam has no range")
	}
	return oneEach(n.Ranges)
}

// oneEach returns an error if two ranges have the same IP version.
func oneEach(ranges []netip.Prefix) error {
	for i, p := range ranges {
		for _, other := range ranges[:i] {
			if other.Addr().Is6() == p.Addr().Is6() {
				return fmt.Errorf("ranges %s and %s: a node has one range for each IP version", other, p)
			}
		}
	}
	return nil
}

// flannel reads the flannel plugin. flanneld writes the ranges, into SubnetFile.
func (n *Network) flannel(p plugin) error {
	if n.SubnetFile = p.SubnetFile; n.SubnetFile == "" {
		n.SubnetFile = "/run/flannel/subnet.env"
	}
	delegate := plugin{}
	if p.Delegate != nil {
		delegate = *p.Delegate
	}
	if delegate.Type != "" && delegate.Type != FromBridge {
		return fmt.Errorf("delegate %q: only the bridge plugin can be migrated", delegate.Type)
	}
	if delegate.IPAM.Type == "" {
		delegate.IPAM = p.IPAM
	}
	return n.bridge(delegate, false)
}

// Subnet reads the file of flanneld.
func (n *Network) Subnet(text []byte) error {
	n.Ranges, n.Cluster = nil, nil
	if len(text) > maxConf {
		return fmt.Errorf("%s has %d bytes, more than %d", n.SubnetFile, len(text), maxConf)
	}
	for line := range bytes.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(string(line)), "=")
		var into *[]netip.Prefix
		switch key {
		case "FLANNEL_SUBNET", "FLANNEL_IPV6_SUBNET":
			into = &n.Ranges
		case "FLANNEL_NETWORK", "FLANNEL_IPV6_NETWORK":
			into = &n.Cluster
		default:
			continue
		}
		for part := range strings.SplitSeq(value, ",") {
			p, err := netip.ParsePrefix(part)
			if err != nil {
				return fmt.Errorf("%s: %s=%s is not a prefix", n.SubnetFile, key, value)
			}
			*into = append(*into, p.Masked())
		}
	}
	if len(n.Ranges) == 0 {
		return fmt.Errorf("%s has no FLANNEL_SUBNET: wait until flanneld has a subnet", n.SubnetFile)
	}
	return oneEach(n.Ranges)
}

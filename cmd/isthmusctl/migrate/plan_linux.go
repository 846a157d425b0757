// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/cni/install"
	"github.com/isthmus-net/isthmus/cni/install/conflist"
	"github.com/isthmus-net/isthmus/common/endpoint"
	"github.com/isthmus-net/isthmus/linux/link"
	"github.com/isthmus-net/isthmus/linux/takeover"
)

// makePlan reads this node and plans its migration.
func makePlan(o *options) (*takeover.Plan, []string, error) {
	network, err := readNetwork(o)
	if err != nil {
		return nil, nil, err
	}
	records, err := endpoint.Read(filepath.Join(o.stateDir, "endpoints"))
	if err != nil {
		return nil, nil, err
	}
	node, err := takeover.Inspect(network, records, takeover.Sources{StateDir: o.stateDir, Cache: o.cacheDir})
	if err != nil {
		return nil, nil, err
	}
	plan, reasons := takeover.Make(node, link.HostName)
	return plan, reasons, nil
}

// readNetwork reads the configuration of the network that the runtime uses.
func readNetwork(o *options) (takeover.Network, error) {
	ranges, err := parseRanges("pod-cidr", o.podCIDRs)
	if err != nil {
		return takeover.Network{}, err
	}
	read := readConf
	if o.from == takeover.FromKubenet {
		read = func(o *options) (takeover.Network, error) { return readKubenet(o, ranges) }
	}
	network, err := read(o)
	if err != nil {
		return network, err
	}
	network.ConfDir = o.confDir
	if err := onlyConf(network); err != nil {
		return network, err
	}
	more, err := parseRanges("cluster-cidr", o.clusterCIDRs)
	if err != nil {
		return network, err
	}
	network.Cluster = append(network.Cluster, more...)
	if len(ranges) > 0 && !sameRanges(ranges, network.Ranges) {
		return network, fmt.Errorf("the pod ranges of the node are %v, those of network %s are %v: pods cannot keep their addresses in other ranges", ranges, network.Name, network.Ranges)
	}
	return network, nil
}

// readKubenet reads the configuration of kubenet that the runtime uses, as on AKS. A runtime that has it in memory does not
// read the directory, so a file there is of another network.
func readKubenet(o *options, ranges []netip.Prefix) (takeover.Network, error) {
	own := takeover.Kubenet()
	names, err := install.Confs(o.confDir)
	if err != nil {
		return own, err
	}
	if len(names) > 0 {
		network, err := readConf(o)
		if network.Name == own.Name || network.Name == "" && err != nil {
			return network, err
		}
	}
	if len(ranges) == 0 {
		return own, cli.Usagef("--from kubenet: the first configuration in %s is not that of network %s: give the ranges of the node with --pod-cidr if the runtime has kubenet without a file", o.confDir, own.Name)
	}
	own.Ranges = ranges
	return own, nil
}

// readConf reads the first configuration of the runtime's directory, and the file of flanneld.
func readConf(o *options) (network takeover.Network, err error) {
	names, err := install.Confs(o.confDir)
	if err != nil {
		return network, err
	}
	if len(names) == 0 {
		return network, fmt.Errorf("no CNI configuration in %s: name its directory with --cni-conf-dir", o.confDir)
	}
	path := filepath.Join(o.confDir, names[0])
	text, err := readBounded(path)
	if err != nil {
		return network, err
	}
	if network, err = takeover.ParseNetwork(o.from, path, text); err != nil {
		return network, err
	}
	if original := conflist.Wrapped(text); original != "" {
		if !slices.Contains(names, original) {
			return network, fmt.Errorf("CNI configuration %s wraps %q, which is not in %s: restore that file, or restart the agent of mode policy", path, original, o.confDir)
		}
		network.Wrapped = filepath.Join(o.confDir, original)
	}
	if network.SubnetFile == "" {
		return network, nil
	}
	if text, err = readBounded(network.SubnetFile); err != nil {
		return network, err
	}
	return network, network.Subnet(text)
}

// onlyConf returns an error if the runtime would use another network once the configurations of this one are moved
// aside. Pods that start before the agent would have no policy; with a name before that of its file, neither would later ones.
func onlyConf(n takeover.Network) error {
	if n.Conf == "" {
		return nil // the runtime reads no configurations
	}
	names, err := install.Confs(n.ConfDir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if name == filepath.Base(n.Conf) || name == filepath.Base(n.Wrapped) {
			continue
		}
		if name == install.ConfName {
			return nil
		}
		return fmt.Errorf("CNI configuration %s would be the first of its directory once that of network %s is moved, so new pods would get another network without policy: move it out of the directory, and try again",
			filepath.Join(n.ConfDir, name), n.Name)
	}
	return nil
}

// maxFile bounds the files of other software, in bytes.
const maxFile = 2 << 20

func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read the network: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFile))
	if err == nil && len(text) == maxFile {
		err = errors.New("it is too large")
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return text, nil
}

func parseRanges(flag string, texts []string) (all []netip.Prefix, err error) {
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		if err != nil || p != p.Masked() {
			return nil, cli.Usagef("--%s %q: write it as ADDRESS/BITS without host bits", flag, text)
		}
		all = append(all, p)
	}
	return all, nil
}

func sameRanges(a, b []netip.Prefix) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(p netip.Prefix) bool { return !slices.Contains(b, p) })
}

// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/cli"
	"github.com/isthmus-net/isthmus/cni/install"
	"github.com/isthmus-net/isthmus/cni/install/conflist"
	"github.com/isthmus-net/isthmus/common/endpoint"
	"github.com/isthmus-net/isthmus/linux/link"
	"github.com/isthmus-net/isthmus/linux/takeover"
)

// plan prints the plan of this node, or the reasons against one. Of a migration that has begun it prints what is left to do.
func (e env) plan(_ context.Context, o *options) error {
	p, err := takeover.Load(o.stateDir)
	if err != nil {
		return err
	}
	if p != nil {
		return e.continuation(p, o)
	}
	plan, reasons, err := makePlan(o)
	if err != nil {
		return err
	}
	return e.writePlan(plan, reasons, o)
}

// continuation prints the steps that migrate run would still do.
func (e env) continuation(p *takeover.Progress, o *options) error {
	switch {
	case p.Plan.Network.From != o.from:
		return otherNetwork(p)
	case p.Back:
		return errors.New("this migration is being reversed: run migrate rollback, and plan again")
	}
	fmt.Fprintf(e.Stderr, "a migration has begun: %d of its %d steps are done\n", p.Done, len(p.Plan.Steps))
	rest := p.Plan
	rest.Steps = p.Remaining()
	return e.writePlan(&rest, nil, o)
}

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

func sameRanges(a, b []netip.Prefix) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(p netip.Prefix) bool { return !slices.Contains(b, p) })
}

// writePlan prints a plan, or the reasons against one.
func (e env) writePlan(plan *takeover.Plan, reasons []string, o *options) error {
	var steps []string
	if plan != nil {
		for _, s := range plan.Steps {
			steps = append(steps, plan.Describe(s))
		}
	}
	if o.output != "text" {
		answer := map[string]any{"from": o.from, "steps": append([]string{}, steps...), "reasons": append([]string{}, reasons...)}
		if plan != nil {
			answer["agentFlags"] = plan.AgentFlags()
		}
		if err := cli.EncodeKind(e.Stdout, o.output, "MigrationPlan", answer); err != nil {
			return err
		}
	} else {
		writeText(e.Stdout, plan, steps, reasons)
	}
	if len(reasons) > 0 {
		return cli.ErrNo
	}
	return nil
}

func writeText(w io.Writer, plan *takeover.Plan, steps, reasons []string) {
	if len(reasons) > 0 {
		fmt.Fprintln(w, "this node cannot be migrated:")
		for _, r := range reasons {
			fmt.Fprintln(w, "  -", r)
		}
		return
	}
	fmt.Fprintf(w, "network %s (%s), bridge %s, %d pods, %d steps:\n", plan.Network.Name, plan.Network.From, plan.Bridge.Name, len(plan.Pods), len(steps))
	for i, s := range steps {
		fmt.Fprintf(w, "%4d  %s\n", i+1, s)
	}
	for _, t := range plan.Tunnels {
		fmt.Fprintf(w, "device %s and its routes to other nodes stay: flanneld must keep running\n", t.Name)
	}
	if plan.Network.Conf == "" {
		fmt.Fprintf(w, "stop the runtime first, and start it with network plugin cni after the agent: its own %s would connect new pods without policy\n", plan.Network.Name)
	}
	fmt.Fprintf(w, "then start the agent with %s\n", strings.Join(plan.AgentFlags(), " "))
}

// SPDX-License-Identifier: Apache-2.0

package beside_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/beside/programs"
	"github.com/isthmus-net/isthmus/test/cluster"
	"github.com/isthmus-net/isthmus/test/netns"
)

// network is a network of another project, without Isthmus.
type network struct {
	name string
	// uses are the plugins that it builds.
	uses []string
	// file is the name of the configuration, and conf its text for a node.
	file string
	conf func(n *cluster.Node) string
	// only reports whether the network assigns addresses of a range; nil means all.
	only func(netip.Prefix) bool
	// start starts what the plugin needs on all nodes. It may be nil.
	start func(t *testing.T, c *cluster.Cluster, bin string)
	// connects is set if the network connects the pods of the nodes. Without it the nodes get static routes to
	// each other's pods, as a cloud makes them.
	connects bool
	// checks is set if the version of the configuration has CHECK.
	checks bool
	// from is the name of the network for isthmusctl migrate, and bridge that of its device; "" if it cannot be left.
	from, bridge string
	// own is set if the runtimes have the configuration themselves, not in their directory.
	own bool
	// began is called when the first pods are attached. It may be nil.
	began func(t *testing.T, n *cluster.Node)
	// windows is set if the second node runs Windows, with an overlay network or a bridged one.
	windows, overlay bool
}

// networks are all that are tested.
func networks() []network {
	return []network{
		{name: "bridge", from: "bridge", bridge: "cni0", uses: []string{"bridge", "host-local", "portmap"}, checks: true, file: "10-bridge.conflist", conf: func(n *cluster.Node) string {
			return fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "bridged", "unknown": {"z": 1, "a": 2.50},
  "plugins": [
    {"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true, "ipam": %s},
    {"type": "portmap", "capabilities": {"portMappings": true}, "snat": true}
  ]
}
`, hostLocal(n))
		}},
		{name: "bridge, single configuration", uses: []string{"bridge", "host-local"}, checks: true, file: "10-bridge.conf", conf: func(n *cluster.Node) string {
			return fmt.Sprintf(`{"cniVersion": "0.4.0", "name": "single", "type": "bridge", "bridge": "cbr0", "isGateway": true, "ipam": %s}`, hostLocal(n))
		}},
		{name: "ptp", uses: []string{"ptp", "host-local"}, checks: true, file: "10-ptp.conflist", conf: ptpConf},
		{name: "flannel host-gw", from: "flannel", bridge: "cni0", uses: programs.FlannelPlugins, file: "10-flannel.conflist", conf: flannelConf, only: is4, start: flannel(`{"Type": "host-gw"}`), connects: true},
		{name: "flannel vxlan", from: "flannel", bridge: "cni0", uses: programs.FlannelPlugins, file: "10-flannel.conflist", conf: flannelConf, only: is4, start: flannel(`{"Type": "vxlan"}`), connects: true},
		{name: "aws-cni", uses: usedByAWS, file: "10-aws.conflist", conf: awsConf, only: is4, start: startAWS},
		{name: "aws-cni, IPv6", uses: usedByAWS, file: "10-aws.conflist", conf: awsConf, only: is6, start: startAWS},
		{name: "azure-vnet transparent", uses: []string{"azure-vnet", "portmap"}, file: "10-azure.conflist", conf: azureConf, start: startAzure},
		{name: "win-bridge", uses: []string{"ptp", "host-local"}, checks: true, file: "10-win-bridge.conflist", conf: besidePTP(winBridgeConf), only: is4, start: startL2Bridge, windows: true},
		{name: "sdnbridge", uses: []string{"ptp", "host-local"}, file: "10-sdnbridge.conflist", conf: besidePTP(sdnbridgeConf), only: is4, start: startL2Bridge, windows: true},
		{name: "azure-vnet.exe", uses: []string{"ptp", "host-local", "azure-vnet.exe"}, file: "10-azure.conflist", conf: besidePTP(azureWindowsConf), only: is4, start: startAzureWindows, windows: true},
		{name: "win-overlay", uses: programs.FlannelPlugins, file: "10-win-overlay.conflist", conf: winOverlayConf, only: is4, start: startOverlay, connects: true,
			windows: true, overlay: true},
	}
}

// ptpConf is a list of the plugin ptp.
func ptpConf(n *cluster.Node) string {
	return fmt.Sprintf(`{"plugins":[{"type":"ptp","ipam":%s}],"name":"routed","cniVersion":"1.1.0"}`, hostLocal(n))
}

func is4(p netip.Prefix) bool { return p.Addr().Is4() }

func is6(p netip.Prefix) bool { return p.Addr().Is6() }

// hostLocal assigns addresses of the node's ranges.
func hostLocal(n *cluster.Node) string {
	var ranges, routes []string
	for _, p := range n.PodCIDRs {
		ranges = append(ranges, fmt.Sprintf(`[{"subnet": %q}]`, p))
		routes = append(routes, fmt.Sprintf(`{"dst": "%s"}`, netip.PrefixFrom(unspecified(p.Addr()), 0)))
	}
	return fmt.Sprintf(`{"type": "host-local", "dataDir": %q, "ranges": [%s], "routes": [%s]}`, filepath.Join(n.Dir, "ipam"), strings.Join(ranges, ", "), strings.Join(routes, ", "))
}

func unspecified(like netip.Addr) netip.Addr {
	if like.Is6() {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// begin makes the network on all nodes, and returns the texts of its configurations by node.
func (w *network) begin(t *testing.T, c *cluster.Cluster, bin string) map[string]string {
	t.Helper()
	texts := make(map[string]string)
	if w.start != nil {
		w.start(t, c, bin)
	}
	for _, n := range c.Nodes {
		texts[n.Name] = w.conf(n)
		conf := filepath.Join(n.ConfDir(), w.file)
		if n.OwnConf = w.ownConf(n); n.OwnConf != "" {
			conf = n.OwnConf
		}
		write(t, conf, []byte(texts[n.Name]))
		if n.OS == model.Linux { // modes have no meaning on Windows
			if err := os.Chmod(conf, 0o640); err != nil { // no default of ours
				t.Fatal(err)
			}
		}
		if err := n.NS.Do(netns.Forward); err != nil {
			t.Fatal(err)
		}
		if w.connects {
			continue
		}
		for _, other := range c.Nodes {
			if other != n {
				routes(t, n, other)
			}
		}
	}
	return texts
}

// routes gives a node routes to the pods of another.
func routes(t *testing.T, n, to *cluster.Node) {
	t.Helper()
	err := n.NS.Do(func() error {
		for _, p := range to.PodCIDRs {
			for _, a := range to.Addresses() {
				if a.Is6() == p.Addr().Is6() {
					if err := netns.Route(p, a); err != nil {
						return err
					}
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// ownConf is the path of the configuration that the runtime of a node has itself; "" if it reads a directory.
func (w *network) ownConf(n *cluster.Node) string {
	if w.own {
		return filepath.Join(n.Dir, w.file)
	}
	return ""
}

// single reports whether the configuration is of one plugin, which Isthmus leaves alone.
func (w *network) single() bool { return filepath.Ext(w.file) != ".conflist" }

// read reads the configuration of the network on a node.
func (w *network) read(t *testing.T, n *cluster.Node) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(n.ConfDir(), w.file))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

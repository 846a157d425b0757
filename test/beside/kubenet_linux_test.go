// SPDX-License-Identifier: Apache-2.0

package beside_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/isthmus-net/isthmus/test/cluster"
)

// kubenets are the forms of kubenet: its configuration is a file of containerd, as on AKS, or cri-dockerd has it itself, as
// the kubelet had until Kubernetes 1.23.
func kubenets() []network {
	plugins := []string{"bridge", "host-local", "portmap"}
	return []network{
		{name: "kubenet", from: "kubenet", bridge: "cbr0", uses: plugins, file: "10-containerd-net.conflist", conf: kubenetOfAKS, began: promiscuous},
		{name: "kubenet of cri-dockerd", from: "kubenet", bridge: "cbr0", uses: plugins, file: "kubenet.conf", conf: kubenetOfDocker, own: true, start: emptyLeases, began: promiscuous},
	}
}

// kubenetOfAKS is the list that AKS gives containerd, with the paths of a node of the test.
func kubenetOfAKS(n *cluster.Node) string {
	return fmt.Sprintf(`{
    "cniVersion": "0.3.1",
    "name": "kubenet",
    "plugins": [{
    "type": "bridge",
    "bridge": "cbr0",
    "mtu": 1500,
    "addIf": "eth0",
    "isGateway": true,
    "ipMasq": false,
    "promiscMode": true,
    "hairpinMode": false,
    "ipam": %s
    },
    {
    "type": "portmap",
    "capabilities": {"portMappings": true},
    "externalSetMarkChain": "KUBE-MARK-MASQ"
    }]
}
`, hostLocal(n))
}

// kubenetOfDocker is the configuration that cri-dockerd and the kubelet pass to the plugins. host-local keeps its files where
// it does without dataDir.
func kubenetOfDocker(n *cluster.Node) string {
	ipam := strings.Replace(hostLocal(n), fmt.Sprintf(`"dataDir": %q, `, filepath.Join(n.Dir, "ipam")), "", 1)
	return fmt.Sprintf(`{
  "cniVersion": "0.1.0",
  "name": "kubenet",
  "type": "bridge",
  "bridge": "cbr0",
  "mtu": 1500,
  "addIf": "eth0",
  "isGateway": true,
  "ipMasq": false,
  "hairpinMode": false,
  "ipam": %s
}`, ipam)
}

// emptyLeases makes both nodes use the directory of host-local on this machine, which it removes afterwards. Runtimes have a
// directory for configurations, which is empty.
func emptyLeases(t *testing.T, c *cluster.Cluster, _ string) {
	t.Helper()
	const leases = "/var/lib/cni/networks/kubenet"
	if exists(leases) {
		t.Fatalf("%s exists: this machine has pods of kubenet, or a killed test left it: remove it then", leases)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(leases); err != nil {
			t.Error(err)
		}
		for dir := filepath.Dir(leases); dir != "/var/lib"; dir = filepath.Dir(dir) {
			_ = os.Remove(dir) // those that others use are not empty
		}
	})
	for _, n := range c.Nodes {
		if err := os.Mkdir(n.ConfDir(), 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// promiscuous does what kubenet, or a service of AKS, does once the bridge exists: the bridge takes all frames, and rules
// drop second copies of packets that it routes.
func promiscuous(t *testing.T, n *cluster.Node) {
	t.Helper()
	const chain = "KUBE-DEDUP"
	run := func(command string, args ...string) error {
		if out, err := exec.Command(command, args...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s %v: %w: %s", command, args, err, out)
		}
		return nil
	}
	err := n.NS.Do(func() error {
		bridge, err := netlink.LinkByName("cbr0")
		if err != nil {
			return err
		}
		if err := netlink.SetPromiscOn(bridge); err != nil {
			return err
		}
		if err := run("ebtables", "-t", "filter", "-N", chain); err != nil {
			return err
		}
		for _, p := range n.PodCIDRs {
			protocol, source := "IPv4", "--ip-src"
			if p.Addr().Is6() {
				protocol, source = "IPv6", "--ip6-src"
			}
			mac := bridge.Attrs().HardwareAddr.String()
			for _, rule := range [][]string{{p.Addr().Next().String(), "ACCEPT"}, {p.String(), "DROP"}} {
				if err := run("ebtables", "-t", "filter", "-A", chain, "-p", protocol, "-s", mac, "-o", "veth+", source, rule[0], "-j", rule[1]); err != nil {
					return err
				}
			}
		}
		return run("ebtables", "-t", "filter", "-A", "OUTPUT", "-j", chain)
	})
	if err != nil {
		t.Fatal(err)
	}
}

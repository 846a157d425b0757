// SPDX-License-Identifier: Apache-2.0

package beside_test

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/test/cluster"
)

// awsConf is the list that the VPC CNI plugin installs, with the paths of a node of the test.
func awsConf(n *cluster.Node) string {
	return fmt.Sprintf(`{
  "cniVersion": "0.4.0",
  "name": "aws-cni",
  "disableCheck": true,
  "plugins": [
    {
      "name": "aws-cni",
      "type": "aws-cni",
      "vethPrefix": "eni",
      "mtu": "1500",
      "podSGEnforcingMode": "strict",
      "pluginLogFile": %q,
      "pluginLogLevel": "DEBUG",
      "capabilities": {"io.kubernetes.cri.pod-annotations": true}
    },
    {
      "name": "egress-cni",
      "type": "egress-cni",
      "mtu": "1500",
      "enabled": "false",
      "randomizeSNAT": "prng",
      "nodeIP": "",
      "ipam": {
         "type": "host-local",
         "ranges": [[{"subnet": "fd00::ac:00/118"}]],
         "routes": [{"dst": "::/0"}],
         "dataDir": "/run/cni/v4pd/egress-v6-ipam"
      },
      "pluginLogFile": %q,
      "pluginLogLevel": "DEBUG"
    },
    {
      "type": "portmap",
      "capabilities": {"portMappings": true},
      "snat": true
    }
  ]
}
`, filepath.Join(n.Dir, "plugin.log"), filepath.Join(n.Dir, "egress-v6-plugin.log"))
}

// awsSocket is where the plugin expects its daemon. It cannot be configured.
const awsSocket = "/run/aws-node/ipamd.sock"

var usedByAWS = []string{"aws-cni", "egress-cni", "portmap"}

// secondTable is the route table of pods whose address is one of the second interface of their node.
const secondTable = "2"

// marks are the rules of the daemon on nodes of IPv4: replies to connections of the first interface leave by it, also
// if a rule sends the packets of their pod to another one. They use bit 7 of the mark, and keep the others.
var marks = []string{
	"iptables -t mangle -A PREROUTING -i eth0 -m addrtype --dst-type LOCAL --limit-iface-in -j CONNMARK --set-mark 0x80/0x80",
	"iptables -t mangle -A PREROUTING -i eni+ -j CONNMARK --restore-mark --mask 0x80",
	"ip rule add fwmark 0x80/0x80 lookup main priority 1024",
}

// startAWS starts the daemon of the test for all nodes, and prepares the nodes as the VPC CNI plugin's daemon does.
// Nodes have one interface, so that the table of the second one leads to the same routers.
func startAWS(t *testing.T, c *cluster.Cluster, bin string) {
	t.Helper()
	build(t, bin, "ipamd")
	if err := os.Mkdir(filepath.Dir(awsSocket), 0o700); err != nil {
		t.Fatalf("%v: on this machine runs the VPC CNI plugin, or an earlier test was killed", err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(filepath.Dir(awsSocket)); err != nil {
			t.Error(err)
		}
	})
	args := []string{awsSocket}
	for _, n := range c.Nodes {
		args = append(args, fmt.Sprintf("%s=%s", n.NS.Path(), n.PodCIDRs[0]))
		prepareAWS(t, n, c)
	}
	outside, _ := c.Outside()
	start(t, outside, exec.Command(filepath.Join(bin, "ipamd"), args...))
	wait(t, "socket of ipamd", func() bool { _, err := os.Stat(awsSocket); return err == nil })
}

func prepareAWS(t *testing.T, n *cluster.Node, c *cluster.Cluster) {
	t.Helper()
	ip := "-4"
	if n.PodCIDRs[0].Addr().Is6() {
		ip = "-6"
	}
	via := func(of []netip.Addr) string {
		for _, a := range of {
			if a.Is6() == n.PodCIDRs[0].Addr().Is6() {
				return a.String()
			}
		}
		t.Fatalf("no address like those of pods among %v", of)
		return ""
	}
	_, router := c.Outside()
	commands := []string{fmt.Sprintf("ip %s route add default via %s table %s", ip, via(router), secondTable)}
	for _, other := range c.Nodes {
		if other != n {
			commands = append(commands, fmt.Sprintf("ip %s route add %s via %s table %s", ip, other.PodCIDRs[0], via(other.Addresses()), secondTable))
		}
	}
	if ip == "-4" {
		commands = append(commands, marks...)
	}
	for _, command := range commands {
		inNode(t, n, command)
	}
}

// inNode runs a command in the network namespace of a node.
func inNode(t *testing.T, n *cluster.Node, command string) {
	t.Helper()
	words := strings.Fields(command)
	err := n.NS.Do(func() error {
		out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s: %w: %s", command, err, out)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package beside_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/cluster"
)

// volatile are numbers that change by themselves: timers of bridges, counters of rules.
var volatile = regexp.MustCompile(`_timer +[0-9.]+|packets [0-9]+ bytes [0-9]+|expires [0-9]+sec`)

// picture returns what the nodes have besides Isthmus, by node and command.
func (b *bench) picture() map[string]string {
	b.t.Helper()
	all := make(map[string]string)
	for _, n := range b.cluster.Nodes {
		for _, command := range []string{
			"ip -d -o link", "ip -o addr", "ip route show table all", "ip -6 route show table all", "ip rule", "ip -6 rule", "nft list ruleset", "tc qdisc",
			"ip neigh show nud permanent", "bridge fdb show", "bridge -d link show", "bridge vlan show",
			"grep -rs . /proc/sys/net/ipv4/conf /proc/sys/net/ipv6/conf /proc/sys/net/ipv4/neigh /proc/sys/net/ipv4/ip_forward /proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal",
		} {
			all[n.Name+": "+command] = b.show(n, command)
		}
		if n.OS == model.Windows {
			text, err := os.ReadFile(n.HNSFile())
			if err != nil {
				b.t.Fatal(err)
			}
			all[n.Name+": all objects of HNS"] = string(text)
		}
		for name, text := range b.programs(n) {
			all[n.Name+": "+name] = text
		}
	}
	return all
}

// show runs a command on a node.
func (b *bench) show(n *cluster.Node, command string) string {
	b.t.Helper()
	words := strings.Fields(command)
	var out []byte
	err := n.NS.Do(func() (err error) {
		out, err = exec.Command(words[0], words[1:]...).Output()
		return err
	})
	if err != nil && words[0] != "grep" { // some files cannot be read
		b.t.Fatalf("%s on %s: %v", command, n.Name, err)
	}
	text := volatile.ReplaceAllString(string(out), "")
	if command != "bridge fdb show" {
		return text
	}
	// Learned entries come and go by themselves.
	var lines []string
	for line := range strings.Lines(text) {
		if strings.Contains(line, "permanent") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}

// programs returns the filters, and the programs on tcx hooks, of all interfaces of a node.
func (b *bench) programs(n *cluster.Node) map[string]string {
	b.t.Helper()
	all := make(map[string]string)
	err := n.NS.Do(func() error {
		links, err := netlink.LinkList()
		if err != nil {
			return err
		}
		for _, l := range links {
			name := l.Attrs().Name
			for _, hook := range []string{"root", "ingress", "egress"} {
				// A device without the qdisc of a hook gives an error, and has no filters there.
				out, _ := exec.Command("tc", "filter", "show", "dev", name, hook).Output()
				all["tc filter of "+name+" "+hook] = string(out)
			}
			for hook, at := range map[string]ebpf.AttachType{"ingress": ebpf.AttachTCXIngress, "egress": ebpf.AttachTCXEgress} {
				r, err := link.QueryPrograms(link.QueryOptions{Target: l.Attrs().Index, Attach: at})
				if err != nil && !errors.Is(err, ebpf.ErrNotSupported) {
					return fmt.Errorf("programs of %s: %w", name, err)
				}
				if r != nil {
					all["tcx of "+name+" "+hook] = fmt.Sprint(r.Programs)
				}
			}
		}
		return nil
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return all
}

// SPDX-License-Identifier: Apache-2.0

package beside_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	ebpflink "github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/linux/link"
	"github.com/isthmus-net/isthmus/test/cluster"
	"github.com/isthmus-net/isthmus/test/netns"
)

// inNamespace are commands for what every network namespace has.
var inNamespace = []string{"ip -d -o link", "ip -o addr", "ip route show table all", "ip -6 route show table all", "ip rule", "ip -6 rule", "tc -d qdisc",
	"ip neigh show nud permanent", "ip neigh show proxy", "grep -rs . /proc/sys/net --exclude=nf_conntrack_count"}

// volatile is what changes by itself: timers of bridges, counters of rules, and the carrier of a bridge, which follows its
// last port late.
var volatile = regexp.MustCompile(`_timer +[0-9.]+|packets [0-9]+ bytes [0-9]+|expires [0-9]+sec|NO-CARRIER,|state (UP|DOWN)| linkdown`)

// picture returns what the nodes have besides Isthmus, by node and command.
func (b *bench) picture() map[string]string {
	b.t.Helper()
	all := make(map[string]string)
	for _, n := range b.cluster.Nodes {
		for _, command := range append(slices.Clone(inNamespace), "nft list ruleset", "bridge fdb show", "bridge -d link show", "bridge vlan show") {
			all[n.Name+": "+command] = b.show(n.Name, n.NS, command)
		}
		all[n.Name+": files"] = b.files(n)
		if n.OS == model.Windows {
			text, err := os.ReadFile(n.HNSFile())
			if err != nil {
				b.t.Fatal(err)
			}
			var parts struct {
				HNS struct{ Networks, Endpoints json.RawMessage }
			}
			if err := json.Unmarshal(text, &parts); err != nil {
				b.t.Fatal(err)
			}
			all[n.Name+": "+hnsObjects] = string(text)
			all[n.Name+": networks and endpoints of HNS"] = fmt.Sprintf("%s\n%s", parts.HNS.Networks, parts.HNS.Endpoints)
		}
		for name, text := range b.programs(n) {
			all[n.Name+": "+name] = text
		}
	}
	for _, p := range b.lab.Pods {
		for _, command := range inNamespace {
			all["pod "+p.PodID.String()+": "+command] = b.show(p.PodID.String(), p.NS, command)
		}
	}
	return all
}

// hnsObjects has the numbers that HNS counts, and the namespaces of the pods of the test.
const hnsObjects = "all objects of HNS"

// unchanged compares the nodes with a picture of before, except for some entries.
func (b *bench) unchanged(before map[string]string, after string, except ...string) {
	b.t.Helper()
	for name, text := range b.picture() {
		_, entry, _ := strings.Cut(name, ": ")
		if text != before[name] && !slices.Contains(except, entry) {
			b.y.changed++
			b.t.Errorf("%s was\n%s\nand after %s is\n%s", name, before[name], after, text)
		}
	}
}

// files lists names, modes and contents of configurations and plugins, and the pins of programs and maps.
func (b *bench) files(n *cluster.Node) string {
	b.t.Helper()
	var text strings.Builder
	for _, dir := range []string{n.ConfDir(), b.plugins, b.cluster.BPFFS()} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			mode := info.Mode()
			if n.OS == model.Windows { // Wine makes modes of access lists, which test/wine compares
				mode = mode.Type()
			}
			fmt.Fprintln(&text, path, mode)
			if dir != n.ConfDir() || d.IsDir() {
				return nil
			}
			content, err := os.ReadFile(path)
			text.Write(content)
			return err
		})
		if err != nil {
			b.t.Fatal(err)
		}
	}
	return text.String()
}

// show runs a command in the network namespace of a node or pod.
func (b *bench) show(name string, ns *netns.NS, command string) string {
	b.t.Helper()
	words := strings.Fields(command)
	var out []byte
	err := ns.Do(func() (err error) {
		out, err = exec.Command(words[0], words[1:]...).Output()
		return err
	})
	if err != nil && words[0] != "grep" { // some files cannot be read
		b.t.Fatalf("%s on %s: %v", command, name, err)
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
		links, err := link.Whole(netlink.LinkList)
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
				r, err := ebpflink.QueryPrograms(ebpflink.QueryOptions{Target: l.Attrs().Index, Attach: at})
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

// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/isthmus-net/isthmus/linux/loader"
	"github.com/isthmus-net/isthmus/test/netns"
)

// have reports whether there is a finding of a check and severity with a text.
func have(all []Finding, check string, severity Severity, text string) bool {
	for _, f := range all {
		if f.Check == check && f.Severity == severity && strings.Contains(f.What, text) && (severity == Good || f.Why != "" && f.Do != "") {
			return true
		}
	}
	return false
}

func put(t *testing.T, path, content string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
}

// TestNode breaks a network namespace step by step.
func TestNode(t *testing.T) {
	if os.Geteuid() != 0 || testing.Short() {
		t.Skip("needs root and no -short: make test runs it")
	}
	ns, err := netns.New(filepath.Join(t.TempDir(), "node"))
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	n := &examined{t, ns, Config{Root: t.TempDir(), CNIBinDir: "/opt/cni/bin", CNIConfDir: "/etc/cni/net.d", VXLANPort: 4789, MetricsPort: 9470}}
	n.emptyRoot()
	n.tracking()
	n.plugins()
	n.links()
	n.ports()
	n.tunnels()
	n.packetFilters()
	if Worst(n.examine()) != Bad {
		t.Error("the worst is not an error")
	}
}

// examined is a node in a network namespace, with an empty directory as its root.
type examined struct {
	t  *testing.T
	ns *netns.NS
	c  Config
}

func (n *examined) examine() (all []Finding) {
	n.t.Helper()
	n.inside(func() error { all = n.c.Examine(n.t.Context()); return nil })
	return all
}

func (n *examined) expect(check string, severity Severity, text string) {
	n.t.Helper()
	if all := n.examine(); !have(all, check, severity, text) {
		n.t.Errorf("no %s of %s with %q among %+v", severity, check, text, all)
	}
}

func (n *examined) inside(f func() error) {
	n.t.Helper()
	if err := n.ns.Do(f); err != nil {
		n.t.Fatal(err)
	}
}

func (n *examined) emptyRoot() {
	for _, check := range []string{"bpffs", "BTF", "loopback plugin"} { // the root is empty
		n.expect(check, Bad, "")
	}
	const ours, newer = loader.LayoutVersion, "v99"
	n.expect("layout of maps", Good, ours)
	pins := filepath.Join(n.c.Root, "/sys/fs/bpf/isthmus")
	put(n.t, filepath.Join(pins, ours, "slots"), "", 0o600)
	n.expect("layout of maps", Good, ours)
	put(n.t, filepath.Join(pins, "v2", "slots"), "", 0o600)
	n.expect("layout of maps", Warning, "isthmus/v2 is of an older version")
	put(n.t, filepath.Join(pins, newer, "slots"), "", 0o600)
	n.expect("layout of maps", Bad, newer+", which are in force, and this one has layout "+ours+": run that agent")
	n.expect("uplink", Bad, "no default route")
	n.expect("interfaces", Good, "")
	n.expect("packet filter", Good, "")
	n.expect("kernel", Good, "release")
	n.expect("kube-proxy", Unknown, "no processes")
}

func (n *examined) tracking() {
	module := filepath.Join(n.c.Root, "sys", "module", "nf_conntrack")
	n.expect("connection tracking", Warning, "nf_conntrack is not loaded")
	put(n.t, filepath.Join(module, "parameters", "hashsize"), "65536", 0o600)
	n.expect("connection tracking", Good, "built in")
	put(n.t, filepath.Join(module, "initstate"), "coming\n", 0o600)
	n.expect("connection tracking", Warning, "nf_conntrack is not loaded")
	put(n.t, filepath.Join(module, "initstate"), "live\n", 0o600)
	n.expect("connection tracking", Good, "nf_conntrack is loaded")
}

func (n *examined) plugins() {
	put(n.t, filepath.Join(n.c.Root, n.c.CNIBinDir, "loopback"), "", 0o755)
	n.expect("loopback plugin", Good, "")
	put(n.t, filepath.Join(n.c.Root, n.c.CNIConfDir, "05-isthmus.conflist"), "{}", 0o644)
	n.expect("cni configuration", Good, "")
	put(n.t, filepath.Join(n.c.Root, n.c.CNIConfDir, "00-multus.conf"), "{}", 0o644)
	put(n.t, filepath.Join(n.c.Root, n.c.CNIConfDir, "10-flannel.conflist"), "{}", 0o644)
	n.expect("cni configuration", Bad, "00-multus.conf")
	n.expect("cni configuration", Warning, "10-flannel.conflist")
}

func (n *examined) links() {
	n.inside(func() error {
		for _, name := range []string{"cni0", "cali0123456789a"} {
			if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}); err != nil {
				return err
			}
		}
		uplink := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0", MTU: 1300}, PeerName: "peer"}
		if err := netlink.LinkAdd(uplink); err != nil {
			return err
		}
		if err := netlink.LinkSetUp(uplink); err != nil {
			return err
		}
		return netlink.AddrAdd(uplink, &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP("2001:db8::1"), Mask: net.CIDRMask(64, 128)}})
	})
	n.expect("interfaces", Warning, "Calico: cali0123456789a")
	n.expect("interfaces", Warning, "cni0")
	n.uplink()
}

// uplink checks the interface to other nodes: one that is named needs no default route, and that of IPv6 counts.
func (n *examined) uplink() {
	n.expect("uplink", Bad, "no default route")
	n.c.Uplink = "eth0"
	n.expect("uplink", Warning, "eth0 has MTU 1300")
	n.c.Uplink = "eth7"
	n.expect("uplink", Bad, "find uplink eth7")
	n.c.Uplink = "cni0"
	n.expect("uplink", Bad, "uplink cni0 has no global address")
	n.c.Uplink = ""
	n.inside(func() error {
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}})
	})
	n.expect("uplink", Warning, "eth0 has MTU 1300")
}

func (n *examined) ports() {
	n.expect("port udp 4789", Good, "")
	n.expect("port tcp 9470", Good, "")
	var tcp net.Listener
	var udp net.PacketConn
	n.inside(func() (err error) {
		if udp, err = net.ListenPacket("udp", "0.0.0.0:4789"); err != nil {
			return err
		}
		tcp, err = net.Listen("tcp", "0.0.0.0:9470")
		return err
	})
	defer tcp.Close()
	defer udp.Close()
	n.expect("port tcp 9470", Warning, "is taken")
	n.expect("port udp 4789", Warning, "is taken")
}

// tunnels checks that the agent's own tunnel does not count as another overlay.
func (n *examined) tunnels() {
	tunnel := func(name string, id int) {
		n.inside(func() error {
			l := &netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: name}, VxlanId: id, Port: 4789}
			if err := netlink.LinkAdd(l); err != nil {
				return err
			}
			return netlink.LinkSetUp(l)
		})
	}
	tunnel("isthmus-vxlan", 4096)
	n.expect("port udp 4789", Good, "is that of isthmus-vxlan")
	tunnel("vx0", 7)
	n.expect("port udp 4789", Warning, "is taken by interface vx0")
}

func (n *examined) packetFilters() {
	n.inside(func() error {
		for _, rule := range []string{"add table ip nat", "add chain ip nat FLANNEL-POSTRTG", "add table inet fw", "add chain inet fw guard { type filter hook forward priority 0 ; policy drop ; }"} {
			if err := exec.Command("nft", rule).Run(); err != nil {
				return err
			}
		}
		return nil
	})
	n.expect("packet filter", Warning, "Flannel: FLANNEL-POSTRTG")
	n.expect("packet filter", Warning, "dropped by default in inet fw guard")
}

func TestProxy(t *testing.T) {
	for args, want := range map[string]struct {
		severity Severity
		text     string
	}{
		"kube-proxy --proxy-mode=nftables":             {Good, "mode nftables"},
		"/usr/bin/kube-proxy --proxy-mode ipvs":        {Warning, "mode is ipvs"},
		"kube-proxy --masquerade-all":                  {Bad, "masqueradeAll is on"},
		"kube-proxy --masquerade-all=false":            {Good, "mode iptables, the default"},
		"kube-proxy --config=/good.conf --v=2":         {Good, "mode nftables"},
		"kube-proxy --config /bad.conf":                {Bad, "masqueradeAll is on"},
		"kube-proxy --config=/missing.conf":            {Unknown, "read configuration"},
		"sleep --proxy-mode=ipvs":                      {Warning, "no kube-proxy runs"},
		"kube-proxy --proxy-mode=ipvs --config=/g.yml": {Unknown, "read configuration"},
	} {
		c := Config{Root: t.TempDir()}
		process := filepath.Join(c.Root, "proc", "17")
		put(t, filepath.Join(process, "cmdline"), strings.ReplaceAll(args, " ", "\x00")+"\x00", 0o644)
		put(t, filepath.Join(process, "root", "good.conf"), "kind: KubeProxyConfiguration\nmode: nftables\niptables: {masqueradeAll: false}\n", 0o644)
		put(t, filepath.Join(process, "root", "bad.conf"), "mode: nftables\nnftables: {masqueradeAll: true}\n", 0o644)
		put(t, filepath.Join(process, "root", "g.yml"), "mode: [\n", 0o644)
		if all := c.checkProxy(); !have(all, "kube-proxy", want.severity, want.text) {
			t.Errorf("%s: no %s with %q among %+v", args, want.severity, want.text, all)
		}
	}
}

func TestKernelReleases(t *testing.T) {
	for release, want := range map[string]Severity{"5.15.0-105-generic": Bad, "6.0.12": Bad, "6.1.0-35-amd64": Good, "6.18.44": Good, "7.0": Good, "strange": Unknown} {
		if all := kernelFinding(release); !have(all, "kernel", want, release) {
			t.Errorf("%s: %+v, want %s", release, all, want)
		}
	}
}

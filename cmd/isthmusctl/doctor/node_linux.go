// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bufio"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/linux/fabric"
	"github.com/isthmus-net/isthmus/linux/release"
)

// Examine checks this node, in the network namespace of the caller.
func (c Config) Examine(ctx context.Context) []Finding {
	if c.beside() {
		return slices.Concat(c.checkKernel(), c.checkKernelConfig(), c.checkBTF(), c.checkBPFFS(), c.checkLayouts(), c.checkCgroups(), c.checkMetricsPort(),
			c.checkOtherNetwork(ctx), c.checkEngines(), c.checkProxy(), c.checkAdmission(ctx))
	}
	return slices.Concat(c.checkKernel(), c.checkKernelConfig(), c.checkTracking(), c.checkBTF(), c.checkBPFFS(), c.checkLayouts(),
		c.checkCgroups(), c.checkUplink(), c.checkPorts(),
		c.checkCNIConfigurations(), c.checkLoopback(), c.checkInterfaces(), c.checkFilter(ctx), c.checkProxy(), c.checkCloud(), c.checkAdmission(ctx))
}

// threadNet is the network namespace of the caller's thread.
const threadNet = "/proc/thread-self/net/"

func (c Config) checkKernel() []Finding {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return []Finding{{"kernel", Unknown, err.Error(), "an old kernel cannot run the BPF programs", "run uname -r"}}
	}
	return kernelFinding(unix.ByteSliceToString(u.Release[:]))
}

func kernelFinding(text string) []Finding {
	v, err := release.Parse(text)
	if err != nil {
		return []Finding{{"kernel", Unknown, "release " + text, "an old kernel cannot run the BPF programs", "check that it is at least " + release.Least.String()}}
	}
	if !v.Supported() {
		return []Finding{{"kernel", Bad, "release " + text, "the BPF programs are not tested with its verifier and hooks: the agent does not start",
			"boot a kernel of at least " + release.Least.String()}}
	}
	return []Finding{{Check: "kernel", Severity: Good, What: "release " + text}}
}

// wanted are the required options of the kernel, each with the reason.
var wanted = []struct{ option, why string }{
	{"CONFIG_BPF_SYSCALL", "there are no BPF programs without it"},
	{"CONFIG_NET_CLS_BPF", "programs are attached to clsact hooks first"},
	{"CONFIG_NET_SCH_INGRESS", "programs are attached to clsact hooks first"},
	{"CONFIG_VETH", "pods are attached by veth pairs"},
	{"CONFIG_DEBUG_INFO_BTF", "maps and programs are loaded with BTF"},
}

func (c Config) checkKernelConfig() []Finding {
	const check = "kernel configuration"
	options, err := c.kernelOptions()
	if err != nil {
		return []Finding{{check, Unknown, err.Error(), "an option may be missing", "look up the options in the kernel's documentation; the agent logs missing features"}}
	}
	var found []Finding
	for _, w := range wanted {
		if v := options[w.option]; v != "y" && v != "m" {
			found = append(found, Finding{check, Bad, w.option + " is not set", w.why, "boot a kernel that has it"})
		}
	}
	if len(found) == 0 {
		found = []Finding{{Check: check, Severity: Good, What: fmt.Sprintf("all %d required options are set", len(wanted))}}
	}
	return found
}

func (c Config) kernelOptions() (map[string]string, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return nil, err
	}
	f, err := os.Open(filepath.Join(c.Root, "boot", "config-"+unix.ByteSliceToString(u.Release[:])))
	var r io.Reader = f
	if err != nil {
		if f, err = os.Open(filepath.Join(c.Root, "proc", "config.gz")); err != nil {
			return nil, fmt.Errorf("neither in /boot nor in /proc/config.gz")
		}
		z, err := gzip.NewReader(f)
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("read /proc/config.gz: %w", err)
		}
		r = z
	}
	defer f.Close()
	options := make(map[string]string)
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		if name, value, ok := strings.Cut(lines.Text(), "="); ok {
			options[name] = value
		}
	}
	return options, lines.Err()
}

func (c Config) checkBTF() []Finding {
	const path = "/sys/kernel/btf/vmlinux"
	if _, err := os.Stat(filepath.Join(c.Root, path)); err != nil {
		return []Finding{{"BTF", Bad, path + " is missing", "the agent cannot load its programs", "boot a kernel with CONFIG_DEBUG_INFO_BTF"}}
	}
	return []Finding{{Check: "BTF", Severity: Good, What: path}}
}

// mounted returns the type of the file system at a mount point.
func (c Config) mounted(path string) (int64, error) {
	var s unix.Statfs_t
	err := unix.Statfs(filepath.Join(c.Root, path), &s)
	return s.Type, err
}

func (c Config) checkBPFFS() []Finding {
	const path = "/sys/fs/bpf"
	if kind, err := c.mounted(path); err != nil || kind != unix.BPF_FS_MAGIC {
		return []Finding{{"bpffs", Bad, "none is mounted at " + path, "without it the enforced policy would end with the agent process, so the agent does not start",
			"mount -t bpf -o mode=700 bpf " + path + ", at every boot (systemd does)"}}
	}
	return []Finding{{Check: "bpffs", Severity: Good, What: path}}
}

func (c Config) checkCgroups() []Finding {
	const path = "/sys/fs/cgroup"
	if kind, err := c.mounted(path); err != nil || kind != unix.CGROUP2_SUPER_MAGIC {
		return []Finding{{"cgroups", Warning, "version 2 is not mounted at " + path, "Isthmus does not need it, but the kubelet, as of 1.35, refuses version 1 unless failCgroupV1 is false",
			"boot with systemd.unified_cgroup_hierarchy=1"}}
	}
	return []Finding{{Check: "cgroups", Severity: Good, What: "version 2"}}
}

// checkUplink checks the interface to other nodes that the agent would use.
func (c Config) checkUplink() []Finding {
	const check = "uplink"
	up, err := fabric.FindUplink(c.Uplink)
	if err != nil {
		return []Finding{{check, Bad, err.Error(), "the agent reaches the other nodes by the interface of the default route, or by that of its --uplink", "add a default route, or give the name to the agent and to doctor with --uplink"}}
	}
	switch {
	case up.MTU < 1280:
		return []Finding{{check, Bad, fmt.Sprintf("%s has MTU %d", up.Name, up.MTU), "IPv6 needs 1280, and pods get the same MTU", "set an MTU of at least 1280"}}
	case up.MTU < 1330:
		return []Finding{{check, Warning, fmt.Sprintf("%s has MTU %d", up.Name, up.MTU), "an overlay takes 50 bytes of it, and IPv6 needs 1280 of the rest", "set an MTU of at least 1330"}}
	}
	return []Finding{{Check: check, Severity: Good, What: fmt.Sprintf("%s, MTU %d", up.Name, up.MTU)}}
}

// checkCloud warns of the check of source addresses. A machine that names no vendor is on no cloud.
func (c Config) checkCloud() []Finding {
	name := func(file string) string {
		text, _ := os.ReadFile(filepath.Join(c.Root, "sys", "class", "dmi", "id", file))
		return strings.TrimSpace(string(text))
	}
	return cloudFindings(name("sys_vendor"), name("product_name"))
}

// checkPorts checks whether other processes use the ports.
func (c Config) checkPorts() []Finding {
	return append(c.checkTunnelPort(), c.checkMetricsPort()...)
}

// checkTunnelPort checks whether another overlay uses the port. The device of a running agent does not count.
func (c Config) checkTunnelPort() []Finding {
	const why, remedy = "overlays with the same port take each other's packets; Windows nodes can use 4789 only", "uninstall the other overlay, or give it another port"
	tunnels, err := fabric.TunnelsOn(c.VXLANPort)
	own := slices.Index(tunnels, fabric.Device)
	if err != nil || own < 0 && len(tunnels) == 0 {
		return checkPort("udp", c.VXLANPort, why, remedy)
	}
	check := fmt.Sprintf("port udp %d", c.VXLANPort)
	if own >= 0 {
		if tunnels = slices.Delete(tunnels, own, own+1); len(tunnels) == 0 {
			return []Finding{{Check: check, Severity: Good, What: "is that of " + fabric.Device + ", of Isthmus itself"}}
		}
	}
	return []Finding{{check, Warning, "is taken by interface " + strings.Join(tunnels, ", "), why, remedy}}
}

func (c Config) checkMetricsPort() []Finding {
	if c.AgentRuns {
		return nil
	}
	return checkPort("tcp", c.MetricsPort, "the agent serves health and metrics on this port and does not start without it", "stop the listening process, or give the agent another --http-address")
}

func checkPort(protocol string, port int, why, remedy string) []Finding {
	check := fmt.Sprintf("port %s %d", protocol, port)
	taken, err := portTaken(protocol, port)
	switch {
	case err != nil:
		return []Finding{{check, Unknown, err.Error(), why, remedy}}
	case taken:
		return []Finding{{check, Warning, "is taken", why, remedy}}
	}
	return []Finding{{Check: check, Severity: Good, What: "is free"}}
}

// portTaken reads the sockets of this network namespace.
func portTaken(protocol string, port int) (bool, error) {
	for _, file := range []string{threadNet + protocol, threadNet + protocol + "6"} {
		text, err := os.ReadFile(file)
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			return false, err
		}
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line)
			if len(f) < 4 {
				continue
			}
			_, hex, _ := strings.Cut(f[1], ":")
			n, err := strconv.ParseUint(hex, 16, 16)
			if err == nil && int(n) == port && (protocol == "udp" || f[3] == "0A") { // 0A is the state LISTEN
				return true, nil
			}
		}
	}
	return false, nil
}

func (c Config) checkInterfaces() []Finding {
	const check = "interfaces"
	all, err := net.Interfaces()
	if err != nil {
		return []Finding{{check, Unknown, err.Error(), "there may be interfaces of other networks", "look at ip link"}}
	}
	var names []string
	for _, i := range all {
		names = append(names, i.Name)
	}
	found := leftovers(check, "interfaces", names, func(i int) []string { return others[i].interfaces },
		"pods may still use that network and bypass every policy, and its routes may conflict with those of Isthmus",
		"uninstall the other network and restart the node, or delete pods and interfaces by hand (ip link delete)")
	if len(found) == 0 {
		found = []Finding{{Check: check, Severity: Good, What: "no interfaces of other networks"}}
	}
	return found
}

// checkFilter checks the tables and chains of the packet filter.
func (c Config) checkFilter(ctx context.Context) []Finding {
	const check = "packet filter"
	out, err := exec.CommandContext(ctx, "nft", "list", "chains").Output()
	if err != nil {
		return []Finding{{check, Unknown, fmt.Sprintf("nft list chains: %v", err), "rules of other networks or a firewall may drop packets of pods", "run this as root with nftables installed, or check nft list ruleset and iptables-legacy-save"}}
	}
	names, dropping := chains(string(out))
	found := leftovers(check, "tables or chains", names, func(i int) []string { return others[i].chains },
		"stale rules may drop packets of pods or translate their addresses", "uninstall the other network and restart the node, or delete the rules by hand (nft delete table)")
	if len(dropping) > 0 {
		found = append(found, Finding{check, Warning, "forwarding is dropped by default in " + strings.Join(dropping, ", "),
			"the node forwards packets of pods, and this firewall drops forwarded packets that no rule accepts",
			"make the firewall accept forwarded packets of the pod ranges"})
	}
	if legacy, err := os.ReadFile(threadNet + "ip_tables_names"); err == nil && len(strings.TrimSpace(string(legacy))) > 0 {
		found = append(found, Finding{check, Warning, "iptables-legacy has tables: " + strings.Join(strings.Fields(string(legacy)), ", "),
			"its rules apply in addition to those of nftables, and few tools show both", "check iptables-legacy-save; migrate to iptables-nft"})
	}
	if len(found) == 0 {
		found = []Finding{{Check: check, Severity: Good, What: "no rules of other networks"}}
	}
	return found
}

// chains reads the names of tables and chains, and the forward hooks whose default is to
// drop.
func chains(listing string) (names, dropping []string) {
	var table, chain string
	for line := range strings.Lines(listing) {
		f := strings.Fields(line)
		switch {
		case len(f) >= 3 && f[0] == "table":
			table = f[1] + " " + f[2]
			names = append(names, f[2])
		case len(f) >= 2 && f[0] == "chain":
			chain = f[1]
			names = append(names, chain)
		case strings.Contains(line, "hook forward") && strings.Contains(line, "policy drop"):
			dropping = append(dropping, table+" "+chain)
		}
	}
	return names, dropping
}

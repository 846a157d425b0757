// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/cni/install"
)

// pluginType is the type of isthmus-cni in CNI configurations.
const pluginType = "isthmus-cni"

// networks are the networks that plugins belong to, by the type of the plugin.
var networks = map[string]string{
	"aws-cni": "the VPC CNI plugin of EKS", "azure-vnet": "Azure CNI", "bridge": "the bridge plugin", "calico": "Calico", "cilium-cni": "Cilium",
	"flannel": "flannel", "kube-ovn": "Kube-OVN", "multus": "Multus", "multus-shim": "Multus", "ovn-k8s-cni-overlay": "OVN-Kubernetes",
	"ptp": "the ptp plugin", "antrea": "Antrea", "weave-net": "Weave Net",
	// Of Windows nodes.
	"win-bridge": "the win-bridge plugin", "win-overlay": "the win-overlay plugin", "sdnbridge": "Microsoft's sdnbridge plugin (GKE)",
	"vpc-bridge": "the VPC CNI plugin of EKS",
}

// beside reports whether another network makes the interfaces of pods, and Isthmus only enforces policy: as Mode
// says, or else as the configuration does.
func (c Config) beside() bool {
	if c.Mode != "" {
		return c.Mode == "policy" || c.Mode == "observe"
	}
	_, used, err := install.Used(filepath.Join(c.Root, c.CNIConfDir), pluginType)
	return err == nil && used.Chained
}

// checkOtherNetwork names the network whose configuration the runtime uses.
func (c Config) checkOtherNetwork(ctx context.Context) []Finding {
	const check = "cni configuration"
	const why = "with --mode=policy another network makes the interfaces of pods"
	name, used, err := install.Used(filepath.Join(c.Root, c.CNIConfDir), pluginType)
	switch {
	case err != nil:
		return []Finding{{check, Unknown, err.Error(), why, "run this as root, or give the directory with --cni-conf-dir"}}
	case name == "":
		return []Finding{{check, Bad, "none in " + c.CNIConfDir, why, "install the network, or use --mode=full"}}
	case len(used.Plugins) == 0 || used.Plugins[0] == pluginType:
		return []Finding{{check, Bad, name + " makes the interfaces with " + pluginType, why, "drain the node and run isthmus-agent uninstall, or use --mode=full"}}
	}
	what := fmt.Sprintf("%s: %s%s, CNI %s, plugins %s", name, owner(used.Plugins[0]), c.version(ctx, used.Plugins[0]), used.CNIVersion, strings.Join(used.Plugins, ", "))
	if !used.Chained {
		return []Finding{{check, Warning, what, "without isthmus-cni in it, pods start without policy",
			"start the agent with --mode=policy, --cni-bin-dir and --cni-conf-dir; if it runs, look at isthmusctl status"}}
	}
	return []Finding{{Check: check, Severity: Good, What: what}}
}

func owner(plugin string) string {
	if name, ok := networks[strings.TrimSuffix(plugin, ".exe")]; ok {
		return name
	}
	return "the network of plugin " + plugin
}

// versionText finds a version in what plugins print about themselves.
var versionText = regexp.MustCompile(`\bv?[0-9]+\.[0-9]+\.[0-9]+[0-9A-Za-z.+-]*`)

// version runs a plugin without a command: plugins then print what they are. It returns " VERSION", or nothing if
// the plugin does not print it.
func (c Config) version(ctx context.Context, plugin string) string {
	if plugin != filepath.Base(plugin) || plugin == "." || plugin == ".." {
		return ""
	}
	if runtime.GOOS == "windows" {
		plugin = strings.TrimSuffix(plugin, ".exe") + ".exe"
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(c.Root, c.CNIBinDir, plugin))
	cmd.Env = []string{}
	cmd.WaitDelay = time.Second
	out := &limited{left: 4096}
	cmd.Stdout, cmd.Stderr = out, out
	_ = cmd.Run() // many plugins exit with an error then
	if v := versionText.Find(out.kept.Bytes()); v != nil {
		return " " + string(v)
	}
	return ""
}

// limited discards what exceeds a number of bytes.
type limited struct {
	kept bytes.Buffer
	left int
}

func (l *limited) Write(b []byte) (int, error) {
	n := min(len(b), l.left)
	l.left -= n
	l.kept.Write(b[:n])
	return len(b), nil
}

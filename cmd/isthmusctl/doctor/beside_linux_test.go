// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/isthmus-net/isthmus/test/netns"
)

// TestBeside examines a node whose pods have the interfaces of another network.
func TestBeside(t *testing.T) {
	if os.Geteuid() != 0 || testing.Short() {
		t.Skip("needs root and no -short: make test runs it")
	}
	n := &examined{t, netns.ForTest(t), Config{Root: t.TempDir(), CNIBinDir: "/opt/cni/bin", CNIConfDir: "/etc/cni/net.d", VXLANPort: 4789, MetricsPort: 9470, Mode: "policy"}}
	conf := filepath.Join(n.c.Root, n.c.CNIConfDir, "10-flannel.conflist")
	n.expect("cni configuration", Bad, "none in /etc/cni/net.d")
	n.expect("policy engine", Good, "none of another project")
	put(t, conf, `{"name": "cbr0", "cniVersion": "0.3.1", "plugins": [{"type": "flannel"}, {"type": "portmap"}]}`, 0o644)
	n.expect("cni configuration", Warning, "10-flannel.conflist: flannel, CNI 0.3.1, plugins flannel, portmap")
	put(t, filepath.Join(n.c.Root, n.c.CNIBinDir, "flannel"), "#!/bin/sh\necho 'CNI Plugin flannel version v1.9.1-flannel1 (linux/amd64)' >&2; exit 1\n", 0o755)
	put(t, conf, `{"name": "cbr0", "cniVersion": "0.3.1", "plugins": [{"type": "flannel"}, {"type": "isthmus-cni", "mode": "policy"}]}`, 0o644)
	n.c.Mode = "" // the configuration says it
	n.expect("cni configuration", Good, "10-flannel.conflist: flannel v1.9.1-flannel1, CNI 0.3.1, plugins flannel, isthmus-cni")
	for _, f := range n.examine() {
		if f.Check == "interfaces" || f.Check == "uplink" {
			t.Errorf("a check of mode full: %+v", f)
		}
	}
	n.inside(func() error {
		return exec.Command("sh", "-c", "nft add table ip filter && nft add chain ip filter KUBE-NWPLCY-DEFAULT").Run()
	})
	n.expect("policy engine", Bad, "kube-router (chain KUBE-NWPLCY-DEFAULT)")
	put(t, conf, `{"name": "isthmus", "cniVersion": "1.0.0", "plugins": [{"type": "isthmus-cni"}]}`, 0o644)
	n.c.Mode = "policy"
	n.expect("cni configuration", Bad, "10-flannel.conflist makes the interfaces with isthmus-cni")
	put(t, conf, `{"name": "x", "cniVersion": "0.3.0", "type": "../../bin/sh"}`, 0o644)
	n.expect("cni configuration", Warning, "the network of plugin ../../bin/sh, CNI 0.3.0")
}

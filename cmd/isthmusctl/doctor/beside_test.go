// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// TestWindowsNetworks checks configurations of networks of Windows nodes, with and without isthmus-cni.
func TestWindowsNetworks(t *testing.T) {
	c := Config{Root: t.TempDir(), CNIBinDir: "bin", CNIConfDir: "conf"}
	dir := filepath.Join(c.Root, c.CNIConfDir)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for plugin, network := range map[string]string{
		"win-bridge": "the win-bridge plugin", "win-overlay.exe": "the win-overlay plugin", "sdnbridge": "Microsoft's sdnbridge plugin (GKE)",
		"vpc-bridge": "the VPC CNI plugin of EKS", "azure-vnet": "Azure CNI", "flannel": "flannel",
	} {
		for entry, want := range map[string]Severity{"": Warning, `,{"type":"isthmus-cni","mode":"policy"}`: Good} {
			text := fmt.Sprintf(`{"name":"n","cniVersion":"1.0.0","plugins":[{"type":%q}%s]}`, plugin, entry)
			if err := os.WriteFile(filepath.Join(dir, "10-n.conflist"), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			found := c.checkOtherNetwork(t.Context())
			what := fmt.Sprintf("10-n.conflist: %s, CNI 1.0.0, plugins %s", network, plugin)
			if want == Good {
				what += ", isthmus-cni"
			}
			if len(found) != 1 || found[0].Severity != want || found[0].What != what || c.beside() != (want == Good) {
				t.Errorf("%s: beside %t, %+v, want %s, %q", text, c.beside(), found, want, what)
			}
		}
	}
}

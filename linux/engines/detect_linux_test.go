// SPDX-License-Identifier: Apache-2.0

package engines_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/linux/engines"
	"github.com/isthmus-net/isthmus/test/netns"
)

// TestDetect makes the tables of other engines in a network namespace.
func TestDetect(t *testing.T) {
	if os.Getuid() != 0 || testing.Short() {
		t.Skip("needs root and no -short: make test runs it")
	}
	ns := netns.ForTest(t)
	root := t.TempDir()
	detect := func() (found []engines.Engine) {
		t.Helper()
		if err := ns.Do(func() (err error) { found, err = engines.Detect(root); return err }); err != nil {
			t.Fatal(err)
		}
		return found
	}
	if found := detect(); len(found) > 0 {
		t.Errorf("an empty namespace has %v", found)
	}
	// Amazon's agent pins programs for pods under policy. An empty directory remains without it.
	pins := filepath.Join(root, "sys/fs/bpf/globals/aws/programs")
	if err := os.MkdirAll(pins, 0o700); err != nil {
		t.Fatal(err)
	}
	if found := detect(); len(found) > 0 {
		t.Errorf("an empty directory of pins is %v", found)
	}
	pin := filepath.Join(pins, "web-shop_handle_ingress")
	if err := os.WriteFile(pin, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if found := detect(); len(found) != 1 || found[0].Name != "Amazon's network policy agent" || !strings.Contains(found[0].Remedy, "enableNetworkPolicy") {
		t.Errorf("found %v", found)
	}
	if err := os.Remove(pin); err != nil {
		t.Fatal(err)
	}
	err := ns.Do(func() error {
		nft := exec.Command("nft", "-f", "-")
		nft.Stdin = strings.NewReader("add table ip filter\nadd chain ip filter cali-FORWARD\nadd table inet kube-network-policies\nadd table ip6 mine\nadd chain ip6 mine forward\n")
		out, err := nft.CombinedOutput()
		if err != nil {
			t.Errorf("nft: %s", out)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if found := detect(); len(found) != 2 || found[0].Name != "Calico (Felix)" || found[1].Name != "kube-network-policies" {
		t.Errorf("found %v", found)
	}
}

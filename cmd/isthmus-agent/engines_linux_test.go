// SPDX-License-Identifier: Apache-2.0

package main

import (
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/test/netns"
)

// TestOtherEngine checks that agents of mode policy find other policy engines, and name engine and remedy.
func TestOtherEngine(t *testing.T) {
	if os.Getuid() != 0 || testing.Short() {
		t.Skip("needs root and no -short: make test runs it")
	}
	ns := netns.ForTest(t)
	err := ns.Do(func() error {
		if out, err := exec.Command("nft", "add", "table", "inet", "kube-network-policies").CombinedOutput(); err != nil {
			t.Errorf("nft: %s", out)
			return err
		}
		look := func(mode, engine string) func() ([]string, error) {
			o := &options{mode: mode, otherEngine: engine, bpffs: t.TempDir()}
			return newBackend(o, func(string) {}, slog.New(slog.DiscardHandler)).otherEngines
		}
		if look(modeFull, engineRefuse) != nil || look(modePolicy, engineIgnore) != nil {
			t.Error("an agent of mode full, or with --other-engine=ignore, looks for other engines")
		}
		for _, mode := range []string{modePolicy, modeObserve} {
			found, err := look(mode, engineRefuse)()
			const name, remedy = "kube-network-policies (table kube-network-policies) enforces network policy on this node", "delete its DaemonSet"
			if err != nil || len(found) != 1 || !strings.Contains(found[0], name) || !strings.Contains(found[0], remedy) {
				t.Errorf("mode %s: found %q, %v", mode, found, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/netns"
)

// TestOtherEngine checks that the data path does not open beside another policy engine, and that
// the error names the engine.
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
		for _, c := range []struct {
			engine, text string
		}{{engineRefuse, "kube-network-policies (table kube-network-policies) enforces network policy on this node"}, {engineIgnore, "--xdp-devices"}} {
			o := &options{mode: modePolicy, otherEngine: c.engine, xdp: "a/b", bpffs: t.TempDir()} // the second error ends Open before it changes something
			_, err := newBackend(o, func(string) {}, slog.New(slog.NewTextHandler(io.Discard, nil))).open(t.Context(), model.Node{})
			if err == nil || !strings.Contains(err.Error(), c.text) {
				t.Errorf("--other-engine=%s: %v, want %q", c.engine, err, c.text)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

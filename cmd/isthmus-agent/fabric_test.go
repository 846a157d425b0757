// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// TestFabricOfWindows checks that modes that a kind of HNS network does not support are refused,
// with the remedy.
func TestFabricOfWindows(t *testing.T) {
	for _, c := range []struct{ hns, fabric, want string }{
		{"l2bridge", "auto", ""}, {"l2bridge", "routes", ""}, {"l2bridge", "none", ""}, {"overlay", "auto", ""}, {"overlay", "vxlan", ""},
		{"l2bridge", "vxlan", "--fabric vxlan: l2bridge networks have no tunnels"},
		{"overlay", "routes", "--fabric routes: overlay networks of HNS are tunnels"},
		{"overlay", "none", "--fabric none: overlay networks of HNS are tunnels"},
	} {
		o := &options{}
		f := pflag.NewFlagSet("test", pflag.ContinueOnError)
		o.register(f)
		if err := f.Parse([]string{"--node-name=n", "--hns-mode=" + c.hns, "--fabric=" + c.fabric, "--masquerade=false"}); err != nil {
			t.Fatal(err)
		}
		err := o.check(f, "windows")
		text := ""
		if err != nil {
			text = err.Error()
		}
		if c.want == "" && strings.Contains(text, "fabric") || !strings.Contains(text, c.want) || strings.Contains(text, "has no meaning") {
			t.Errorf("%s with --fabric=%s: %q, want %q", c.hns, c.fabric, text, c.want)
		}
	}
}

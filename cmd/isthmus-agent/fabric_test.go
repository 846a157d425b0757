// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// TestHybridOverlayFlag checks which other flags the flag needs.
func TestHybridOverlayFlag(t *testing.T) {
	for _, c := range []struct{ os, flags, want string }{
		{"linux", "--vni=4097", ""}, {"linux", "--vni=4097 --fabric=vxlan --vxlan-port=9898", ""}, {"windows", "--vni=4097 --hns-mode=overlay", ""},
		{"linux", "", "set it on the agents of all nodes"}, {"linux", "--vni=4097 --fabric=routes", "it needs tunnels"},
		{"linux", "--vni=4097 --hybrid-overlay=fd00::/8", "give an IPv4 range"}, {"linux", "--vni=4097 --hybrid-overlay=10.0.0.1/8", "without host bits"},
		{"linux", "--mode=policy", "--hybrid-overlay has no meaning with --mode=policy"},
		{"windows", "--vni=4097", "use --hns-mode=overlay"}, {"windows", "--vni=4097 --hns-mode=overlay --vxlan-port=9898", "Windows supports only 4789"},
	} {
		o := &options{}
		f := pflag.NewFlagSet("test", pflag.ContinueOnError)
		o.register(f)
		if err := f.Parse(append(strings.Fields(c.flags), "--node-name=n", "--hybrid-overlay=10.128.0.0/14")); err != nil {
			t.Fatal(err)
		}
		text := fmt.Sprint(o.check(f, c.os))
		if c.want == "" && strings.Contains(text, "hybrid") || !strings.Contains(text, c.want) {
			t.Errorf("%s with %s: %q, want %q", c.os, c.flags, text, c.want)
		}
	}
}

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

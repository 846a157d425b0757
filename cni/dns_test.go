// SPDX-License-Identifier: Apache-2.0

package cni_test

import (
	"context"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"

	"github.com/isthmus-net/isthmus/common/model"
)

// TestDNSOfRuntime checks that the data path gets the resolver that the runtime passes for a
// dnsPolicy, or else that of the file. An invalid resolver does not prevent DEL.
func TestDNSOfRuntime(t *testing.T) {
	r := newRigOn(t, model.Features{OS: model.Windows, Platform: "test", DNS: true})
	r.publish(3, "10.0.1.0/24")
	capabilities := `, "capabilities": {"dns": true}`
	ofFile := capabilities + `, "dns": {"nameservers": ["192.0.2.53"], "domain": "corp", "search": ["corp.example"]}`
	pass := func(dns any) *libcni.RuntimeConf {
		rt := runtimeConf(0)
		rt.CapabilityArgs = map[string]any{"dns": dns}
		return rt
	}
	ctx := context.Background()
	for name, c := range map[string]struct {
		members string
		passed  any
		want    string
	}{
		"ClusterFirst": {ofFile, map[string][]string{"servers": {"10.96.0.10"}, "searches": {"shop.svc.cluster.local", "cluster.local"}, "options": {"ndots:5"}},
			"  dns: servers 10.96.0.10, search shop.svc.cluster.local cluster.local, options ndots:5\n"},
		"None":             {capabilities, map[string][]string{"servers": {"9.9.9.9"}}, "  dns: servers 9.9.9.9\n"},
		"Default":          {capabilities, map[string][]string{"servers": {"192.168.0.53"}, "searches": {"corp.example"}}, "  dns: servers 192.168.0.53, search corp.example\n"},
		"passed empty":     {ofFile, map[string][]string{}, "  dns: servers 192.0.2.53, search corp.example, domain corp\n"},
		"file":             {ofFile, nil, "  dns: servers 192.0.2.53, search corp.example, domain corp\n"},
		"neither":          {capabilities, nil, ""},
		"no capability":    {"", map[string][]string{"servers": {"10.96.0.10"}}, ""},
		"IPv4-mapped IPv6": {capabilities, map[string][]string{"servers": {"::ffff:10.96.0.10", "FD96::A"}}, "  dns: servers 10.96.0.10 fd96::a\n"},
	} {
		t.Run(name, func(t *testing.T) {
			rt := pass(c.passed)
			if c.passed == nil {
				rt = runtimeConf(0)
			}
			list := r.list("1.1.0", c.members)
			if _, err := r.libcni.AddNetworkList(ctx, list, rt); err != nil {
				t.Fatal(err)
			}
			if dump := r.fake.Dump(); strings.Count(dump, "  dns: ") != min(len(c.want), 1) || !strings.Contains(dump, c.want) {
				t.Errorf("want %q in\n%s", c.want, dump)
			}
			wrong := r.list("1.1.0", `, "dns": {"nameservers": ["x"]}`)
			_, err := r.libcni.AddNetworkList(ctx, wrong, runtimeConf(1))
			wantError(t, err, 7, `network configuration: "dns": ["x"] is not valid`)
			if err := r.libcni.DelNetworkList(ctx, wrong, runtimeConf(0)); err != nil {
				t.Errorf("DEL with a wrong resolver: %v", err)
			}
		})
	}
}

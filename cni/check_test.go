// SPDX-License-Identifier: Apache-2.0

package cni_test

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// TestCheckReadsItsOwnInterface sends CHECK with a prevResult of several interfaces, as a chain of plugins
// leaves it. Only the addresses of the interface with the name and the sandbox of the attachment are the
// pod's.
func TestCheckReadsItsOwnInterface(t *testing.T) {
	r := newRig(t)
	r.publish(1, "10.0.1.0/24")
	result, err := r.libcni.AddNetworkList(context.Background(), r.list("1.1.0", ""), runtimeConf(0))
	if err != nil {
		t.Fatal(err)
	}
	added, err := types100.GetResult(result)
	if err != nil {
		t.Fatal(err)
	}
	own := added.IPs[0].Address.String()
	other := "10.0.1.99/32"
	if netip.MustParsePrefix(other).Addr() == netip.MustParsePrefix(own).Addr() {
		t.Fatal("the other address must be another one")
	}
	const ours, theirs = `{"name": "eth0", "sandbox": "/run/netns/c0"}`, `{"name": "eth0", "sandbox": "/run/netns/c7"}`
	const second = `{"name": "net1", "sandbox": "/run/netns/c0"}`
	ip := func(address string, of int) string {
		return fmt.Sprintf(`{"address": %q, "interface": %d}`, address, of)
	}
	for name, c := range map[string]struct {
		interfaces, ips string
		code            uint
		text            string
	}{
		"own sandbox first":          {ours + "," + theirs, ip(own, 0) + "," + ip(other, 1), 0, ""},
		"own sandbox last":           {theirs + "," + ours, ip(other, 0) + "," + ip(own, 1), 0, ""},
		"own sandbox, other address": {ours + "," + theirs, ip(other, 0) + "," + ip(own, 1), 104, "has the addresses"},
		"only another sandbox":       {theirs, ip(own, 0), 7, "no interface eth0 in /run/netns/c0"},
		"only another name":          {second, ip(own, 0), 7, "no interface eth0 in /run/netns/c0"},
		"a second interface":         {ours + "," + second, ip(own, 0) + "," + ip(other, 1), 0, ""},
		"address of no interface":    {ours, ip(own, 0) + fmt.Sprintf(`, {"address": %q}`, other), 104, "has the addresses"},
	} {
		t.Run(name, func(t *testing.T) {
			stdin := fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "pods", "type": "isthmus", "socket": %q,
				"prevResult": {"cniVersion": "1.1.0", "interfaces": [%s], "ips": [%s]}}`, r.socket, c.interfaces, c.ips)
			var out printed
			status := r.execute(&out, "CHECK", runtimeConf(0), stdin)
			if (status == 0) != (c.code == 0) || out.Code != c.code || !strings.Contains(out.Msg+": "+out.Details, c.text) {
				t.Errorf("exit status %d, %+v, want code %d with %q", status, out, c.code, c.text)
			}
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestParseNetwork(t *testing.T) {
	for _, c := range []struct{ from, text, want string }{
		{FromBridge, `{"name":"n","plugins":[{"type":"bridge","bridge":"br0","isGateway":true,"ipam":{"type":"host-local","dataDir":"/d","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00::/64"}]]}},{"type":"portmap"},{"type":"isthmus-cni"}]}`,
			"n br0 /d/n [10.1.0.0/24 fd00::/64]"},
		{FromBridge, `{"name":"n","type":"bridge","isDefaultGateway":true,"ipam":{"type":"host-local","subnet":"10.1.0.0/24"}}`, "n cni0 /var/lib/cni/networks/n [10.1.0.0/24]"},
		{FromFlannel, `{"name":"cbr0","plugins":[{"type":"flannel","ipam":{"dataDir":"/i"},"delegate":{"hairpinMode":true,"isDefaultGateway":true}},{"type":"portmap"}]}`,
			"cbr0 cni0 /i/cbr0 []"},
		{FromKubenet, `{"name":"kubenet","plugins":[{"type":"bridge","bridge":"cbr0","addIf":"eth0","isGateway":true,"promiscMode":true,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00::/64"}]]}},{"type":"portmap"}]}`,
			"kubenet cbr0 /var/lib/cni/networks/kubenet [10.1.0.0/24 fd00::/64]"},
	} {
		n, err := ParseNetwork(c.from, "/x", []byte(c.text))
		if got := fmt.Sprint(n.Name, " ", n.Bridge, " ", n.Leases, " ", n.Ranges); err != nil || got != c.want {
			t.Errorf("%s: %q, %v, want %q", c.text, got, err, c.want)
		}
	}
	const ipam = `"ipam":{"type":"host-local","subnet":"10.1.0.0/24"}`
	for text, want := range map[string]string{
		`{`:                         "parse /x",
		`[]`:                        "parse /x",
		`{"name":"n","type":"ptp"}`: `the first plugin is "ptp", not "bridge"`,
		`{"name":"a/b","type":"bridge","isGateway":true,` + ipam + `}`:                                                                                `name "a/b"`,
		`{"name":"n","type":"bridge",` + ipam + `}`:                                                                                                   "isGateway is not set",
		`{"name":"n","type":"bridge","isGateway":true,"vlan":3,` + ipam + `}`:                                                                         "vlan",
		`{"name":"n","type":"bridge","isGateway":true,"macspoofchk":true,` + ipam + `}`:                                                               "macspoofchk",
		`{"name":"n","type":"bridge","isGateway":true,"bridge":"../x",` + ipam + `}`:                                                                  `bridge "../x"`,
		`{"name":"n","type":"bridge","isGateway":true,"ipam":{"type":"dhcp"}}`:                                                                        `ipam plugin "dhcp"`,
		`{"name":"n","type":"bridge","isGateway":true,"ipam":{"type":"host-local","subnet":"10.1"}}`:                                                  `ipam range "10.1"`,
		`{"name":"n","type":"bridge","isGateway":true,"ipam":{"type":"host-local","dataDir":"x","subnet":"10.1.0.0/24"}}`:                             `dataDir "x"`,
		`{"name":"n","type":"bridge","isGateway":true,"ipam":{"type":"host-local"}}`:                                                                  "ipam has no range",
		`{"name":"n","plugins":[{"type":"bridge","isGateway":true,` + ipam + `},{"type":"bandwidth"},{"type":"tuning"}]}`:                             `plugin "bandwidth"`,
		`{"name":"n","type":"bridge","isGateway":true,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"},{"subnet":"10.2.0.0/24"}]]}}`:   "a set must have one range",
		`{"name":"n","type":"bridge","isGateway":true,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"10.2.0.0/24"}]]}}`: "one range for each IP version",
	} {
		if _, err := ParseNetwork(FromBridge, "/x", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	if _, err := ParseNetwork(FromFlannel, "/x", []byte(`{"name":"n","type":"flannel","delegate":{"type":"ipvlan"}}`)); err == nil || !strings.Contains(err.Error(), `delegate "ipvlan"`) {
		t.Error(err)
	}
}

func TestSubnet(t *testing.T) {
	n := Network{SubnetFile: "/s"}
	err := n.Subnet([]byte("FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_IPV6_NETWORK=fd00::/48\nFLANNEL_IPV6_SUBNET=fd00:0:0:1::1/64\nFLANNEL_MTU=1500\n"))
	if got := fmt.Sprint(n.Ranges, n.Cluster); err != nil || got != "[10.244.1.0/24 fd00:0:0:1::/64] [10.244.0.0/16 fd00::/48]" {
		t.Errorf("%s, %v", got, err)
	}
	for text, want := range map[string]string{"": "no FLANNEL_SUBNET", "FLANNEL_SUBNET=x": "is not a prefix", "FLANNEL_SUBNET=10.0.0.1/24,10.1.0.1/24": "one range"} {
		if err := n.Subnet([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func TestLeases(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"10.1.0.2": "c1\r\neth0", "fd00__3": "c2\neth0\n", "10.1.0.4": "c3", "last_reserved_ip.0": "10.1.0.4", "lock": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	all, err := ReadLeases(dir)
	if got := fmt.Sprint(all); err != nil || got != "[{10.1.0.2 c1 eth0} {10.1.0.4 c3 eth0} {fd00::3 c2 eth0}]" {
		t.Errorf("%s, %v", got, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "10.1.0.9"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadLeases(dir); err == nil || !strings.Contains(err.Error(), "10.1.0.9: it has 0 words") {
		t.Error(err)
	}
	if _, err := ReadLeases(filepath.Join(dir, "missing")); err == nil {
		t.Error("a missing directory is accepted")
	}
}

func TestParseResult(t *testing.T) {
	for text, want := range map[string]string{
		`{"kind":"cniCacheV1","containerId":"c1","capabilityArgs":{"portMappings":[{"hostPort":80}]}}`: "c1 true",
		`{"containerId":"c1","capabilityArgs":{"portMappings":[]}}`:                                    "c1 false",
		`{"cniVersion":"1.0.0"}`: " false",
		`no`:                     " false",
	} {
		if id, has := parseResult([]byte(text)); fmt.Sprint(id, " ", has) != want {
			t.Errorf("%s: %q %v, want %q", text, id, has, want)
		}
	}
}

func FuzzNetwork(f *testing.F) {
	f.Add([]byte(`{"name":"n","plugins":[{"type":"flannel","delegate":{"isDefaultGateway":true}}]}`))
	f.Add([]byte(`{"name":"n","type":"bridge","isGateway":true,"ipam":{"type":"host-local","subnet":"10.1.0.0/24"}}`))
	f.Add([]byte("FLANNEL_SUBNET=10.244.1.1/24\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, from := range Networks() {
			n, err := ParseNetwork(from, "/x", text)
			if err == nil && (!filepath.IsAbs(n.Leases) || strings.Contains(n.Bridge, "/") || n.Bridge == "") {
				t.Errorf("network %+v", n)
			}
		}
		var n Network
		if n.Subnet(text) == nil && len(n.Ranges) == 0 {
			t.Error("a node without ranges")
		}
	})
}

func FuzzLease(f *testing.F) {
	f.Add([]byte("c1\r\neth0"))
	f.Fuzz(func(t *testing.T, text []byte) {
		l, err := parseLease(netip.MustParseAddr("10.1.0.2"), text)
		if err == nil && (l.ContainerID == "" || l.IfName == "" || strings.ContainsAny(l.ContainerID, "/: ")) {
			t.Errorf("lease %+v", l)
		}
		parseResult(text)
	})
}

// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/endpoint"
	"github.com/isthmus-net/isthmus/common/model"
)

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// node returns a node with two pods behind the bridge of flannel: web is adopted, api came by the chained plugin.
func node() *Node {
	n := &Node{
		Network: Network{From: FromFlannel, Name: "cbr0", Bridge: "cni0", ConfDir: "/etc/cni/net.d", Conf: "/etc/cni/net.d/10-flannel.conflist", Leases: "/var/lib/cni/networks/cbr0",
			Ranges: prefixes("10.244.1.0/24", "fd00:10:1::/64"), Cluster: prefixes("10.244.0.0/16")},
		Bridge:  Bridge{Name: "cni0", Index: 5, MAC: "0a:00:00:00:00:01", MTU: 1500, Addresses: prefixes("10.244.1.1/24", "fd00:10:1::1/64")},
		Kernel:  [2]int{6, 12},
		Sysctls: map[string]string{"ipv4/conf/cni0/rp_filter": "1", "netfilter/nf_conntrack_tcp_be_liberal": "1"},
		Routes:  []Route{{Prefix: netip.MustParsePrefix("10.244.2.0/24"), Via: netip.MustParseAddr("172.30.0.12"), Device: "eth0", Index: 2, Protocol: 3}},
	}
	for i, pod := range []struct{ name, container, netns string }{
		{"web", "adopted-web", "interface:boot:11:2"}, {"api", "c-api", "/run/netns/api"},
	} {
		ips := prefixes([]string{"10.244.1.2/24", "10.244.1.3/24"}[i], []string{"fd00:10:1::2/64", "fd00:10:1::3/64"}[i])
		r := endpoint.Record{Version: endpoint.SchemaVersion, State: endpoint.Ready, Kind: endpoint.Foreign, ContainerID: pod.container, IfName: "eth0", NetNS: pod.netns,
			Namespace: "shop", Name: pod.name, IPs: []netip.Addr{ips[0].Addr(), ips[1].Addr()}, Created: time.Unix(1e9, 0)}
		n.Records = append(n.Records, r)
		n.Ports = append(n.Ports, Port{Name: "veth" + pod.name, Index: 11 + i, MAC: "0e:00:00:00:00:0" + string(rune('2'+i)), MTU: 1500, Endpoint: r.ID(),
			Pod: PodEnd{NetNS: "/run/netns/" + pod.name, IfName: "eth0", PeerIndex: 2, MAC: "0e:00:00:00:01:0" + string(rune('2'+i)), MTU: 1500, Addresses: ips,
				Gateways: []netip.Addr{netip.MustParseAddr("10.244.1.1"), netip.MustParseAddr("fd00:10:1::1")}}})
		for _, ip := range r.IPs {
			n.Leases = append(n.Leases, Lease{IP: ip, ContainerID: "c-" + pod.name, IfName: "eth0"})
		}
	}
	return n
}

func name(id model.EndpointID) string { return "ist-" + string(id[:5]) }

const wantPlan = `set sysctl net.ipv4.conf.cni0.rp_filter to 2 (was 1)
pod shop/api: give vethapi the MAC 0a:00:00:00:00:01 of cni0, route 10.244.1.3 and fd00:10:1::3 dev vethapi, neighbour 0e:00:00:00:01:03 permanent
pod shop/web: give vethweb the MAC 0a:00:00:00:00:01 of cni0, route 10.244.1.2 and fd00:10:1::2 dev vethweb, neighbour 0e:00:00:00:01:02 permanent
pod shop/api: route its subnet via its gateway dev eth0, neighbour 0a:00:00:00:00:01 permanent
pod shop/web: route its subnet via its gateway dev eth0, neighbour 0a:00:00:00:00:01 permanent
add 10.244.1.1 and fd00:10:1::1 of cni0 to lo
pod shop/api: remove vethapi from cni0
pod shop/web: remove vethweb from cni0
pod shop/api: rename vethapi to ist-c-api
pod shop/web: rename vethweb to ist-c-web
keep the route to 10.244.2.0/24 via 172.30.0.12 dev eth0 as one of Isthmus
pod shop/api: record 10.244.1.3 and fd00:10:1::3 with the addresses that host-local assigned to container c-api
pod shop/web: record 10.244.1.2 and fd00:10:1::2 with the addresses that host-local assigned to container c-web
rename /etc/cni/net.d/10-flannel.conflist to 10-flannel.conflist.before-isthmus
set sysctl net.ipv4.conf.cni0.rp_filter to 1 (was 2)
remove bridge cni0, which has no ports
`

func TestPlan(t *testing.T) {
	p, reasons := Make(node(), name)
	if len(reasons) > 0 {
		t.Fatal(reasons)
	}
	var text strings.Builder
	for _, s := range p.Steps {
		text.WriteString(p.Describe(s) + "\n")
	}
	if text.String() != wantPlan {
		t.Errorf("plan is\n%s\nwant\n%s", text.String(), wantPlan)
	}
	for _, pod := range p.Pods {
		if err := pod.Record.Validate(); err != nil {
			t.Error(err)
		}
		if pod.Record.Kind != endpoint.Migrated || pod.Record.NetNS != "/run/netns/"+pod.Name || pod.Record.Network != "cbr0" || pod.Was.Kind != endpoint.Foreign {
			t.Errorf("record %+v of %s", pod.Record, pod.Name)
		}
	}
}

// The routes by a VXLAN device of flannel stay with flanneld, also those of its direct routing by the uplink.
func TestPlanWithTunnels(t *testing.T) {
	n := node()
	n.Bridge.MTU = 1430
	n.Tunnels = []Tunnel{{Name: "flannel.1", MTU: 1450, Up: true}, {Name: "flannel-v6.1", MTU: 1430, Up: true}}
	p, reasons := Make(n, name)
	if len(reasons) > 0 {
		t.Fatal(reasons)
	}
	if got := strings.Join(p.AgentFlags(), " "); got != "--mode=full --fabric=none --mtu=1430" {
		t.Errorf("flags %s", got)
	}
	if i := slices.IndexFunc(p.Steps, func(s Step) bool { return s.Kind == OwnRoute }); i >= 0 || len(p.Routes) > 0 {
		t.Errorf("routes %v become those of Isthmus", p.Routes)
	}
	bridged, _ := Make(node(), name)
	if got := strings.Join(bridged.AgentFlags(), " "); got != "--mode=full --fabric=routes" {
		t.Errorf("without a tunnel: flags %s", got)
	}
}

// The configuration that a list of the agent wraps is moved first, so that what remains always names the plugin.
func TestPlanWithWrappedConf(t *testing.T) {
	n := node()
	n.Network.Conf, n.Network.Wrapped = "/etc/cni/net.d/10-bridge-isthmus.conflist", "/etc/cni/net.d/10-bridge.conf"
	p, reasons := Make(n, name)
	if len(reasons) > 0 {
		t.Fatal(reasons)
	}
	var moved []string
	for _, s := range p.Steps {
		if s.Kind == KeepConf {
			moved = append(moved, s.Path)
		}
	}
	if !slices.Equal(moved, []string{n.Network.Wrapped, n.Network.Conf}) {
		t.Errorf("moved in the order %q", moved)
	}
}

// Nothing is planned for a node with a form that the steps do not know. Each reason names the object.
func TestReasons(t *testing.T) {
	for title, c := range map[string]struct {
		change func(*Node)
		want   string
	}{
		"old kernel":         {func(n *Node) { n.Kernel = [2]int{6, 1} }, "kernel 6.1 has no tcx hooks"},
		"tunnel down":        {func(n *Node) { n.Tunnels = []Tunnel{{Name: "flannel.1", MTU: 1500}} }, "device flannel.1 of flannel's VXLAN backend is down"},
		"tunnel too narrow":  {func(n *Node) { n.Tunnels = []Tunnel{{Name: "flannel.1", MTU: 1450, Up: true}} }, "device flannel.1 has MTU 1450, less than the 1500 of bridge cni0"},
		"bridge elsewhere":   {func(n *Node) { n.Bridge.Addresses = prefixes("10.99.0.1/24") }, "address 10.99.0.1 of bridge cni0 is not in the node's ranges"},
		"bridge without one": {func(n *Node) { n.Bridge.Addresses = nil }, "bridge cni0 has no address"},
		"uplink in bridge":   {func(n *Node) { n.Ports[0].Problem = "it is of kind dummy and leads to no pod" }, "port vethweb of bridge cni0: it is of kind dummy"},
		"no policy":          {func(n *Node) { n.Ports[0].Endpoint = "" }, "the pod behind port vethweb has no policy"},
		"being attached":     {func(n *Node) { n.Records[0].State = endpoint.Adding }, "pod shop/web is being attached"},
		"migrated already":   {func(n *Node) { n.Records[0].Kind = endpoint.Migrated }, "pod shop/web is being attached"},
		"no namespace":       {func(n *Node) { n.Ports[0].Pod.NetNS = "" }, "no path leads to its network namespace"},
		"second interface":   {func(n *Node) { n.Ports[0].Pod.Others = []string{"net1"} }, "pod shop/web has more interfaces than eth0: net1"},
		"other range":        {func(n *Node) { n.Ports[0].Pod.Addresses[0] = prefixes("10.9.0.2/24")[0] }, "pod shop/web has the address 10.9.0.2 outside"},
		"other gateway":      {func(n *Node) { n.Ports[0].Pod.Gateways[0] = netip.MustParseAddr("10.244.1.9") }, "pod shop/web has no default route via 10.244.1.1"},
		"second gateway": {func(n *Node) {
			n.Ports[0].Pod.Gateways = append(n.Ports[0].Pod.Gateways, netip.MustParseAddr("10.7.0.1"))
		}, "a default route via 10.7.0.1, which is not bridge cni0"},
		"address not known":   {func(n *Node) { n.Ports[0].Pod.Addresses = n.Ports[0].Pod.Addresses[:1] }, "policy is in force for"},
		"further address":     {func(n *Node) { n.Records[0].Further = []netip.Addr{netip.MustParseAddr("10.244.1.9")} }, "pod shop/web has further addresses [10.244.1.9]"},
		"no lease":            {func(n *Node) { n.Leases = n.Leases[1:] }, "pod shop/web has the address 10.244.1.2, which host-local did not assign"},
		"lease of another":    {func(n *Node) { n.Leases[1].ContainerID = "c-other" }, "host-local assigned fd00:10:1::2 to interface eth0 of container c-other"},
		"lease of interface":  {func(n *Node) { n.Leases[0].IfName = "net1" }, "to interface net1 of container c-web"},
		"host ports":          {func(n *Node) { n.HostPorts = map[string]bool{"c-web": true} }, "pod shop/web has host ports"},
		"pod not behind it":   {func(n *Node) { n.Ports = n.Ports[1:] }, "pod shop/web is not behind bridge cni0"},
		"several at one time": {func(n *Node) { n.Kernel, n.Tunnels = [2]int{5, 10}, []Tunnel{{Name: "flannel.1", MTU: 1500}} }, "kernel 5.10"},
	} {
		n := node()
		c.change(n)
		p, reasons := Make(n, name)
		if p != nil || !slices.ContainsFunc(reasons, func(r string) bool { return strings.Contains(r, c.want) }) {
			t.Errorf("%s: plan %v, reasons %q, want one with %q", title, p != nil, reasons, c.want)
		}
	}
}

func TestReleasedRecordsStay(t *testing.T) {
	n := node()
	n.Records = append(n.Records, endpoint.Record{State: endpoint.Released, ContainerID: "gone", IfName: "eth0", Namespace: "shop", Name: "gone"})
	if p, reasons := Make(n, name); p == nil || len(p.Pods) != 2 {
		t.Errorf("plan %+v, reasons %q", p, reasons)
	}
}

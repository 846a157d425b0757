// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
)

var ovnRanges = []netip.Prefix{netip.MustParsePrefix("10.128.0.0/14"), netip.MustParsePrefix("10.132.0.0/14")}

// ovnNode is a node with annotations of OVN-Kubernetes.
func ovnNode(subnets, subnet, mac string) *model.Node {
	return &model.Node{Name: "n", OS: model.Linux, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.9.0/24")},
		NodeInfo: model.NodeInfo{Overlay: model.Overlay{Subnets: subnets, Subnet: subnet, MAC: mac}}}
}

// TestHybridNodes reads annotations as OVN-Kubernetes does, within the ranges of the administrator. A node without
// valid ones has no pod ranges, not even those of its spec, and the problem names node and annotation.
func TestHybridNodes(t *testing.T) {
	const mac, other = "0a:58:0a:80:02:03", "00-15-5D-7B-E7-D2"
	long := `{"default":"10.128.2.0/23","x":"` + strings.Repeat("x", maxAnnotation) + `"}`
	for name, c := range map[string]struct {
		node           *model.Node
		cidr, problems string
	}{
		"a node of OVN":               {ovnNode(`{"default":["10.128.2.0/23"]}`, "", mac), "10.128.2.0/23", ""},
		"a node of older OVN":         {ovnNode(`{"default":"10.128.2.0/23"}`, "", mac), "10.128.2.0/23", ""},
		"two families":                {ovnNode(`{"default":["fd01::/64","10.128.2.0/23"],"other":["10.129.0.0/24"]}`, "", mac), "10.128.2.0/23", ""},
		"a Windows node of OVN":       {ovnNode("", "10.132.1.0/24", other), "10.132.1.0/24", ""},
		"host bits":                   {ovnNode("", "10.132.1.20/24", other), "10.132.1.0/24", ""},
		"both":                        {ovnNode(`{"default":["10.128.2.0/23"]}`, "10.132.1.0/24", mac), "10.128.2.0/23", ""},
		"no overlay yet":              {ovnNode(`{"default":["10.128.2.0/23"]}`, "", ""), "", model.AnnotationOverlayMAC},
		"a MAC of multicast":          {ovnNode(`{"default":["10.128.2.0/23"]}`, "", "01:00:5e:00:00:01"), "", model.AnnotationOverlayMAC},
		"no JSON":                     {ovnNode("10.128.2.0/23", "", mac), "", model.AnnotationOverlaySubnets},
		"another network":             {ovnNode(`{"blue":["10.128.2.0/23"]}`, "", mac), "", model.AnnotationOverlaySubnets},
		"IPv6 only":                   {ovnNode(`{"default":["fd01::/64"]}`, "", mac), "", model.AnnotationOverlaySubnets},
		"too long":                    {ovnNode(long, "", mac), "", model.AnnotationOverlaySubnets},
		"no range":                    {ovnNode("", "10.132.1.0", mac), "", model.AnnotationOverlaySubnet},
		"IPv6":                        {ovnNode("", "fd01::/64", mac), "", model.AnnotationOverlaySubnet},
		"a mapped range":              {ovnNode("", "::ffff:10.132.1.0/120", mac), "", model.AnnotationOverlaySubnet},
		"beyond the ranges":           {ovnNode("", "10.96.0.0/12", mac), "", "--hybrid-overlay"},
		"more than a range":           {ovnNode("", "10.128.0.0/13", mac), "", "--hybrid-overlay"},
		"everything":                  {ovnNode(`{"default":["0.0.0.0/0"]}`, "", mac), "", "--hybrid-overlay"},
		"a range of the host's world": {ovnNode("", "8.8.8.8/32", mac), "", "--hybrid-overlay"},
	} {
		h := NewHybrid("self", ovnRanges)
		got, _ := h.Snapshot(model.MakeSnapshot(nil, []*model.Node{c.node}, nil, nil)).Nodes.Get("n")
		problems := strings.Join(h.Problems(), "\n")
		if !got.Foreign || got.Fabric != "vxlan" || (c.problems == "") != (problems == "") || !strings.Contains(problems, c.problems) || c.problems != "" && !strings.Contains(problems, "node n ") {
			t.Errorf("%s: %+v, problems %q", name, got, problems)
		}
		if c.cidr == "" && (len(got.PodCIDRs) > 0 || got.VTEP != model.MAC{}) || c.cidr != "" && (len(got.PodCIDRs) != 1 || got.PodCIDRs[0].String() != c.cidr) {
			t.Errorf("%s: pod ranges %v, want %q", name, got.PodCIDRs, c.cidr)
		}
	}
}

// TestHybridKeepsOwnNodes checks which nodes stay as they are: all without the setting, this node, those of Isthmus,
// and those where Isthmus has not started yet.
func TestHybridKeepsOwnNodes(t *testing.T) {
	const mac, subnets = "0a:58:0a:80:02:03", `{"default":["10.128.2.0/23"]}`
	ours := func(change func(*model.Node)) *model.Node {
		n := ovnNode(subnets, "10.132.1.0/24", mac)
		change(n)
		return n
	}
	for name, c := range map[string]struct {
		node   *model.Node
		ranges []netip.Prefix
	}{
		"not set":           {ovnNode(subnets, "", mac), nil},
		"this node":         {ours(func(n *model.Node) { n.Name = "self" }), ovnRanges},
		"a mode":            {ours(func(n *model.Node) { n.Fabric = "auto" }), ovnRanges},
		"a MAC":             {ours(func(n *model.Node) { n.VTEP = VTEP("n") }), ovnRanges},
		"a tunnel address":  {ours(func(n *model.Node) { n.Tunnel = netip.MustParseAddr("192.0.2.1") }), ovnRanges},
		"assigned, not run": {ovnNode("", "10.132.1.0/24", ""), ovnRanges},
		"no annotations":    {ovnNode("", "", mac), ovnRanges},
	} {
		h := NewHybrid("self", c.ranges)
		if got, _ := h.Snapshot(model.MakeSnapshot(nil, []*model.Node{c.node}, nil, nil)).Nodes.Get(c.node.Name); got != c.node || len(h.Problems()) > 0 {
			t.Errorf("%s: replaced by %+v, problems %q", name, got, h.Problems())
		}
	}
}

// TestHybridSharesNodes checks that a later snapshot has the same replacement until the node changes: compilers compare
// pointers.
func TestHybridSharesNodes(t *testing.T) {
	h := NewHybrid("self", ovnRanges)
	a := ovnNode("", "10.132.1.0/24", "0a:58:0a:80:02:03")
	first := h.Snapshot(model.MakeSnapshot(nil, []*model.Node{a}, nil, nil))
	b := *a
	b.Name = "b"
	second := h.Snapshot(model.MakeSnapshot(nil, []*model.Node{a, &b}, nil, nil))
	if changed := slices.Collect(second.Nodes.Changes(first.Nodes)); !slices.Equal(changed, []string{"b"}) {
		t.Errorf("changed %q, want only b", changed)
	}
	moved := *a
	moved.Overlay.Subnet = "10.96.0.0/12"
	third := h.Snapshot(model.MakeSnapshot(nil, []*model.Node{&moved, &b}, nil, nil))
	if n, _ := third.Nodes.Get("n"); len(n.PodCIDRs) > 0 || len(h.Problems()) != 1 {
		t.Errorf("after a change %+v, problems %q", n, h.Problems())
	}
	if fourth := h.Snapshot(model.MakeSnapshot(nil, nil, nil, nil)); fourth.Nodes.Len() > 0 || len(h.Problems()) > 0 {
		t.Errorf("without nodes %d nodes, problems %q", fourth.Nodes.Len(), h.Problems())
	}
}

// TestHybridPublish checks what a node publishes, and that it overwrites no range of another writer.
func TestHybridPublish(t *testing.T) {
	ranges := []netip.Prefix{netip.MustParsePrefix("fd44::/64"), netip.MustParsePrefix("10.244.9.0/24")}
	windows := model.MAC{0, 0x15, 0x5d, 0, 0, 9}
	for name, c := range map[string]struct {
		node   *model.Node
		ranges []netip.Prefix
		info   model.NodeInfo
		want   model.NodeInfo
		why    string
	}{
		"Linux": {ovnNode("", "", ""), ranges, model.NodeInfo{},
			model.NodeInfo{VTEP: VTEP("n"), Overlay: model.Overlay{Subnet: "10.244.9.0/24", MAC: VTEP("n").String()}}, ""},
		"again": {ovnNode("", "10.244.9.0/24", "00:00:00:00:00:01"), ranges, model.NodeInfo{},
			model.NodeInfo{VTEP: VTEP("n"), Overlay: model.Overlay{Subnet: "10.244.9.0/24", MAC: VTEP("n").String()}}, ""},
		"Windows": {&model.Node{Name: "n", OS: model.Windows}, ranges, model.NodeInfo{VTEP: windows},
			model.NodeInfo{VTEP: windows, Overlay: model.Overlay{Subnet: "10.244.9.0/24", MAC: windows.String()}}, ""},
		"Windows without tunnel": {&model.Node{Name: "n", OS: model.Windows}, ranges, model.NodeInfo{}, model.NodeInfo{}, ""},
		"another range":          {ovnNode("", "10.132.1.0/24", ""), ranges, model.NodeInfo{}, model.NodeInfo{VTEP: VTEP("n")}, model.AnnotationOverlaySubnet},
		"a node of OVN":          {ovnNode(`{"default":["10.128.2.0/23"]}`, "", ""), ranges, model.NodeInfo{}, model.NodeInfo{VTEP: VTEP("n")}, model.AnnotationOverlaySubnets},
		"IPv6 only":              {ovnNode("", "", ""), ranges[:1], model.NodeInfo{}, model.NodeInfo{VTEP: VTEP("n")}, "IPv4"},
	} {
		got, why := NewHybrid("n", ovnRanges).Publish(c.node, c.ranges, c.info)
		if got != c.want || (c.why == "") != (why == "") || !strings.Contains(why, c.why) {
			t.Errorf("%s: %+v, %q, want %+v, %q", name, got, why, c.want, c.why)
		}
		if got, why := NewHybrid("n", nil).Publish(c.node, c.ranges, c.info); got != c.info || why != "" {
			t.Errorf("%s, not set: %+v, %q", name, got, why)
		}
	}
}

func TestValidateHybrid(t *testing.T) {
	good := Defaults()
	good.VNI = HybridVNI
	if err := good.ValidateHybrid(ovnRanges); err != nil {
		t.Error(err)
	}
	if err := Defaults().ValidateHybrid(nil); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"fd00::/8", "0.0.0.0/0", "10.0.0.1/8", "::ffff:10.0.0.0/104"} {
		if err := good.ValidateHybrid([]netip.Prefix{netip.MustParsePrefix(bad)}); err == nil {
			t.Errorf("range %s is accepted", bad)
		}
	}
	for want, change := range map[string]func(*Config){"VNI 4096": func(c *Config) { c.VNI = 4096 }, "fabric routes": func(c *Config) { c.Mode = Routes }, "fabric none": func(c *Config) { c.Mode = None }} {
		c := good
		change(&c)
		if err := c.ValidateHybrid(ovnRanges); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error about %s, got %v", want, err)
		}
	}
}

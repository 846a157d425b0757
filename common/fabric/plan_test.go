// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"flag"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
	"sigs.k8s.io/yaml"

	"github.com/isthmus-net/isthmus/common/model"
)

var update = flag.Bool("update", false, "write the plans into the golden files")

// golden is the file cluster.yaml of a case.
type golden struct {
	Mode       Mode
	VNI        uint32
	MTU        int
	Exceptions []netip.Prefix
	Self       struct {
		Name      string
		PodCIDRs  []netip.Prefix
		Addresses []netip.Addr
		Underlay  []netip.Prefix
		MTU       int
	}
	Peers []struct {
		Node      string
		OS        model.OS
		Addresses []netip.Addr
		PodCIDRs  []netip.Prefix
		Fabric    string
		VTEP      string
		Tunnel    netip.Addr
		Foreign   bool
	}
}

func (g golden) input(t *testing.T) (Config, Self, []model.Route) {
	t.Helper()
	c := Defaults()
	if g.Mode != "" {
		c.Mode = g.Mode
	}
	if g.VNI != 0 {
		c.VNI = g.VNI
	}
	c.MTU, c.Exceptions = g.MTU, g.Exceptions
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	var peers []model.Route
	for _, p := range g.Peers {
		r := model.Route{Node: p.Node, OS: p.OS, Addresses: p.Addresses, PodCIDRs: p.PodCIDRs, Foreign: p.Foreign, NodeInfo: model.NodeInfo{Fabric: p.Fabric, Tunnel: p.Tunnel}}
		if r.OS == "" {
			r.OS = model.Linux
		}
		if p.VTEP != "" {
			mac, err := model.ParseMAC(p.VTEP)
			if err != nil {
				t.Fatal(err)
			}
			r.VTEP = mac
		}
		peers = append(peers, r)
	}
	return c, Self(g.Self), peers
}

// TestGolden checks every case of testdata, in the order of the file and in other orders.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("no cases", err)
	}
	for _, name := range files {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			a := txtar.Parse(text)
			var g golden
			if err := yaml.UnmarshalStrict(a.Files[0].Data, &g); err != nil {
				t.Fatal(err)
			}
			c, self, peers := g.input(t)
			plan := Make(c, self, peers)
			checkPlan(t, self, peers, plan)
			if *update {
				a.Files = []txtar.File{a.Files[0], {Name: "plan", Data: []byte(plan.Dump())}}
				if err := os.WriteFile(name, txtar.Format(a), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if len(a.Files) < 2 || plan.Dump() != string(a.Files[1].Data) {
				t.Errorf("plan differs (-update rewrites it):\n%s", plan.Dump())
			}
			for range 5 {
				rand.Shuffle(len(peers), func(i, j int) { peers[i], peers[j] = peers[j], peers[i] })
				if again := Make(c, self, peers); !reflect.DeepEqual(again, plan) {
					t.Errorf("another order of nodes gives another plan:\n%s", again.Dump())
				}
			}
		})
	}
}

// checkPlan checks the properties that every plan must have.
func checkPlan(t *testing.T, self Self, peers []model.Route, p *Plan) {
	t.Helper()
	claimed := make(map[netip.Prefix]string)
	for _, peer := range peers {
		for _, c := range peer.PodCIDRs {
			claimed[c] = peer.Node
		}
	}
	var all []netip.Prefix
	behind := make(map[model.MAC]string) // the device has one node for a MAC
	for _, h := range p.Hops {
		if other := behind[h.VTEP]; h.Via == VXLAN && other != "" && other != h.Node {
			t.Errorf("nodes %s and %s are both behind MAC %s", other, h.Node, h.VTEP)
		}
		behind[h.VTEP] = h.Node
		if claimed[h.Prefix] != h.Node {
			t.Errorf("hop %s leads to a node without that range", h)
		}
		if h.Via == VXLAN && (p.Tunnel == nil || h.VTEP == (model.MAC{}) || h.Underlay.Is6() != p.Tunnel.Local.Is6()) {
			t.Errorf("hop %s has no end, or no MAC, or another family than the tunnel", h)
		}
		if h.Via == Routes && h.Underlay.Is6() != h.Prefix.Addr().Is6() {
			t.Errorf("hop %s goes by another family", h)
		}
		all = append(all, h.Prefix)
	}
	all = append(all, p.Own...)
	for i, a := range all {
		for _, b := range all[:i] {
			if a.Overlaps(b) {
				t.Errorf("%s and %s overlap", a, b)
			}
		}
		for _, peer := range peers {
			for _, u := range peer.Addresses {
				if a.Contains(u) {
					t.Errorf("%s contains %s, the address of %s", a, u, peer.Node)
				}
			}
		}
	}
	if p.NAT != nil {
		kept := func(a netip.Addr) bool {
			return slices.ContainsFunc(p.NAT.Keep, func(k netip.Prefix) bool { return k.Contains(a) })
		}
		for _, peer := range peers {
			for _, a := range peer.Addresses {
				if peer.OS != model.Windows && !peer.Foreign && !kept(a) {
					t.Errorf("%s of node %s is masqueraded", a, peer.Node)
				}
			}
			for _, c := range peer.PodCIDRs {
				if !kept(c.Addr()) {
					t.Errorf("pods %s of node %s are masqueraded", c, peer.Node)
				}
			}
		}
		for i, a := range p.NAT.Keep[1:] {
			if a.Overlaps(p.NAT.Keep[i]) {
				t.Errorf("%s and %s overlap", a, p.NAT.Keep[i])
			}
		}
	}
}

// TestPairsAgree checks that two nodes agree on the path between them.
func TestPairsAgree(t *testing.T) {
	cidr := []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24"), netip.MustParsePrefix("10.2.0.0/24")}
	for _, segments := range [][2]string{{"172.16.0.1/24", "172.16.0.2/24"}, {"172.16.0.1/24", "172.16.1.2/24"}} {
		for _, a := range []Mode{Auto, Routes, VXLAN, None} {
			for _, b := range []Mode{Auto, Routes, VXLAN, None} {
				see := func(me, you int, mine, yours Mode) []Hop {
					c := Defaults()
					c.Mode = mine
					u, v := netip.MustParsePrefix(segments[me]), netip.MustParsePrefix(segments[you])
					return Make(c, Self{Name: "me", PodCIDRs: cidr[me : me+1], Underlay: []netip.Prefix{u}, MTU: 1500},
						[]model.Route{{Node: "you", OS: model.Linux, Addresses: []netip.Addr{v.Addr()}, PodCIDRs: cidr[you : you+1], NodeInfo: model.NodeInfo{Fabric: string(yours)}}}).Hops
				}
				there, back := see(0, 1, a, b), see(1, 0, b, a)
				if len(there) != len(back) || len(there) > 0 && there[0].Via != back[0].Via {
					t.Errorf("%v, %s and %s: %v there, %v back", segments, a, b, there, back)
				}
			}
		}
	}
}

func TestValidate(t *testing.T) {
	if err := Defaults().Validate(); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Config){
		"fabric \"mesh\"":      func(c *Config) { c.Mode = "mesh" },
		"VNI 1":                func(c *Config) { c.VNI = 1 },
		"VNI 16777216":         func(c *Config) { c.VNI = 1 << 24 },
		"VXLAN port 0":         func(c *Config) { c.Port = 0 },
		"MTU 1279":             func(c *Config) { c.MTU = 1279 },
		"exception 10.0.0.1/8": func(c *Config) { c.Exceptions = []netip.Prefix{netip.MustParsePrefix("10.0.0.1/8")} },
	} {
		c := Defaults()
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error about %s, got %v", want, err)
		}
	}
}

func TestPodMTU(t *testing.T) {
	for _, c := range []struct {
		mode   Mode
		mtu    int
		outer6 bool
		want   int
	}{{Auto, 0, false, 1450}, {Auto, 0, true, 1430}, {VXLAN, 0, false, 1450}, {Routes, 0, true, 1500}, {None, 0, false, 1500}, {VXLAN, 1400, false, 1400}} {
		if got := (Config{Mode: c.mode, MTU: c.mtu}).PodMTU(1500, c.outer6); got != c.want {
			t.Errorf("%+v: MTU %d", c, got)
		}
	}
}

// FuzzMake checks the rules of plans for arbitrary nodes.
func FuzzMake(f *testing.F) {
	f.Add(uint64(1), uint8(0))
	f.Add(uint64(7), uint8(2))
	f.Fuzz(func(t *testing.T, seed uint64, mode uint8) {
		r := rand.New(rand.NewPCG(seed, 2))
		c := Defaults()
		c.Mode = []Mode{Auto, Routes, VXLAN, None}[mode%4]
		addr := func() netip.Addr {
			if r.IntN(3) == 0 {
				return netip.AddrFrom16([16]byte{0xfd, 0, 15: byte(r.IntN(8)), 3: byte(r.IntN(2))})
			}
			return netip.AddrFrom4([4]byte{10, byte(r.IntN(3)), 0, byte(r.IntN(8))})
		}
		prefixes := func(most int) (all []netip.Prefix) {
			for range r.IntN(most + 1) {
				a := addr()
				all = append(all, netip.PrefixFrom(a, a.BitLen()-r.IntN(25)).Masked())
			}
			return all
		}
		self := Self{Name: "self", PodCIDRs: prefixes(2), MTU: r.IntN(9000)}
		for range r.IntN(3) {
			a := addr()
			self.Underlay = append(self.Underlay, netip.PrefixFrom(a, a.BitLen()-r.IntN(9)))
		}
		var peers []model.Route
		for i := range r.IntN(6) {
			p := model.Route{Node: string(rune('a' + i)), OS: model.Linux, PodCIDRs: prefixes(3), NodeInfo: model.NodeInfo{Fabric: []string{"", "auto", "routes", "vxlan", "none", "?"}[r.IntN(6)]}}
			if p.Foreign = r.IntN(4) == 0; p.Foreign {
				p.Fabric, p.VTEP = "vxlan", VTEP([]string{"a", "b", "x"}[r.IntN(3)])
			}
			for range r.IntN(3) {
				p.Addresses = append(p.Addresses, addr())
			}
			peers = append(peers, p)
		}
		checkPlan(t, self, peers, Make(c, self, peers))
	})
}

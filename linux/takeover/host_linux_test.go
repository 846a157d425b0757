// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/isthmus-net/isthmus/common/endpoint"
	"github.com/isthmus-net/isthmus/linux/link"
	"github.com/isthmus-net/isthmus/test/netns"
)

// onHost calls f in a network namespace that takes the place of the node. There eth1 has the index of the plan's
// bridge, and a veth pair those of its first pod.
func onHost(t *testing.T, f func(h *Host, p *Plan) error) {
	t.Helper()
	if os.Getuid() != 0 || testing.Short() {
		t.Skip("needs root")
	}
	plan, _ := Make(node(), name)
	if err := netns.ForTest(t).Do(func() error {
		pod := plan.Pods[0]
		eth1 := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth1", Index: plan.Bridge.Index}, PeerName: "eth2"}
		veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "other", Index: pod.Index}, PeerName: "peer"}
		for _, l := range []netlink.Link{eth1, veth} {
			if err := netlink.LinkAdd(l); err != nil {
				return err
			}
		}
		peer, err := netlink.LinkByName("peer")
		if err != nil {
			return err
		}
		for i := range plan.Pods {
			plan.Pods[i].PeerIndex = peer.Attrs().Index
		}
		store, err := endpoint.Open(t.TempDir())
		if err != nil {
			return err
		}
		h, err := NewHost(store, filepath.Join(t.TempDir(), "links"))
		if err != nil {
			return err
		}
		defer h.Close()
		return f(h, plan)
	}); err != nil {
		t.Error(err)
	}
}

// shape describes the interfaces of the namespace and their addresses.
func shape() (string, error) {
	links, err := link.Whole(netlink.LinkList)
	if err != nil {
		return "", err
	}
	var all []string
	for _, l := range links {
		a := l.Attrs()
		addrs, err := link.Whole(func() ([]netlink.Addr, error) { return netlink.AddrList(l, netlink.FAMILY_ALL) })
		if err != nil {
			return "", err
		}
		all = append(all, fmt.Sprintln(a.Name, a.Index, a.HardwareAddr, a.Alias, a.MasterIndex, a.Flags&net.FlagUp, addrs))
	}
	return strings.Join(all, ""), nil
}

// A node that restarted has none of the interfaces of a plan. Others have their indexes, and stay as they are.
func TestPlanOfAnEarlierBoot(t *testing.T) {
	onHost(t, func(h *Host, p *Plan) error {
		p.Boot = "another boot"
		conf := filepath.Join(t.TempDir(), "10-flannel.conflist")
		if err := os.WriteFile(conf, nil, 0o600); err != nil {
			return err
		}
		for i := range p.Steps {
			if p.Steps[i].Kind == KeepConf {
				p.Steps[i].Path = conf
			}
		}
		was, err := shape()
		if err != nil {
			return err
		}
		progress, file := Begin(p), &memory{}
		check := func(when string, err error) {
			t.Helper()
			now, failed := shape()
			if err != nil || failed != nil || now != was {
				t.Errorf("%s: %v, %v, interfaces\n%swant\n%s", when, err, failed, now, was)
			}
		}
		check("forward", Forward(progress, h, file.save, silent))
		if _, err := os.Stat(conf + AsideSuffix); err != nil {
			t.Error(err)
		}
		check("for mode policy", h.Leave(p, t.TempDir()))
		check("back", Reverse(progress, 0, h, file.save, silent))
		if _, err := os.Stat(conf); err != nil {
			t.Error(err)
		}
		return nil
	})
}

// A bridge whose index another interface has is not made, and its addresses go nowhere else.
func TestIndexOfTheBridgeIsTaken(t *testing.T) {
	onHost(t, func(h *Host, p *Plan) error {
		was, err := shape()
		if err != nil {
			return err
		}
		failed := h.Undo(p, Step{Kind: RemoveBridge})
		now, err := shape()
		if failed == nil || !strings.Contains(failed.Error(), "cni0") || now != was {
			t.Errorf("%v, interfaces\n%swant\n%s", failed, now, was)
		}
		return err
	})
}

// The bridge is made again with its index, also after that was done in part.
func TestBridgeIsMadeAgain(t *testing.T) {
	onHost(t, func(h *Host, p *Plan) error {
		p.Bridge.Index = 77
		for range 2 {
			if err := h.Undo(p, Step{Kind: RemoveBridge}); err != nil {
				return err
			}
			if index, err := link.Index("cni0"); err != nil || index != 77 {
				t.Errorf("index %d, %v, want 77", index, err)
			}
		}
		return nil
	})
}

// A plan names the boot of the node.
func TestBootOfAPlan(t *testing.T) {
	onHost(t, func(h *Host, _ *Plan) error {
		if err := netns.Bridge("cni0"); err != nil {
			return err
		}
		network := node().Network
		network.Leases = t.TempDir()
		n, err := Inspect(network, nil, Sources{StateDir: t.TempDir(), Cache: t.TempDir()})
		if err != nil {
			return err
		}
		if n.Bridge.Addresses = prefixes("10.244.1.1/24"); h.boot == "" || n.Boot != h.boot {
			t.Errorf("boot %q, want %q", n.Boot, h.boot)
		}
		if p, reasons := Make(n, name); p == nil || p.Boot != h.boot {
			t.Errorf("plan %+v, reasons %q, want boot %q", p, reasons, h.boot)
		}
		return nil
	})
}

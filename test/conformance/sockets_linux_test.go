// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/netns"
)

// TestAdapter finds the interfaces of two pods, which network namespaces represent, and sends between them. The
// zones differ: the namespace of A has one interface more.
func TestAdapter(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make network namespaces")
	}
	spaces := []*netns.NS{netns.ForTest(t), netns.ForTest(t), netns.ForTest(t)}
	for _, ns := range spaces {
		if err := ns.Do(netns.TrustAddresses); err != nil {
			t.Fatal(err)
		}
	}
	for _, ends := range [][2]netns.End{{{NS: spaces[0], Name: "first"}, {NS: spaces[2], Name: "first"}}, {{NS: spaces[0], Name: "eth0", Index: 70, MTU: 1400}, {NS: spaces[1], Name: "eth0", MTU: 1400}}} {
		if err := netns.Connect(ends[0], ends[1]); err != nil {
			t.Fatal(err)
		}
	}
	pods := []pod{{compartment: 0, ip: netip.MustParseAddr("10.1.0.10")}, {compartment: 1, ip: netip.MustParseAddr("10.1.0.11")}}
	for i, p := range pods {
		if err := spaces[i].Do(func() error { return netns.AddAddresses("eth0", netip.PrefixFrom(p.ip, 24)) }); err != nil {
			t.Fatal(err)
		}
	}
	s := sockets{func(id uint32, f func() error) error { return spaces[id].Do(f) }}
	for i := range pods {
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			has, err := s.Adapter(pods[i])
			if err != nil {
				t.Fatal(err)
			}
			if has.linkLocal.IsValid() && has.linkLocal.Zone() != "" && has.mtu == 1400 && spaces[i].Do(func() error { return listen(has.linkLocal) }) == nil {
				pods[i].ip = has.linkLocal
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("pod %d has %+v", i, has)
			}
		}
	}
	if pods[0].ip.Zone() != "70" || pods[1].ip.Zone() == "70" {
		t.Errorf("addresses %s and %s: want different zones", pods[0].ip, pods[1].ip)
	}
	for range 2 {
		if reached, err := s.Send(t.Context(), pods[0], pods[1], packet{model.TCP, probePort}, 20*time.Second); !reached || err != nil {
			t.Errorf("%s to %s: %t, %v", pods[0].ip, pods[1].ip, reached, err)
		}
		pods[0], pods[1] = pods[1], pods[0]
	}
	if has, err := s.Adapter(pod{ip: netip.MustParseAddr("192.0.2.1")}); err != nil || has != (adapter{}) {
		t.Errorf("a pod without its address has %+v, %v", has, err)
	}
}

// listen returns an error while the kernel has not yet assigned an address to its interface.
func listen(ip netip.Addr) error {
	l, err := net.Listen("tcp", netip.AddrPortFrom(ip, 0).String())
	if err != nil {
		return err
	}
	return l.Close()
}

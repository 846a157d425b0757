// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"net/netip"
	"os"
	"runtime"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/isthmus-net/isthmus/linux/bpfobj"
	"github.com/isthmus-net/isthmus/linux/loader"
	"github.com/isthmus-net/isthmus/linux/policymap"
)

// While a device of the node receives IP in IP or GRE, pods send it to pods only: the tunnels of all nodes accept it from any
// host. Other protocols, and nodes without such a device, are not affected.
func TestTunnelsDirectlyInIP(t *testing.T) {
	bothFamilies(t, func(t *testing.T, v6 bool) {
		b := newBench(t)
		leaveNamespace(t)
		b.under(tableOpen)
		send := func(protocol layers.IPProtocol, arrives bool, want int) {
			t.Helper()
			f := frame(out, ip4(out, protocol), gopacket.Payload("inner packet"))
			if v6 {
				f = chain(out, options, [][]byte{extension(byte(protocol), 8)}, gopacket.Payload("inner packet"))
			}
			b.expect(out, f, arrives, want)
		}
		kinds := []layers.IPProtocol{layers.IPProtocolIPv4, layers.IPProtocolIPv6, layers.IPProtocolGRE}
		peer := map[bool]netip.Addr{false: peer4, true: peer6}[v6]
		if v6 { // without forwarding, the kernel does not say whether a route takes a packet out
			send(layers.IPProtocolIPv6, false, bpfobj.DropTunnel)
			send(253, true, bpfobj.CountEgressAllow)
		}
		forward6(t)
		for _, protocol := range kinds {
			send(protocol, true, bpfobj.CountEgressAllow) // no device
		}
		must(t, b.path.SetTunnelKinds(map[loader.TunnelKind]int{{Protocol: 4}: 7, {Protocol: 41}: 7, {Protocol: 47}: 8}))
		for _, protocol := range kinds {
			send(protocol, false, bpfobj.DropTunnel)
		}
		send(esp, true, bpfobj.CountEgressAllow)
		must(t, b.path.Execute(&policymap.Writes{Peers: []policymap.PeerWrite{{Addr: peer, Pod: true}}}))
		for _, protocol := range kinds {
			send(protocol, true, nothing)
		}
		must(t, b.path.SetTunnelKinds(nil))
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// leaveNamespace moves the test permanently to a new network namespace.
func leaveNamespace(t *testing.T) {
	t.Helper()
	runtime.LockOSThread()
	must(t, unix.Unshare(unix.CLONE_NEWNET))
}

// forward6 makes the host forward IPv6 packets.
func forward6(t *testing.T) {
	t.Helper()
	must(t, os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0))
}

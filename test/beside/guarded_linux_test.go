// SPDX-License-Identifier: Apache-2.0

package beside_test

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/cluster"
)

// closed isolates the pods of a namespace.
const closed = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: closed, namespace: guarded}
spec: {podSelector: {}, policyTypes: [Ingress, Egress]}
`

// floodPort is where packets arrive at pods all the time.
const floodPort = 7999

// guarded sends packets to addresses of the second node before pods have them. No process of a chained pod receives one that policy
// denies; one in a pod that policy does not select does.
func (b *bench) guarded() {
	b.t.Helper()
	if err := b.cluster.Manifests.Put("closed", closed); err != nil {
		b.t.Fatal(err)
	}
	stop := b.flood(b.cluster.Nodes[1])
	for i := range 6 {
		if got := b.received("guarded", fmt.Sprintf("closed-%d", i)); got > 0 {
			b.y.unpoliced += got
			b.t.Errorf("pod %d received %d packets that policy denies", i, got)
		}
	}
	if b.received("default", "open") == 0 {
		b.t.Error("a pod without policy received nothing: the packets do not arrive")
	}
	stop()
	if err := b.cluster.Manifests.Drop("closed"); err != nil {
		b.t.Error(err)
	}
}

// flood sends to the first addresses of a node's pods until stop is called: from outside, or from a pod of the other node
// if the network does not connect the outside.
func (b *bench) flood(n *cluster.Node) (stop func()) {
	b.t.Helper()
	outside, addresses := b.cluster.Outside()
	if b.network.overlay {
		sender := b.attach(b.cluster.Nodes[0], "default", "sender")
		outside, addresses = sender.NS, sender.IPs
	}
	pods := n.PodCIDRs[0].Addr()
	from := addresses[slices.IndexFunc(addresses, func(a netip.Addr) bool { return a.Is6() == pods.Is6() })]
	var conn *net.UDPConn
	err := outside.Do(func() (err error) {
		conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0)))
		return err
	})
	if err != nil {
		b.t.Fatal(err)
	}
	var ended atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !ended.Load() {
			to := pods
			for range 100 {
				to = to.Next()
				_, _ = conn.WriteToUDPAddrPort([]byte("flood"), netip.AddrPortFrom(to, floodPort)) // absent hosts answer with errors
			}
			time.Sleep(2 * time.Millisecond)
		}
	}()
	return func() { ended.Store(true); <-done; conn.Close() }
}

// received attaches a pod, and counts what a process in it receives during the first second.
func (b *bench) received(namespace, name string) (packets int) {
	b.t.Helper()
	p := b.attach(b.cluster.Nodes[1], namespace, name)
	var conn net.PacketConn
	err := p.NS.Do(func() (err error) { conn, err = net.ListenPacket("udp", fmt.Sprintf(":%d", floodPort)); return err })
	if err != nil {
		b.t.Fatal(err)
	}
	defer conn.Close()
	if a := p.IPs[0].AsSlice(); a[len(a)-1] > 100 {
		b.t.Fatalf("pod %s has address %s, to which nothing is sent", name, p.IPs[0])
	}
	end := time.Now().Add(time.Second)
	if err := conn.SetReadDeadline(end); err != nil {
		b.t.Fatal(err)
	}
	for {
		if _, _, err := conn.ReadFrom(make([]byte, 64)); err != nil {
			return packets
		}
		packets++
	}
}

// attach makes a pod on a node.
func (b *bench) attach(n *cluster.Node, namespace, name string) *cluster.Pod {
	b.t.Helper()
	pod := &model.Pod{PodID: model.PodID{Namespace: namespace, Name: name}, Node: n.Name}
	if err := b.cluster.Manifests.WritePod(pod); err != nil {
		b.t.Fatal(err)
	}
	p, _, err := b.cluster.Attach(ctx, pod)
	if err != nil {
		b.t.Fatal(err)
	}
	return p
}

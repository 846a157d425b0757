// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/cluster"
	"github.com/isthmus-net/isthmus/test/traffic"
)

// annotated has pods that request addresses: the first two from the range of linux1, the third from that of win1.
const annotated = `
apiVersion: v1
kind: Namespace
metadata: {name: test, annotations: {isthmus.dev/allowed-addresses: "10.244.0.0/16, fd44::/48"}}
---
apiVersion: v1
kind: Pod
metadata: {name: a, namespace: test, annotations: {isthmus.dev/addresses: "10.244.1.77, fd44:0:0:1::77"}}
spec: {containers: [{name: main, ports: [{name: echo, containerPort: 7000, protocol: UDP}]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: b, namespace: test}
spec: {containers: [{name: main}]}
---
apiVersion: v1
kind: Pod
metadata: {name: w, namespace: test, annotations: {isthmus.dev/addresses: "10.244.2.88, fd44:0:0:2::88"}}
spec: {nodeSelector: {kubernetes.io/os: windows}, containers: [{name: main}]}
`

// Pods have the addresses that their annotations request on both systems, also after a restart of the agent. An
// address that cannot be assigned is reported.
func TestAddressesByAnnotation(t *testing.T) {
	ctx := context.Background()
	c, pods := startCluster(t, annotated, cluster.Config{Linux: 1, Windows: 1})
	for name, want := range map[string][]string{"a": {"10.244.1.77", "fd44:0:0:1::77"}, "w": {"10.244.2.88", "fd44:0:0:2::88"}} {
		var got []string
		for _, ip := range pods[name].IPs {
			got = append(got, ip.String())
		}
		if !slices.Equal(got, want) {
			t.Errorf("pod %s has %v, want %v", name, got, want)
		}
	}
	for _, n := range c.Nodes {
		if n.OS != model.Linux {
			continue // its emulated HNS would end with it
		}
		if err := n.Restart(ctx, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Settle(ctx); err != nil {
		t.Fatal(err)
	}
	for asked, want := range map[string]struct{ node, text string }{
		"10.244.1.77":  {"linux1", "annotation isthmus.dev/addresses of pod test/other on node linux1: address 10.244.1.77 is in use by pod test/a"},
		"10.244.2.88":  {"win1", "address 10.244.2.88 is in use by pod test/w"},
		"10.244.2.2":   {"win1", "address 10.244.2.2 is reserved"},
		"10.245.0.1":   {"win1", "namespace test does not allow its pods the address 10.245.0.1"},
		"10.244.2.99":  {"linux1", "address 10.244.2.99 is in none of the pod ranges 10.244.1.0/24, fd44:0:0:1::/64"},
		"not an IP":    {"linux1", `"not an IP" is not an address`},
		"fd44:0:0:1::": {"linux1", "address fd44:0:0:1:: is reserved"},
	} {
		pod := &model.Pod{PodID: model.PodID{Namespace: "test", Name: "other"}, Node: want.node, FixedIPs: asked}
		if err := c.Manifests.WritePod(pod); err != nil {
			t.Fatal(err)
		}
		if err := c.Settle(ctx); err != nil {
			t.Fatal(err)
		}
		if _, _, err := c.Attach(ctx, pod); err == nil || !strings.Contains(err.Error(), want.text) {
			t.Errorf("%q on %s: %v, want %q", asked, want.node, err, want.text)
		}
	}
}

// The bandwidth annotations of a pod, as a runtime passes them, limit the pod, also after a restart of the agent.
func TestBandwidthByRuntime(t *testing.T) {
	const rate = 16e6
	ctx := context.Background()
	c, pods := startCluster(t, annotated[:strings.LastIndex(annotated, "---")],
		cluster.Config{Linux: 2, Bandwidth: map[string]cluster.Bandwidth{"a": {IngressRate: rate, IngressBurst: 1<<32 - 1}}})
	check := func() {
		t.Helper()
		var got float64
		for range 3 { // the machine may be busy
			if got = receives(t, pods["b"], pods["a"]); got > 0.85*rate {
				break
			}
		}
		if got < 0.85*rate || got > 1.1*rate {
			t.Errorf("%.1f Mbit/s arrive, want %.1f", got/1e6, rate/1e6)
		}
	}
	check()
	for _, n := range c.Nodes {
		if err := n.Restart(ctx, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Settle(ctx); err != nil {
		t.Fatal(err)
	}
	check()
}

// receives returns the bits per second of a connection, after the first burst.
func receives(t *testing.T, from, to *cluster.Pod) float64 {
	t.Helper()
	var ln net.Listener
	at := netip.AddrPortFrom(address(to, false), 7200).String()
	if err := to.NS.Do(func() (err error) { ln, err = net.Listen("tcp", at); return err }); err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	var c net.Conn
	if err := from.NS.Do(func() (err error) { c, err = net.DialTimeout("tcp", at, patience); return err }); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	go func() {
		for data := make([]byte, 1<<16); ; {
			if _, err := c.Write(data); err != nil {
				return
			}
		}
	}()
	r, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	go io.Copy(io.Discard, r)
	arrived := func() uint64 {
		n, err := traffic.Arrived(r.(*net.TCPConn))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	time.Sleep(500 * time.Millisecond)
	n, began := arrived(), time.Now()
	time.Sleep(2 * time.Second)
	return float64(8*(arrived()-n)) / time.Since(began).Seconds()
}

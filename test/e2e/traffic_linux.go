// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/test/netns"
	"github.com/isthmus-net/isthmus/test/traffic"
)

// trafficPort is the TCP and UDP port that the policies of talkers allow.
const trafficPort = 7001

// talkers are pods with traffic between them: near is on the client's node, far
// on another. Both ends are isolated; stranger may reach neither server.
const talkers = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: server, namespace: own}
spec:
  podSelector: {matchLabels: {role: server}}
  ingress: [{from: [{podSelector: {matchLabels: {role: client}}}], ports: [{port: 7001, protocol: UDP}, {port: 7001, protocol: TCP}]}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: client, namespace: own}
spec:
  podSelector: {matchLabels: {role: client}}
  policyTypes: [Egress]
  egress: [{to: [{podSelector: {matchLabels: {role: server}}}], ports: [{port: 7001, protocol: UDP}, {port: 7001, protocol: TCP}]}]
`

// talker is a pod of talkers.
type talker struct {
	name, uid string
	ns        *netns.NS
	address   netip.Addr
}

// startTalkers starts the pods and returns them by name.
func (l *lab) startTalkers(ctx context.Context) (map[string]*talker, error) {
	if err := l.servers(ctx); err != nil {
		return nil, err
	}
	var b strings.Builder
	b.WriteString(talkers)
	first, second := l.nodes[0].name, l.nodes[1].name
	for _, p := range [][3]string{{"client", "client", first}, {"near", "server", first}, {"far", "server", second}, {"stranger", "stranger", first}} {
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: Pod\nmetadata: {name: %s, namespace: own, labels: {role: %s}}\n"+
			"spec: {nodeName: %s, terminationGracePeriodSeconds: 1, automountServiceAccountToken: false, containers: [{name: c, image: %q, imagePullPolicy: Never}]}\n",
			p[0], p[1], p[2], pauseImage)
	}
	if err := l.apply(b.String()); err != nil {
		return nil, err
	}
	if err := l.wait("own"); err != nil {
		return nil, err
	}
	all := make(map[string]*talker)
	for _, name := range []string{"client", "near", "far", "stranger"} {
		t, err := l.talker(name)
		if err != nil {
			return nil, err
		}
		all[name] = t
	}
	return all, nil
}

// talker finds the processes of a pod of the namespace own.
func (l *lab) talker(name string) (*talker, error) { return l.talkerIn("own", name) }

func (l *lab) talkerIn(namespace, name string) (*talker, error) {
	out, err := l.kubectl("-n", namespace, "get", "pod", name, "-o", "jsonpath={.metadata.uid} {.status.podIP}")
	if err != nil {
		return nil, err
	}
	uid, ip, _ := strings.Cut(out, " ")
	t := &talker{name: name, uid: uid}
	if t.address, err = netip.ParseAddr(ip); err != nil {
		return nil, fmt.Errorf("read address of pod %s: %w", name, err)
	}
	pids, err := processesOf(uid)
	if err != nil {
		return nil, err
	}
	if len(pids) == 0 {
		return nil, fmt.Errorf("pod %s has no processes", name)
	}
	t.ns = netns.At(filepath.Join("/proc", pids[0], "ns", "net"))
	return t, nil
}

// processesOf returns the processes of a pod, found by cgroup.
func processesOf(uid string) (pids []string, err error) {
	files, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		// A process may end meanwhile.
		if text, err := os.ReadFile(f); err == nil && strings.Contains(string(text), "/pod"+uid+"/") {
			pids = append(pids, strings.Split(f, "/")[2])
		}
	}
	return pids, nil
}

// targets returns the servers that the client uses.
func targets(pods map[string]*talker) []traffic.Target {
	var all []traffic.Target
	for _, name := range []string{"near", "far"} {
		all = append(all, traffic.Target{NS: pods[name].ns, From: pods["client"].address, To: netip.AddrPortFrom(pods[name].address, trafficPort)})
	}
	return all
}

// under sends a stream and keeps connections open while something changes, and
// returns an error if a packet is lost or a connection breaks.
func (l *lab) under(what string, to []traffic.Target, from *netns.NS, rate, connections int, change func() error) error {
	open, err := traffic.Connect(from, to, connections)
	if err != nil {
		return err
	}
	stream, err := traffic.NewStream(from, to, rate)
	if err != nil {
		return err
	}
	began := time.Now()
	err = change()
	took := time.Since(began)
	got, streamErr := stream.Finish()
	broken, exchanges, resent := open.Finish()
	fmt.Printf("%s: packets=%d seconds=%.0f connections=%d lost=%d reset=%d\n", what, got.Sent, took.Seconds(), connections, got.Lost(), len(broken))
	say("%s: %d messages on the connections, %d segments sent again, %d packets lost in buffers of receivers", what, exchanges, resent, got.Overflowed)
	errs := []error{err, streamErr}
	if got.Lost() > 0 || got.Twice > 0 {
		errs = append(errs, fmt.Errorf("of %d packets %d were lost, and %d came twice", got.Sent, got.Lost(), got.Twice))
	}
	if len(broken) > 0 {
		errs = append(errs, fmt.Errorf("%d of %d connections broke, the first: %w", len(broken), connections, broken[0]))
	}
	if want := float64(rate) * took.Seconds() / 2; float64(got.Sent) < want {
		errs = append(errs, fmt.Errorf("sent %d packets in %s, want %.0f at least", got.Sent, took, want))
	}
	return errors.Join(errs...)
}

// passes reports whether a new connection from a namespace gets any answer: accepted or refused.
// Policy drops silently.
func passes(ns *netns.NS, to netip.AddrPort) (bool, error) {
	var passed bool
	err := ns.Do(func() error {
		c, err := net.DialTimeout("tcp", to.String(), time.Second)
		var timeout net.Error
		switch {
		case err == nil:
			c.Close()
			passed = true
		case errors.As(err, &timeout) && timeout.Timeout():
		case strings.Contains(err.Error(), "connection refused"):
			passed = true
		default:
			return err
		}
		return nil
	})
	return passed, err
}

// policed returns an error unless the client, and no other pod, reaches a server.
func policed(pods map[string]*talker, server *talker) error {
	for name, want := range map[string]bool{"client": true, "stranger": false} {
		got, err := passes(pods[name].ns, netip.AddrPortFrom(server.address, trafficPort))
		if err != nil {
			return fmt.Errorf("connect %s to %s: %w", name, server.name, err)
		}
		if got != want {
			return fmt.Errorf("%s reaches %s: %t, want %t", name, server.name, got, want)
		}
	}
	return nil
}

// serverAt returns a talker of which only the address is known.
func serverAt(name, ip string) (*talker, error) {
	a, err := netip.ParseAddr(ip)
	if err != nil {
		return nil, fmt.Errorf("read address of pod %s: %w", name, err)
	}
	return &talker{name: name, address: a}, nil
}

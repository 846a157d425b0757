// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/windows/hns"
	"github.com/isthmus-net/isthmus/windows/rulecounters"
)

// outside is what this program does on the host itself, outside of compartments.
type outside struct {
	// vfpctrl is nil on a system without it.
	vfpctrl rulecounters.Runner
	// send sends datagrams of one flow, and ignores answers.
	send func(to netip.AddrPort, n int) error
	// wait bounds the time until VFP shows a packet.
	wait time.Duration
}

func thisHost() (outside, error) {
	run, err := vfpControl()
	return outside{vfpctrl: run, send: sendDatagrams, wait: 10 * time.Second}, err
}

// sendDatagrams sends from a socket without a peer: an ICMP error then fails no later write.
func sendDatagrams(to netip.AddrPort, n int) error {
	c, err := net.ListenPacket("udp4", ":0")
	if err != nil {
		return err
	}
	defer c.Close()
	for range n {
		if _, err := c.WriteTo([]byte("isthmus-conformance"), net.UDPAddrFromAddrPort(to)); err != nil {
			return err
		}
	}
	return nil
}

// The flow whose rule is counted. No program needs to listen.
const (
	counterRule = "conformance-counter"
	counterPort = 47181
	// manyFlows have one datagram each, which both units count alike. Then one flow has manyPackets.
	manyFlows, manyPackets = 5, 10
)

// counterUnit reads what MatchedPackets of vfpctrl counts for a rule. The host sends to a pod, so it needs neither
// compartments nor a second pod.
func (b *bench) counterUnit(ctx context.Context, namespaces []string) (a Answer, err error) {
	defer func() { a.ID, a.Question = "ad", "does vfpctrl count packets or flows for a rule" }()
	switch {
	case len(namespaces) == 0:
		return Answer{Detail: "needs packets: give --pods"}, nil
	case b.host.vfpctrl == nil:
		return Answer{Detail: "this system has no vfpctrl"}, nil
	}
	p := &pair{bench: b}
	if p.a, err = b.findPod(ctx, namespaces[0]); err != nil {
		return a, err
	}
	defer func() { err = errors.Join(err, p.restore(ctx)) }()
	counting := rule(hns.In, hns.Allow, 1000)
	counting.ID, counting.Protocols, counting.LocalPorts = counterRule, "17", fmt.Sprint(counterPort)
	if err := p.write(ctx, p.a, append(hosts(), counting, rule(hns.In, hns.Block, 1001), rule(hns.Out, hns.Allow, 1002))...); err != nil {
		return a, err
	}
	a, err = p.countDatagrams(ctx)
	switch {
	case errors.Is(err, rulecounters.ErrMissing):
		return Answer{Detail: err.Error()}, nil
	case err != nil && ctx.Err() == nil:
		return Answer{Answer: "other output", Wrong: true, Detail: err.Error()}, nil
	}
	return a, err
}

// countDatagrams sends to the pod, and returns what the counter of the rule says.
func (p *pair) countDatagrams(ctx context.Context) (Answer, error) {
	before, _, err := p.matched(ctx)
	if err != nil {
		return Answer{}, err
	}
	to := netip.AddrPortFrom(p.a.ip, counterPort)
	for range manyFlows {
		if err := p.host.send(to, 1); err != nil {
			return Answer{Detail: "the host could not send to the pod: " + err.Error()}, nil
		}
	}
	between, member, err := p.matchedAtLeast(ctx, before+manyFlows)
	if err != nil {
		return Answer{}, err
	}
	if between-before != manyFlows {
		return Answer{Detail: fmt.Sprintf("the rule matched %d of %d datagrams of the host, each of a flow of its own: they were lost, or ACLs do not see them",
			between-before, manyFlows)}, nil
	}
	if err := p.host.send(to, manyPackets); err != nil {
		return Answer{Detail: "the host could not send to the pod: " + err.Error()}, nil
	}
	after, _, err := p.matchedAtLeast(ctx, between+manyPackets)
	if err != nil {
		return Answer{}, err
	}
	a := Answer{Detail: fmt.Sprintf("MatchedPackets grew by %d for %d datagrams of one flow; %s of the rule is the Id of the ACL", after-between, manyPackets, member)}
	switch after - between {
	case manyPackets:
		a.Answer = "packets"
	case 1:
		a.Answer = "flows"
	default:
		a.Answer, a.Wrong = fmt.Sprintf("%d of %d packets", after-between, manyPackets), true
	}
	return a, nil
}

// matchedAtLeast waits until the counter has reached a number, for at most the host's wait.
func (p *pair) matchedAtLeast(ctx context.Context, n uint64) (uint64, string, error) {
	for deadline := time.Now().Add(p.host.wait); ; {
		now, member, err := p.matched(ctx)
		if err != nil || now >= n || time.Now().After(deadline) {
			return now, member, err
		}
		select {
		case <-ctx.Done():
			return now, member, ctx.Err()
		case <-time.After(p.host.wait / 20):
		}
	}
}

// matched returns the counter of the rule, and which member of the rule is the Id of the ACL.
func (p *pair) matched(ctx context.Context) (n uint64, member string, err error) {
	output, err := p.host.vfpctrl(ctx, "/list-vmswitch-port", "/format", "1")
	if err != nil {
		return 0, "", err
	}
	ports, err := rulecounters.DecodePorts(output)
	if err != nil {
		return 0, "", fmt.Errorf("output of vfpctrl /list-vmswitch-port: %w", err)
	}
	port := ports[strings.ToLower(p.a.ID)]
	if port == "" {
		return 0, "", fmt.Errorf("vfpctrl lists %d ports, none of endpoint %s", len(ports), p.a.ID)
	}
	if output, err = p.host.vfpctrl(ctx, "/port", port, "/get-rule-counter", "/format", "1"); err != nil {
		return 0, "", err
	}
	rules, err := rulecounters.DecodeRules(output)
	if err != nil {
		return 0, "", fmt.Errorf("output of vfpctrl /get-rule-counter: %w", err)
	}
	for _, r := range rules {
		switch counterRule {
		case r.ID:
			member = "Id"
		case r.Name:
			member = "Name"
		default:
			continue
		}
		n += r.Matched
	}
	if member == "" {
		return 0, "", fmt.Errorf("vfpctrl has %d rules, none with Id or Name %q: %.300q", len(rules), counterRule, fmt.Sprint(rules))
	}
	return n, member, nil
}

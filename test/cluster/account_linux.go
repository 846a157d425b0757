// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/netns"
	"github.com/isthmus-net/isthmus/test/traffic"
)

// Account counts the new flows that a node has decided, by direction and verdict.
type Account [2][2]uint64

// Accounts reads the counters of the Linux nodes, as they are now.
func (c *Cluster) Accounts(ctx context.Context) (map[string]Account, error) {
	asked, found := time.Now(), make(map[string]Account)
	for _, n := range c.Nodes {
		if n.OS == model.Windows {
			continue
		}
		// An agent returns an earlier reading if another one takes long, and a reading may have begun earlier than asked:
		// so the second one counts.
		var last time.Time
		for deadline := time.Now().Add(2 * patience); ; time.Sleep(5 * time.Millisecond) {
			s, err := n.state()
			if err != nil {
				return nil, err
			}
			if s.verdicts == nil {
				return nil, fmt.Errorf("node %s does not count all flows", n.Name)
			}
			if s.counted.After(asked) && !last.IsZero() && s.counted != last {
				found[n.Name] = *s.verdicts
				break
			}
			if s.counted.After(asked) {
				last = s.counted
			}
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			if time.Now().After(deadline) {
				return nil, fmt.Errorf("node %s has last read its counters %s ago", n.Name, time.Since(s.counted))
			}
		}
	}
	return found, nil
}

// due returns what the Linux nodes count for flows.
func (c *Cluster) due(flows []*Flow) map[string]Account {
	due := make(map[string]Account)
	count := func(n *Node, d model.Direction, v model.Verdict) {
		a := due[n.Name]
		a[d][v]++
		due[n.Name] = a
	}
	for _, f := range flows {
		left := f.From.Pod == nil || f.Egress.Verdict == model.Allow
		if p := f.From.Pod; p != nil && !onWindows(p) {
			count(p.Node, model.Egress, f.Egress.Verdict)
		}
		if left && !onWindows(f.To) {
			count(f.To.Node, model.Ingress, f.Ingress.Verdict)
		}
	}
	return due
}

// server is a server of a pod.
type server struct {
	pod *Pod
	at  netip.AddrPort
	Port
}

// ledger is what has been counted at a moment.
type ledger struct {
	nodes   map[string]Account
	arrived map[server]uint64
	// repeated are the SYN segments that clients sent again.
	repeated uint64
}

// ledger reads everything that counts the flows.
func (c *Cluster) ledger(ctx context.Context, flows []*Flow) (l ledger, err error) {
	if l.nodes, err = c.Accounts(ctx); err != nil {
		return l, err
	}
	l.arrived = make(map[server]uint64)
	clients := make(map[*netns.NS]bool)
	for _, f := range flows {
		s := f.server()
		l.arrived[s] = c.servers.Arrived(s.at, s.Protocol)
		clients[f.From.ns] = true
	}
	for ns := range clients {
		n, err := repeatedSYNs(ns)
		if err != nil {
			return l, err
		}
		l.repeated += n
	}
	return l, nil
}

func (f *Flow) server() server {
	return server{f.To, netip.AddrPortFrom(f.Dst, f.Port), Port{f.Protocol, f.Port}}
}

// balance checks, after all flows got the verdict of the reference, that nothing else happened. Every server has got
// exactly the allowed flows: a control, which its pod sends itself, comes after whatever arrived late. Every Linux
// node has counted exactly the decisions of the reference; a SYN that was sent again may be decided again.
func (c *Cluster) balance(ctx context.Context, flows []*Flow, before ledger) error {
	allowed := make(map[server]uint64)
	for _, f := range flows {
		if f.Want == model.Allow {
			allowed[f.server()]++
		}
	}
	var errs []error
	for s := range before.arrived {
		control := traffic.Flow{NS: s.pod.NS, From: s.at.Addr(), To: s.at, Protocol: s.Protocol}
		if err := control.Try(ctx, patience); err != nil {
			return fmt.Errorf("pod %s does not reach its own server at %s %s: %w", s.pod.PodID, s.Protocol, s.at, err)
		}
		if got := c.servers.Arrived(s.at, s.Protocol) - before.arrived[s] - 1; got != allowed[s] {
			errs = append(errs, fmt.Errorf("pod %s has got %d flows at %s %s, but %d are allowed", s.pod.PodID, got, s.Protocol, s.at, allowed[s]))
		}
	}
	after, err := c.ledger(ctx, flows)
	if err != nil {
		return err
	}
	repeated := after.repeated - before.repeated
	for name, due := range c.due(flows) {
		for _, d := range model.Directions {
			for _, v := range []model.Verdict{model.Deny, model.Allow} {
				if got := after.nodes[name][d][v] - before.nodes[name][d][v]; got < due[d][v] || got > due[d][v]+repeated {
					errs = append(errs, fmt.Errorf("node %s has counted %d new flows %s %s, but %d were sent, and %d segments again", name, got, d, v, due[d][v], repeated))
				}
			}
		}
	}
	return errors.Join(errs...)
}

// repeatedSYNs returns how many SYN segments the clients of a namespace have sent again.
func repeatedSYNs(ns *netns.NS) (n uint64, err error) {
	err = ns.Do(func() error {
		text, err := os.ReadFile("/proc/thread-self/net/netstat")
		if err != nil {
			return err
		}
		var names []string
		for line := range strings.Lines(string(text)) {
			fields := strings.Fields(line)
			if len(fields) == 0 || fields[0] != "TcpExt:" {
				continue
			}
			if names == nil {
				names = fields
				continue
			}
			for i, name := range names {
				if name == "TCPSynRetrans" && i < len(fields) {
					n, err = strconv.ParseUint(fields[i], 10, 64)
					return err
				}
			}
		}
		return errors.New("the kernel does not count repeated SYN segments")
	})
	return n, err
}

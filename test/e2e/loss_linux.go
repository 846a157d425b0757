// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/isthmus-net/isthmus/test/netns"
	"github.com/isthmus-net/isthmus/test/traffic"
)

// outage is the duration of the API server's outage.
const outage = time.Minute

// loseAPIServer stops the API server for a minute. Traffic continues, policy stays, and a pod that restarts in
// that time gets its network and policy.
func (l *lab) loseAPIServer(ctx context.Context) error {
	pods, err := l.startTalkers(ctx)
	if err != nil {
		return err
	}
	// near is attached again during the outage, so the traffic goes to far.
	far := targets(pods)[1:]
	err = l.under("API server away", far, pods["client"].ns, streamRate/10, openConnections/10, func() error {
		l.control.stopAPIServer()
		began := time.Now()
		err := l.withoutAPIServer(ctx, pods)
		time.Sleep(time.Until(began.Add(outage)))
		return errors.Join(err, l.startAPIServer(ctx))
	})
	if err != nil {
		return err
	}
	if err := l.nodesReady(ctx); err != nil {
		return err
	}
	// All nodes have the new address of near, and policy changes take effect.
	return until(ctx, time.Minute, "the cluster to converge", func() error {
		near, err := l.talker("near")
		if err != nil {
			return err
		}
		if _, err := l.kubectl("-n", "own", "label", "pod", "stranger", "role=client", "--overwrite"); err != nil {
			return err
		}
		for _, from := range []string{"client", "stranger"} {
			if ok, err := passes(pods[from].ns, netip.AddrPortFrom(near.address, trafficPort)); err != nil || !ok {
				return fmt.Errorf("%s does not reach near: %w", from, err)
			}
		}
		return nil
	})
}

// withoutAPIServer checks the cluster while the API server is down.
func (l *lab) withoutAPIServer(ctx context.Context, pods map[string]*talker) error {
	for _, server := range []string{"near", "far"} {
		if err := policed(pods, pods[server]); err != nil {
			return err
		}
	}
	// The kubelet makes a new sandbox for a pod without processes.
	old, err := os.Readlink(pods["near"].ns.Path())
	if err != nil {
		return err
	}
	pids, err := processesOf(pods["near"].uid)
	if err != nil {
		return err
	}
	for _, pid := range pids {
		n, err := strconv.Atoi(pid)
		if err != nil {
			return err
		}
		if err := syscall.Kill(n, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("kill process of pod near: %w", err)
		}
	}
	return until(ctx, 45*time.Second, "a new sandbox of pod near, with its policy", func() error {
		again, err := l.newSandbox(pods["near"].uid, old)
		if err != nil {
			return err
		}
		return policed(pods, again)
	})
}

// newSandbox finds the sandbox of a pod in another network namespace than the old one.
func (l *lab) newSandbox(uid, old string) (*talker, error) {
	pids, err := processesOf(uid)
	if err != nil {
		return nil, err
	}
	for _, pid := range pids {
		path := filepath.Join("/proc", pid, "ns", "net")
		if now, err := os.Readlink(path); err != nil || now == old {
			continue
		}
		out, err := l.in(netns.At(path), "ip", "-o", l.primary().flag(), "address", "show", "dev", "eth0", "scope", "global")
		if err != nil {
			return nil, err
		}
		fields := strings.Fields(out) // number, device, inet, address/bits
		if len(fields) < 4 {
			return nil, fmt.Errorf("the new sandbox has no address: %q", out)
		}
		ip, _, _ := strings.Cut(fields[3], "/")
		return serverAt("near in its new sandbox", ip)
	}
	return nil, errors.New("the pod has no new processes")
}

// loseNode cuts a node off without notice, and checks that pods of other nodes are not affected.
// Then it starts the node as after a power failure: with its disk, but without its memory.
func (l *lab) loseNode(ctx context.Context) error {
	pods, err := l.startTalkers(ctx)
	if err != nil {
		return err
	}
	lost := l.nodes[1]
	near := []traffic.Target{targets(pods)[0]}
	err = l.under("node lost and back", near, pods["client"].ns, streamRate, openConnections, func() error {
		if err := l.stopNode(lost); err != nil {
			return err
		}
		err := until(ctx, 2*time.Minute, "the control plane to miss the node", func() error {
			return l.expect("Unknown", "get", "node", lost.name, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
		})
		if err != nil {
			return err
		}
		if err := policed(pods, pods["near"]); err != nil {
			return err
		}
		if ok, err := passes(pods["client"].ns, netip.AddrPortFrom(pods["far"].address, trafficPort)); ok {
			return fmt.Errorf("a pod of the lost node answers: %w", err)
		}
		if err := l.startNode(lost); err != nil {
			return err
		}
		return l.nodesReady(ctx)
	})
	if err != nil {
		return err
	}
	// Its pods run again, in new sandboxes, under their policies.
	err = until(ctx, 2*time.Minute, "the pods of the node", func() error {
		far, err := l.talker("far")
		if err != nil {
			return err
		}
		return policed(pods, far)
	})
	return errors.Join(err, l.reach(ctx))
}

// stopNode kills a node's first process, which ends all its other processes and mounts, and removes
// its network.
func (l *lab) stopNode(n *node) error {
	if err := n.init.Process.Kill(); err != nil {
		return fmt.Errorf("stop node %s: %w", n.name, err)
	}
	n.init.Wait() // it was killed
	if _, err := l.in(l.fabric, "ip", "link", "delete", n.name); err != nil {
		return err
	}
	return errors.Join(n.ns.Close(), os.RemoveAll(filepath.Join(n.dir, "root", "run")))
}

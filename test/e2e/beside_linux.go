// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// chart is the chart of Isthmus.
const chart = "deploy/helm/isthmus"

func (l *lab) helmProgram() string { return filepath.Join(l.dir, "helm") }

// helm runs Helm as cluster administrator, without the settings of the user.
func (l *lab) helm(args ...string) error {
	all := []string{"env"}
	for _, what := range []string{"CACHE", "CONFIG", "DATA"} {
		all = append(all, "HELM_"+what+"_HOME="+filepath.Join(l.dir, "helm-home"))
	}
	_, err := l.in(l.fabric, append(append(all, l.helmProgram(), "--kubeconfig="+l.control.admin, "--namespace="+namespace), args...)...)
	return err
}

// installBeside installs Isthmus by its chart in mode policy, and waits until all pods have policy.
func (l *lab) installBeside(ctx context.Context) error {
	colon := strings.LastIndexByte(l.reference, ':')
	err := l.helm("upgrade", "--install", "--create-namespace", "isthmus", chart, "--set", "mode=policy",
		"--set-string", "image.repository="+l.reference[:colon]+",image.tag="+l.reference[colon+1:])
	if err != nil {
		return err
	}
	if err := l.nodesReady(ctx); err != nil {
		return err
	}
	return until(ctx, time.Minute, "policy on every pod", func() error {
		attached, err := l.attachments()
		if err == nil {
			say("pods with policy: %d adopted, %d chained", attached["adopted"], attached["chained"])
		}
		return err
	})
}

// attachments counts pods by how agents attached them. It returns an error unless the runtimes of all nodes call the plugin,
// and policy is in force on all pods.
func (l *lab) attachments() (map[string]int, error) {
	counts := make(map[string]int)
	for _, n := range l.nodes {
		if text, err := os.ReadFile(n.conflist()); err != nil || !strings.Contains(string(text), "isthmus-cni") {
			return nil, fmt.Errorf("%s does not name the plugin: %v", n.conflist(), err)
		}
		agent, err := l.kubectl("-n", namespace, "get", "pods", "-l", selector, "--field-selector=spec.nodeName="+n.name, "-o", "name")
		if err != nil {
			return nil, err
		}
		out, err := l.kubectl("-n", namespace, "exec", strings.TrimSpace(agent), "--", "/isthmusctl", "endpoints")
		if err != nil {
			return nil, err
		}
		pods, err := l.podsOn(n)
		if err != nil {
			return nil, err
		}
		lines := strings.Split(out, "\n")
		for _, pod := range pods {
			i := slices.IndexFunc(lines, func(s string) bool { return strings.HasPrefix(s, pod+" ") })
			if i < 0 {
				return nil, fmt.Errorf("pod %s of node %s is not attached:\n%s", pod, n.name, out)
			}
			how := ""
			for _, word := range []string{"adopted", "chained"} {
				if strings.Contains(lines[i], " in force ") && strings.Contains(lines[i], " "+word+" ") {
					how = word
				}
			}
			if how == "" {
				return nil, fmt.Errorf("pod of node %s: %s", n.name, lines[i])
			}
			counts[how]++
		}
	}
	return counts, nil
}

// removeAndAdd removes Isthmus from beside flannel and adds it again, while pods of two nodes exchange traffic. Flannel
// and its pods must not notice; in between, no policy is in force.
func (l *lab) removeAndAdd(ctx context.Context, before map[string]string) error {
	pods, err := l.startTalkers(ctx)
	if err != nil {
		return err
	}
	inForce := func() error { return errors.Join(policed(pods, pods["near"]), policed(pods, pods["far"])) }
	if err := until(ctx, 20*time.Second, "policy", inForce); err != nil {
		return err
	}
	err = l.under("removed from beside flannel and added", targets(pods), pods["client"].ns, streamRate, openConnections, func() error {
		if err := l.removeBeside(ctx, before); err != nil {
			return err
		}
		for _, s := range []*talker{pods["near"], pods["far"]} {
			if ok, err := passes(pods["stranger"].ns, netip.AddrPortFrom(s.address, trafficPort)); err != nil || !ok {
				return fmt.Errorf("without Isthmus, stranger does not reach %s: %v", s.name, err)
			}
		}
		return l.installBeside(ctx)
	})
	if err != nil {
		return err
	}
	attached, err := l.attachments()
	if err != nil {
		return err
	}
	if want := len(l.nodes) + len(pods); attached["adopted"] < want || attached["chained"] > 0 {
		return fmt.Errorf("of pods that ran before Isthmus, %d are adopted and %d chained, want %d adopted", attached["adopted"], attached["chained"], want)
	}
	if err := inForce(); err != nil {
		return err
	}
	return l.reach(ctx)
}

// removeBeside removes Isthmus as docs/operate/beside.md says, and compares what it left with the state before it.
func (l *lab) removeBeside(ctx context.Context, before map[string]string) error {
	if err := l.helm("upgrade", "isthmus", chart, "--reset-then-reuse-values", "--set", "uninstall=true"); err != nil {
		return err
	}
	if err := l.removed(ctx); err != nil {
		return err
	}
	if err := l.helm("uninstall", "isthmus"); err != nil {
		return err
	}
	var errs []error
	for _, n := range l.nodes {
		text, err := os.ReadFile(n.conflist())
		if want := l.conflists[n.name]; err != nil || string(text) != want {
			errs = append(errs, fmt.Errorf("%s is %q, want %q: %v", n.conflist(), text, want, err))
		}
	}
	// Pods come and go: their interfaces, and the bridge of flannel with its addresses and routes, are not of Isthmus.
	before = maps.Clone(before)
	maps.DeleteFunc(before, func(what, _ string) bool {
		return strings.Contains(what, ": ip -o ") || strings.Contains(what, ": ip route ")
	})
	return errors.Join(append(errs, l.compare(before))...)
}

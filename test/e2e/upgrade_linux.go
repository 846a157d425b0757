// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// The rate of packets and the number of connections that an upgrade must not disturb.
const (
	streamRate      = 10_000
	openConnections = 200
)

// upgrade changes the image tag of the DaemonSet and then changes it back, while pods of two nodes
// exchange traffic.
func (l *lab) upgrade(ctx context.Context) error {
	pods, err := l.startTalkers(ctx)
	if err != nil {
		return err
	}
	next := l.reference + "-next"
	for _, n := range l.nodes {
		if _, err := n.inside("ctr", "--namespace=k8s.io", "images", "tag", "--force", l.reference, next); err != nil {
			return err
		}
	}
	agents, err := l.agents()
	if err != nil {
		return err
	}
	return l.under("upgrade", targets(pods), pods["client"].ns, streamRate, openConnections, func() error {
		for _, image := range []string{next, l.reference} {
			if _, err := l.kubectl("-n", namespace, "set", "image", "daemonset/isthmus-agent", "agent="+image); err != nil {
				return err
			}
			if err := l.rolledOut(); err != nil {
				return err
			}
			now, err := l.agents()
			if err != nil {
				return err
			}
			if now == agents || strings.Count(now, image+" ") != len(l.nodes) {
				return fmt.Errorf("the agents are %q and were %q, want image %s", now, agents, image)
			}
			agents = now
		}
		time.Sleep(2 * time.Second)
		return nil
	})
}

// agents lists the agents' pods with their images.
func (l *lab) agents() (string, error) {
	return l.kubectl("-n", namespace, "get", "pods", "-l", selector, "-o", "jsonpath={range .items[*]}{.metadata.name} {.spec.containers[0].image} {end}")
}

// rolledOut waits until every agent has the newest template of the DaemonSet.
func (l *lab) rolledOut() error {
	_, err := l.kubectl("-n", namespace, "rollout", "status", "daemonset/isthmus-agent", "--timeout=150s")
	return err
}

// churn starts and deletes 100 pods twice. Policy must apply to each pod, and nothing may be left
// of it.
func (l *lab) churn(ctx context.Context) error {
	const replicas, rounds = 100, 2
	pods, err := l.startTalkers(ctx)
	if err != nil {
		return err
	}
	manifest := fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: churn, namespace: own}
spec:
  replicas: %d
  selector: {matchLabels: {app: churn}}
  template:
    metadata: {labels: {app: churn, role: server}}
    spec: {terminationGracePeriodSeconds: 1, automountServiceAccountToken: false, containers: [{name: c, image: %q, imagePullPolicy: Never}]}
`, replicas, pauseImage)
	for range rounds {
		if err := l.apply(manifest); err != nil {
			return err
		}
		if _, err := l.kubectl("-n", "own", "rollout", "status", "deployment/churn", "--timeout=300s"); err != nil {
			return err
		}
		if err := l.policedAll(pods, replicas); err != nil {
			return err
		}
		if _, err := l.kubectl("-n", "own", "delete", "deployment", "churn"); err != nil {
			return err
		}
		if _, err := l.kubectl("-n", "own", "wait", "--for=delete", "pod", "-l", "app=churn", "--timeout=300s"); err != nil {
			return err
		}
	}
	return until(ctx, 30*time.Second, "the last interfaces to go", l.noLeftovers)
}

// policedAll checks for every pod of the churn which pods reach it. Their addresses must be unique.
func (l *lab) policedAll(pods map[string]*talker, want int) error {
	out, err := l.kubectl("-n", "own", "get", "pods", "-l", "app=churn", "-o", "jsonpath={range .items[*]}{.metadata.name} {.status.podIP}\n{end}")
	if err != nil {
		return err
	}
	failures := make(chan error, want)
	addresses := make(map[string]bool)
	for line := range strings.Lines(out) {
		name, ip, _ := strings.Cut(strings.TrimSpace(line), " ")
		server, err := serverAt(name, ip)
		if err != nil {
			return err
		}
		addresses[ip] = true
		go func() { failures <- policed(pods, server) }()
	}
	var errs []error
	for range strings.Count(out, "\n") {
		errs = append(errs, <-failures)
	}
	if len(addresses) != want {
		errs = append(errs, fmt.Errorf("%d pods have %d addresses", want, len(addresses)))
	}
	return errors.Join(errs...)
}

// noLeftovers returns an error unless every node has as many pod interfaces as pods.
func (l *lab) noLeftovers() error {
	for _, n := range l.nodes {
		pods, err := l.podsOn(n)
		if err != nil {
			return err
		}
		links, err := n.inside("bash", "-c", "ip -o link | grep -c ': ist[0-9a-f]' || true")
		if err != nil {
			return err
		}
		if have, want := strings.TrimSpace(links), fmt.Sprint(len(pods)); have != want {
			return fmt.Errorf("node %s has %s interfaces of pods and %s pods: %s", n.name, have, want, strings.Join(pods, " "))
		}
	}
	return nil
}

// podsOn lists the pods of a node with networks of their own, as NAMESPACE/NAME.
func (l *lab) podsOn(n *node) ([]string, error) {
	out, err := l.kubectl("get", "pods", "-A", "--field-selector=spec.nodeName="+n.name, "-o",
		`jsonpath={range .items[*]}{.spec.hostNetwork}={.metadata.namespace}/{.metadata.name} {end}`)
	if err != nil {
		return nil, err
	}
	var pods []string
	for _, word := range strings.Fields(out) {
		if host, pod, _ := strings.Cut(word, "="); host != "true" {
			pods = append(pods, pod)
		}
	}
	return pods, nil
}

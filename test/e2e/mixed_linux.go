// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// mixedStates are policies for pods of Linux, l1 and l2, and of Windows, w1 and w2, and the pairs
// of pods that they deny.
var mixedStates = []struct {
	name, manifests string
	denied          []string
}{
	{"no policy", "", nil},
	{"a NetworkPolicy of a Windows pod admits one Linux pod", networkPolicy("into-w1", "w1", "Ingress", "ingress", "from", "l1"),
		[]string{"l2 w1", "w2 w1"}},
	{"a NetworkPolicy of a Linux pod admits one Windows pod", networkPolicy("into-l2", "l2", "Ingress", "ingress", "from", "w2"),
		[]string{"l1 l2", "w1 l2"}},
	{"a Windows pod may send to one Linux pod", networkPolicy("from-w2", "w2", "Egress", "egress", "to", "l1"),
		[]string{"w2 w1", "w2 l2"}},
	{"a Linux pod may send to one Windows pod", networkPolicy("from-l1", "l1", "Egress", "egress", "to", "w1"),
		[]string{"l1 l2", "l1 w2"}},
	{"a ClusterNetworkPolicy denies Windows to all of the namespace but one", `
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: mixed}
spec:
  tier: Admin
  priority: 10
  subject: {namespaces: {matchLabels: {kubernetes.io/metadata.name: mixed}}}
  ingress:
  - {action: Accept, from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: w1}}}}]}
  - {action: Deny, from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {system: windows}}}}]}
`, []string{"w2 l1", "w2 l2", "w2 w1"}},
	{"a ClusterNetworkPolicy of Windows pods denies Linux over NetworkPolicy", networkPolicy("into-w1", "w1", "Ingress", "ingress", "from", "l1") + `
---
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: mixed}
spec:
  tier: Admin
  priority: 10
  subject: {pods: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: mixed}}, podSelector: {matchLabels: {system: windows}}}}
  ingress: [{action: Deny, from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {system: linux}}}}]}]
`, []string{"l1 w1", "l2 w1", "l1 w2", "l2 w2", "w2 w1"}},
}

func networkPolicy(name, subject, direction, rules, peers, peer string) string {
	return fmt.Sprintf(`
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: %s, namespace: mixed}
spec: {podSelector: {matchLabels: {app: %s}}, policyTypes: [%s], %s: [{%s: [{podSelector: {matchLabels: {app: %s}}}]}]}
`, name, subject, direction, rules, peers, peer)
}

// mixed adds a Windows node to the cluster and tries names, Services, the outside, and every pair of pods of both
// systems under policies that select either system.
func (l *lab) mixed(ctx context.Context) (err error) {
	w, err := l.startWindows(ctx)
	if err != nil {
		return err
	}
	defer func() {
		_, deleteErr := l.kubectl("delete", "namespace", "mixed", "--ignore-not-found", "--timeout=90s")
		err = errors.Join(err, deleteErr, w.close())
	}()
	pods, err := l.mixedPods(ctx, w)
	if err != nil {
		return err
	}
	errs := []error{l.mixedTraffic(ctx, w, pods)}
	for _, s := range mixedStates {
		if s.manifests != "" {
			if err := l.apply(s.manifests); err != nil {
				return err
			}
		}
		if err := until(ctx, 30*time.Second, s.name, func() error { return matrix(pods, s.denied) }); err != nil {
			errs = append(errs, err)
		}
		if s.manifests != "" {
			if err := l.delete(s.manifests); err != nil {
				return err
			}
		}
	}
	return errors.Join(append(errs, until(ctx, 30*time.Second, "no policy any more", func() error { return matrix(pods, nil) }))...)
}

// definePolicies installs the definition of ClusterNetworkPolicy. It must exist before the agents
// start, because they look for new kinds rarely.
func (l *lab) definePolicies(ctx context.Context) error {
	dir, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/network-policy-api").Output()
	if err != nil {
		return fmt.Errorf("find the definition of ClusterNetworkPolicy: %w", err)
	}
	files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(dir)), "config/crd/experimental/*clusternetworkpolicies.yaml"))
	if err != nil || len(files) != 1 {
		return fmt.Errorf("find the definition of ClusterNetworkPolicy: %d files: %w", len(files), err)
	}
	if _, err := l.kubectl("apply", "--server-side", "-f", files[0]); err != nil {
		return err
	}
	_, err = l.kubectl("wait", "--for=condition=Established", "crd/clusternetworkpolicies.policy.networking.k8s.io", "--timeout=30s")
	return err
}

// mixedPods starts two pods of each system and returns them by name.
func (l *lab) mixedPods(ctx context.Context, w *windowsNode) (map[string]*talker, error) {
	var b strings.Builder
	b.WriteString("apiVersion: v1\nkind: Namespace\nmetadata: {name: mixed}\n")
	for _, p := range [][3]string{{"l1", l.nodes[0].name, "linux"}, {"l2", l.nodes[1].name, "linux"}, {"w1", w.name, "windows"}, {"w2", w.name, "windows"}} {
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: Pod\nmetadata: {name: %[1]s, namespace: mixed, labels: {app: %[1]s, system: %[3]s}}\n"+
			"spec: {nodeName: %[2]s, nodeSelector: {kubernetes.io/os: %[3]s}, os: {name: %[3]s}, tolerations: [{operator: Exists}], terminationGracePeriodSeconds: 1, "+
			"automountServiceAccountToken: false, containers: [{name: c, image: %[4]q, imagePullPolicy: Never}]}\n", p[0], p[1], p[2], pauseImage)
	}
	if err := until(ctx, time.Minute, "the service account", func() error { return l.apply(b.String()) }); err != nil {
		return nil, err
	}
	if err := l.wait("mixed"); err != nil {
		return nil, err
	}
	all := make(map[string]*talker)
	for _, name := range []string{"l1", "l2"} {
		t, err := l.talkerIn("mixed", name)
		if err != nil {
			return nil, err
		}
		all[name] = t
	}
	for _, name := range []string{"w1", "w2"} {
		// The API server has the address that other nodes use.
		ip, err := l.kubectl("-n", "mixed", "get", "pod", name, "-o", "jsonpath={.status.podIP}")
		if err != nil {
			return nil, err
		}
		t, err := serverAt(name, ip)
		if err != nil {
			return nil, err
		}
		t.ns = w.namespaceOf("mixed", name)
		all[name] = t
	}
	return all, nil
}

// matrix tries every pair of pods, and returns the differences from the expected verdicts.
func matrix(pods map[string]*talker, denied []string) error {
	var results []chan error
	for _, from := range pods {
		for _, to := range pods {
			if from == to {
				continue
			}
			result := make(chan error, 1)
			results = append(results, result)
			go func() {
				want := !slices.Contains(denied, from.name+" "+to.name)
				got, err := passes(from.ns, netip.AddrPortFrom(to.address, trafficPort))
				if err == nil && got != want {
					err = fmt.Errorf("%s reaches %s: %t, want %t", from.name, to.name, got, want)
				}
				result <- err
			}()
		}
	}
	var errs []error
	for _, r := range results {
		errs = append(errs, <-r)
	}
	return errors.Join(errs...)
}

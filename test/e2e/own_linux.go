// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
)

const (
	// namespace is the namespace of the manifests.
	namespace = "isthmus-system"
	selector  = "app.kubernetes.io/name=isthmus"
	// hostPort is the host port of the server on each node.
	hostPort = 18080
)

// images matches the references to Isthmus's image in a manifest.
var images = regexp.MustCompile(`(?m)^(\s+image: ).*/isthmus:\S+$`)

// manifestOf reads a manifest, and inserts the image of this run and the address of the API server.
func (l *lab) manifestOf(path string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read manifest: %w", err)
	}
	if !images.Match(text) {
		return "", fmt.Errorf("manifest %s names no image of Isthmus", path)
	}
	manifest := string(images.ReplaceAll(text, []byte("${1}"+l.reference)))
	if l.fabricMode != "" {
		manifest = strings.ReplaceAll(manifest, "--fabric=auto", "--fabric="+l.fabricMode)
	}
	return manifest, nil
}

// install installs Isthmus and waits until every node is ready.
func (l *lab) install(ctx context.Context) error {
	if l.besideFlannel() {
		return l.installBeside(ctx)
	}
	manifest, err := l.manifestOf(l.manifest)
	if err != nil {
		return err
	}
	if err := l.apply(manifest); err != nil {
		return err
	}
	return l.nodesReady(ctx)
}

// nodesReady waits until the agents and the nodes are ready.
func (l *lab) nodesReady(ctx context.Context) error {
	err := until(ctx, 3*time.Minute, "the agents", func() error {
		return l.expect(fmt.Sprint(len(l.nodes)), "-n", namespace, "get", "daemonset", "isthmus-agent", "-o", "jsonpath={.status.numberReady}")
	})
	if err != nil {
		return err
	}
	return l.nodesHaveNetwork(ctx)
}

// nodesHaveNetwork waits until the nodes are ready.
func (l *lab) nodesHaveNetwork(ctx context.Context) error {
	return until(ctx, 2*time.Minute, "the nodes", func() error {
		return l.expect(strings.Repeat("True ", len(l.nodes)), "get", "nodes", "-o", `jsonpath={range .items[*]}{.status.conditions[?(@.type=="Ready")].status} {end}`)
	})
}

// expect returns an error unless kubectl prints the text.
func (l *lab) expect(want string, args ...string) error {
	got, err := l.kubectl(args...)
	if err == nil && got != want {
		err = fmt.Errorf("kubectl %s: %q, want %q", strings.Join(args, " "), got, want)
	}
	return err
}

// runOwn runs the cases of this repository.
func (l *lab) runOwn(ctx context.Context, before map[string]string) []testCase {
	var cases []testCase
	for _, c := range l.ownCases(before) {
		if l.focusOwn.MatchString(c.name) {
			cases = append(cases, timed(c.name, func() error { return c.run(ctx) }))
		}
	}
	return cases
}

// ownCase is a case of this repository.
type ownCase struct {
	name string
	run  func(context.Context) error
}

func (l *lab) ownCases(before map[string]string) []ownCase {
	if l.besideFlannel() {
		return []ownCase{
			{"pods of all nodes reach each other by address, service name and host port", l.reach},
			{"removed from beside flannel and added under traffic, no packet and no connection is lost, and every pod is adopted",
				func(ctx context.Context) error { return l.removeAndAdd(ctx, before) }},
		}
	}
	return []ownCase{
		{"pods of all nodes reach each other by address, service name and host port", l.reach},
		{"isthmusctl connectivity finds nothing wrong, and leaves nothing", l.connectivity},
		{"a rolling upgrade and rollback of the agents loses no packet and no connection", l.upgrade},
		{"pods go on without the API server, and pods that it knew are attached", l.loseAPIServer},
		{"pods go on when another node is lost, which comes back", l.loseNode},
		{"200 pods come and go under their policies, and leave nothing", l.churn},
		{"a Windows node joins by the chart; its pods resolve names, use Services, reach others and are reached, as policies of both systems say", l.mixed},
		{"what a DenyList names does not get in by the uplinks", l.deny},
		{"pods of all nodes reach each other through VXLAN", l.tunnel},
		{"uninstall refuses while pods are attached, then leaves every node as it was", func(ctx context.Context) error { return l.remove(ctx, before) }},
		{"it can be installed again", func(ctx context.Context) error { return errors.Join(l.install(ctx), l.reach(ctx)) }},
	}
}

// servers starts a pod on every node, with a Service and a host port.
func (l *lab) servers(ctx context.Context) error {
	var b strings.Builder
	b.WriteString("apiVersion: v1\nkind: Namespace\nmetadata: {name: own}\n")
	for _, n := range l.nodes {
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: Pod\nmetadata: {name: %[1]s, namespace: own, labels: {app: %[1]s}}\n"+
			"spec: {nodeName: %[1]s, terminationGracePeriodSeconds: 1, automountServiceAccountToken: false, containers: [{name: c, image: %[2]q, imagePullPolicy: Never, args: [netexec], ports: [{containerPort: 8080, hostPort: %[3]d}]}]}\n"+
			"---\napiVersion: v1\nkind: Service\nmetadata: {name: %[1]s, namespace: own}\nspec: {selector: {app: %[1]s}, ports: [{port: 80, targetPort: 8080}]}\n", n.name, testImages[0], hostPort)
	}
	err := until(ctx, time.Minute, "the service account", func() error { return l.apply(b.String()) })
	if err != nil {
		return err
	}
	return l.wait("own")
}

func (l *lab) wait(namespace string) error {
	_, err := l.kubectl("-n", namespace, "wait", "--for=condition=Ready", "pod", "--all", "--timeout=90s")
	return err
}

// reach tries every pair of pods.
func (l *lab) reach(ctx context.Context) error {
	if err := l.servers(ctx); err != nil {
		return err
	}
	var errs []error
	for _, n := range l.nodes {
		errs = append(errs, until(ctx, 20*time.Second, "the host port", func() error { return l.answers(n) }))
	}
	for _, from := range l.nodes {
		for _, to := range l.nodes {
			ips, err := l.kubectl("-n", "own", "get", "pod", to.name, "-o", "jsonpath={.status.podIPs[*].ip}")
			if err != nil {
				return err
			}
			targets := []string{to.name + ".own.svc.cluster.local:80"}
			for _, ip := range strings.Fields(ips) {
				targets = append(targets, net.JoinHostPort(ip, "8080"))
			}
			if len(targets) != 1+len(l.networks) {
				return fmt.Errorf("pod %s has the addresses %q, want %d", to.name, ips, len(l.networks))
			}
			for _, target := range targets {
				errs = append(errs, until(ctx, 20*time.Second, "a connection", func() error {
					_, err := l.kubectl("-n", "own", "exec", from.name, "--", "/agnhost", "connect", target, "--timeout=2s")
					return err
				}))
			}
		}
	}
	return errors.Join(errs...)
}

// answers returns an error unless the node's host port accepts connections from outside the
// cluster.
func (l *lab) answers(n *node) error {
	for _, a := range n.addresses {
		at := netip.AddrPortFrom(a, hostPort)
		ok, err := passes(l.fabric, at)
		if err != nil {
			return fmt.Errorf("connect to host port %s: %w", at, err)
		}
		if !ok {
			return fmt.Errorf("host port %s does not answer", at)
		}
	}
	return nil
}

// deny puts the second address of the control plane on a deny list, checks that nodes drop its packets, and
// removes the list.
func (l *lab) deny(ctx context.Context) error {
	if err := l.servers(ctx); err != nil {
		return err
	}
	for _, n := range l.networks {
		// The control plane itself does not send from it.
		if _, err := l.in(l.fabric, strings.Fields("ip address replace "+n.guest().String()+" dev fabric preferred_lft 0"+noDetection(n))...); err != nil {
			return err
		}
	}
	entries := join(l.networks, func(n network) quoted { return quoted(n.guest().Addr().String()) })
	list := "apiVersion: isthmus.dev/v1alpha1\nkind: DenyList\nmetadata: {name: guests}\nspec: {entries: [" + entries + ", \"2001:db8::/32\"]}\n"
	reached := func(want bool) error {
		for _, n := range l.nodes {
			for i, of := range l.networks {
				guest := of.guest().Addr().String()
				_, err := l.in(l.fabric, "curl", "-s", "-o", "/dev/null", "--interface", guest, "--max-time", "1",
					"http://"+netip.AddrPortFrom(n.addresses[i], hostPort).String()+"/")
				if got := err == nil; got != want {
					return fmt.Errorf("%s reaches node %s: %t, want %t", guest, n.name, got, want)
				}
			}
			if err := l.answers(n); err != nil {
				return err
			}
		}
		return nil
	}
	if err := until(ctx, 10*time.Second, "the guest to be let in", func() error { return reached(true) }); err != nil {
		return err
	}
	if err := l.apply(list); err != nil {
		return err
	}
	if err := until(ctx, 20*time.Second, "the deny list", func() error { return reached(false) }); err != nil {
		return err
	}
	if err := l.traces("prog/xdp"); err != nil {
		return err
	}
	if _, err := l.kubectl("delete", "denylist", "guests"); err != nil {
		return err
	}
	return until(ctx, 20*time.Second, "the guest to be let in again", func() error { return reached(true) })
}

// tunnel switches all nodes to VXLAN. They stay so for the test of removal.
func (l *lab) tunnel(ctx context.Context) error {
	l.fabricMode = "vxlan"
	if err := l.install(ctx); err != nil {
		return err
	}
	if err := l.rolledOut(); err != nil {
		return err
	}
	if err := l.reach(ctx); err != nil {
		return err
	}
	return l.traces("isthmus-vxlan", "table inet isthmus\n", "table inet isthmus-hostports\n")
}

// traces returns an error unless the imprint of every node contains these texts.
func (l *lab) traces(want ...string) error {
	now, err := l.imprints()
	if err != nil {
		return err
	}
	for _, n := range l.nodes {
		var all strings.Builder
		for what, text := range now {
			if strings.HasPrefix(what, n.name+": ") {
				all.WriteString(text)
			}
		}
		for _, w := range want {
			if !strings.Contains(all.String(), w) {
				return fmt.Errorf("node %s has no %q", n.name, w)
			}
		}
	}
	return nil
}

// remove uninstalls Isthmus, and compares the nodes with their state before.
func (l *lab) remove(ctx context.Context, before map[string]string) error {
	manifest, err := l.manifestOf(l.manifest)
	if err != nil {
		return err
	}
	remover, err := l.manifestOf(l.remover)
	if err != nil {
		return err
	}
	if err := l.servers(ctx); err != nil {
		return err
	}
	if err := l.refuseRemoval(ctx, manifest, remover); err != nil {
		return err
	}
	if err := l.install(ctx); err != nil {
		return err
	}
	// The agents stop while everything that they make still exists.
	if err := l.apply("apiVersion: isthmus.dev/v1alpha1\nkind: DenyList\nmetadata: {name: guests}\nspec: {entries: [192.0.2.0/24]}\n"); err != nil {
		return err
	}
	err = until(ctx, 30*time.Second, "something to remove", func() error { return l.traces("isthmus-vxlan", "prog/xdp", "table inet isthmus\n") })
	if err != nil {
		return err
	}
	if _, err := l.kubectl("delete", "namespace", "own", "--timeout=90s"); err != nil {
		return err
	}
	if err := l.deleteAgents(); err != nil {
		return err
	}
	if err := l.delete(manifest); err != nil {
		return err
	}
	if err := l.apply(remover); err != nil {
		return err
	}
	if err := l.removed(ctx); err != nil {
		return err
	}
	if err := l.delete(remover); err != nil {
		return err
	}
	l.fabricMode = ""
	return l.compare(before)
}

// removed waits until Isthmus is removed from all nodes.
func (l *lab) removed(ctx context.Context) error {
	return until(ctx, 2*time.Minute, "the removal", func() error {
		err := l.expect(fmt.Sprint(len(l.nodes)), "-n", namespace, "get", "daemonset", "isthmus-uninstall", "-o", "jsonpath={.status.numberReady}")
		if err != nil {
			log, _ := l.kubectl("-n", namespace, "logs", "-l", selector, "-c", "uninstall", "--tail=3") // the pod does not exist yet
			err = fmt.Errorf("%w: it says %q", err, log)
		}
		return err
	})
}

// refuseRemoval checks that nothing is removed while pods are attached.
func (l *lab) refuseRemoval(ctx context.Context, manifest, remover string) error {
	if err := l.delete(manifest); err != nil {
		return err
	}
	if err := l.apply(remover); err != nil {
		return err
	}
	// The agents have stopped, but pods exist: nothing may be removed.
	err := until(ctx, time.Minute, "a refusal", func() error {
		out, err := l.kubectl("-n", namespace, "logs", "-l", selector, "-c", "uninstall", "--tail=5")
		if err == nil && strings.Count(out, "pods are attached") < len(l.nodes) {
			err = fmt.Errorf("logs of uninstall: %q", out)
		}
		return err
	})
	if err != nil {
		return err
	}
	return l.delete(remover)
}

// deleteAgents deletes only the DaemonSet, so that agents see no other object disappear.
func (l *lab) deleteAgents() error {
	if _, err := l.kubectl("-n", namespace, "delete", "daemonset", "isthmus-agent"); err != nil {
		return err
	}
	_, err := l.kubectl("-n", namespace, "wait", "--for=delete", "pod", "-l", selector, "--timeout=60s")
	return err
}

// delete deletes the objects of a manifest and waits until they are gone.
func (l *lab) delete(manifest string) error {
	path := l.dir + "/delete.yaml"
	if err := os.WriteFile(path, []byte(manifest), 0o600); err != nil {
		return err
	}
	_, err := l.kubectl("delete", "-f", path, "--ignore-not-found", "--timeout=90s")
	return err
}

// imprints lists, for each node, everything that Isthmus could leave there.
func (l *lab) imprints() (map[string]string, error) {
	all := make(map[string]string)
	for _, n := range l.nodes {
		for _, command := range []string{
			"ip -o link | cut -d' ' -f2 | cut -d@ -f1 | sort", "ip route show table all | grep -v ^broadcast | sort", "ip -6 route show table all proto 73",
			"nft list tables | grep -v kube-proxy | sort", "ip rule", "ip -6 rule", "ip -o address | tr -s ' ' | cut -d' ' -f2-4 | sort",
			"ip -d link | grep -o 'prog/xdp\\|vxlan' || true", "find /etc/cni/net.d /opt/cni/bin /sys/fs/bpf -mindepth 1 ! -name '*.debug' | sort",
			"ls -d /run/isthmus /var/lib/isthmus 2>&1 | sort", "tc qdisc show | grep -c clsact || true",
		} {
			out, err := n.inside("bash", "-c", command)
			if err != nil {
				return nil, err
			}
			all[n.name+": "+command] = out
		}
	}
	return all, nil
}

// compare returns an error that lists all differences.
func (l *lab) compare(before map[string]string) error {
	after, err := l.imprints()
	if err != nil {
		return err
	}
	var errs []error
	for what, text := range before {
		if after[what] != text {
			had, has := strings.Split(text, "\n"), strings.Split(after[what], "\n")
			more := slices.DeleteFunc(slices.Clone(has), func(s string) bool { return slices.Contains(had, s) })
			less := slices.DeleteFunc(had, func(s string) bool { return slices.Contains(has, s) })
			errs = append(errs, fmt.Errorf("%s: left %q, missing %q", what, more, less))
		}
	}
	return errors.Join(errs...)
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
)

const (
	// namespace is that of the manifests.
	namespace = "isthmus-system"
	selector  = "app.kubernetes.io/name=isthmus"
)

// images are the references to Isthmus' image in a manifest.
var images = regexp.MustCompile(`(?m)^(\s+image: ).*/isthmus:\S+$`)

// manifestOf reads a manifest and makes it take the image of this run and find
// the API server where it is here.
func (l *lab) manifestOf(path string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read manifest: %w", err)
	}
	if !images.Match(text) {
		return "", fmt.Errorf("manifest %s names no image of Isthmus", path)
	}
	return string(images.ReplaceAll(text, []byte("${1}"+l.reference))), nil
}

// install installs Isthmus and waits until every node is ready.
func (l *lab) install(ctx context.Context) error {
	manifest, err := l.manifestOf(l.manifest)
	if err != nil {
		return err
	}
	if err := l.apply(manifest); err != nil {
		return err
	}
	return l.nodesReady(ctx)
}

// nodesReady waits for the agents and for what the kubelets say.
func (l *lab) nodesReady(ctx context.Context) error {
	err := until(ctx, 3*time.Minute, "the agents", func() error {
		return l.expect(fmt.Sprint(len(l.nodes)), "-n", namespace, "get", "daemonset", "isthmus-agent", "-o", "jsonpath={.status.numberReady}")
	})
	if err != nil {
		return err
	}
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

// runOwn runs the cases that are not of Kubernetes.
func (l *lab) runOwn(ctx context.Context, before map[string]string) []testCase {
	return []testCase{
		timed("pods of all nodes reach each other by address and by service name", func() error { return l.reach(ctx) }),
		timed("pods keep their connections while all agents are replaced", func() error { return l.replaceAgents(ctx) }),
		timed("uninstall refuses while pods are attached, then leaves every node as it was", func() error { return l.remove(ctx, before) }),
		timed("it can be installed again", func() error { return errors.Join(l.install(ctx), l.reach(ctx)) }),
	}
}

// servers are a pod on every node, with a service.
func (l *lab) servers(ctx context.Context) error {
	var b strings.Builder
	b.WriteString("apiVersion: v1\nkind: Namespace\nmetadata: {name: own}\n")
	for _, n := range l.nodes {
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: Pod\nmetadata: {name: %[1]s, namespace: own, labels: {app: %[1]s}}\n"+
			"spec: {nodeName: %[1]s, terminationGracePeriodSeconds: 1, automountServiceAccountToken: false, containers: [{name: c, image: %[2]q, imagePullPolicy: Never, args: [netexec]}]}\n"+
			"---\napiVersion: v1\nkind: Service\nmetadata: {name: %[1]s, namespace: own}\nspec: {selector: {app: %[1]s}, ports: [{port: 80, targetPort: 8080}]}\n", n.name, testImages[0])
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

// reach connects every pod with every other.
func (l *lab) reach(ctx context.Context) error {
	if err := l.servers(ctx); err != nil {
		return err
	}
	var errs []error
	for _, from := range l.nodes {
		for _, to := range l.nodes {
			ip, err := l.kubectl("-n", "own", "get", "pod", to.name, "-o", "jsonpath={.status.podIP}")
			if err != nil {
				return err
			}
			for _, target := range []string{ip + ":8080", to.name + ".own.svc.cluster.local:80"} {
				errs = append(errs, until(ctx, 20*time.Second, "a connection", func() error {
					_, err := l.kubectl("-n", "own", "exec", from.name, "--", "/agnhost", "connect", target, "--timeout=2s")
					return err
				}))
			}
		}
	}
	return errors.Join(errs...)
}

// replaceAgents restarts the DaemonSet, twice, while a pod downloads from one
// of another node over one connection that lasts longer.
func (l *lab) replaceAgents(ctx context.Context) error {
	if err := l.servers(ctx); err != nil {
		return err
	}
	ip, err := l.kubectl("-n", "own", "get", "pod", l.nodes[1].name, "-o", "jsonpath={.status.podIP}")
	if err != nil {
		return err
	}
	type end struct {
		out string
		err error
	}
	ended := make(chan end, 1)
	// One number every 10 ms, answered on the same connection; what is lost for
	// longer than 2 s ends it.
	const numbers = 3000
	script := fmt.Sprintf(`exec 3<>/dev/tcp/%s/9999; for i in $(seq %d); do echo $i >&3 || exit 1; read -t 2 -u 3 n || exit 2; [ "$n" = $i ] || exit 3; sleep 0.01; done; echo done`, ip, numbers)
	server := `nc -l -p 9999 -c cat 2>/dev/null || mkfifo /tmp/f && nc -l 9999 < /tmp/f | cat > /tmp/f`
	listening := make(chan error, 1)
	go func() {
		_, err := l.kubectl("-n", "own", "exec", l.nodes[1].name, "--", "bash", "-c", server)
		listening <- err
	}()
	err = until(ctx, 20*time.Second, "the echo server", func() error {
		_, err := l.kubectl("-n", "own", "exec", l.nodes[1].name, "--", "bash", "-c", "ss -ltn | grep -q :9999")
		return err
	})
	if err != nil {
		return err
	}
	go func() {
		out, err := l.kubectl("-n", "own", "exec", l.nodes[0].name, "--", "bash", "-c", script)
		ended <- end{out, err}
	}()
	for range 2 {
		if _, err := l.kubectl("-n", namespace, "rollout", "restart", "daemonset/isthmus-agent"); err != nil {
			return err
		}
		if _, err := l.kubectl("-n", namespace, "rollout", "status", "daemonset/isthmus-agent", "--timeout=120s"); err != nil {
			return err
		}
	}
	select {
	case e := <-ended:
		return fmt.Errorf("the connection ended before the agents were replaced: %q, %w", e.out, e.err)
	default:
	}
	select {
	case e := <-ended:
		if e.err != nil || strings.TrimSpace(e.out) != "done" {
			return fmt.Errorf("the connection was cut: %q, %w", e.out, e.err)
		}
	case <-time.After(3 * time.Minute):
		return errors.New("the connection does not come to its end")
	}
	return nil
}

// remove takes Isthmus away and compares the nodes with what they were.
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
	if err := l.delete(manifest); err != nil {
		return err
	}
	if err := l.apply(remover); err != nil {
		return err
	}
	// The agents are gone, pods are not: nothing may be removed.
	err = until(ctx, time.Minute, "a refusal", func() error {
		out, err := l.kubectl("-n", namespace, "logs", "-l", selector, "-c", "uninstall", "--tail=5")
		if err == nil && strings.Count(out, "pods are attached") < len(l.nodes) {
			err = fmt.Errorf("logs of uninstall: %q", out)
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := l.delete(remover); err != nil {
		return err
	}
	if err := l.install(ctx); err != nil {
		return err
	}
	if _, err := l.kubectl("delete", "namespace", "own", "--timeout=90s"); err != nil {
		return err
	}
	if err := l.delete(manifest); err != nil {
		return err
	}
	if err := l.apply(remover); err != nil {
		return err
	}
	err = until(ctx, 2*time.Minute, "the removal", func() error {
		err := l.expect(fmt.Sprint(len(l.nodes)), "-n", namespace, "get", "daemonset", "isthmus-uninstall", "-o", "jsonpath={.status.numberReady}")
		if err != nil {
			log, _ := l.kubectl("-n", namespace, "logs", "-l", selector, "-c", "uninstall", "--tail=3") // not there yet
			err = fmt.Errorf("%w: it says %q", err, log)
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := l.delete(remover); err != nil {
		return err
	}
	return l.compare(before)
}

// delete deletes what is in a manifest and waits until it is gone.
func (l *lab) delete(manifest string) error {
	path := l.dir + "/delete.yaml"
	if err := os.WriteFile(path, []byte(manifest), 0o600); err != nil {
		return err
	}
	_, err := l.kubectl("delete", "-f", path, "--ignore-not-found", "--timeout=90s")
	return err
}

// imprints describes each node by what Isthmus could leave there.
func (l *lab) imprints() (map[string]string, error) {
	all := make(map[string]string)
	for _, n := range l.nodes {
		for _, command := range []string{
			"ip -o link | cut -d' ' -f2 | sort", "ip route show table all | grep -v ^broadcast | sort", "ip -6 route show table all proto 73",
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

// compare returns an error that says what is not as it was.
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

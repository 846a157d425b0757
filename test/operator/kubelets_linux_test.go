// SPDX-License-Identifier: Apache-2.0

package operator_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/isthmus-net/isthmus/common/kube/kubetest"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/cluster"
)

// kubelets play the kubelets, the proxies and the API server of a cluster. They attach the pods that clients create by the
// real agents, run their command in the pod's network namespace, and give the agents the policies.
type kubelets struct {
	t       *testing.T
	cluster *cluster.Cluster
	api     *kubetest.ExecServer
	ctl     string // isthmusctl
	resolv  string // the resolv.conf of pods
	// services gives Services addresses, which nodes translate.
	services bool
	// on is called for each change, before it has an effect.
	on func(verb, resource, name string)

	mu   sync.Mutex
	pods map[string]*kubeletPod // by namespace/name
}

type kubeletPod struct {
	*cluster.Pod
	probe *exec.Cmd
}

// startKubelets serves the nodes of a cluster.
func startKubelets(t *testing.T, c *cluster.Cluster, services bool) *kubelets {
	t.Helper()
	k := &kubelets{t: t, cluster: c, services: services, pods: make(map[string]*kubeletPod), ctl: c.Nodes[0].Ctl(t.Context()).Path}
	var nodes []corev1.Node
	var pods []corev1.Pod
	agents := make(map[string]*cluster.Node)
	for _, n := range c.Nodes {
		node := kubetest.ClusterNode(n.Name, string(n.OS))
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		for _, a := range n.Addresses() {
			node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.String()})
		}
		for _, p := range n.PodCIDRs {
			node.Spec.PodCIDRs = append(node.Spec.PodCIDRs, p.String())
		}
		if n.OS == model.Linux {
			node.Status.DaemonEndpoints.KubeletEndpoint.Port = 10250
		}
		agent := kubetest.AgentPod("agent-"+n.Name, n.Name, "agent-"+string(n.OS))
		agent.Spec.Containers = []corev1.Container{{Name: "agent", Image: "isthmus:test"}}
		nodes, pods = append(nodes, node), append(pods, agent)
		agents[agent.Namespace+"/"+agent.Name] = n
	}
	k.api = kubetest.NewExecServer(t, nodes, pods, func(pod string, command []string) (stdout, stderr []byte, status int) {
		if n := agents[pod]; n != nil {
			first := slices.IndexFunc(command, func(word string) bool { return strings.Contains(word, "isthmusctl") })
			return finished(n.NS.Do, n.Ctl(context.Background(), command[first+1:]...))
		}
		k.mu.Lock()
		p := k.pods[pod]
		k.mu.Unlock()
		if p == nil {
			return nil, []byte("no such pod"), 1
		}
		return finished(p.NS.Do, k.inPod(command))
	})
	k.api.Keep(k.changed)
	k.resolve()
	t.Cleanup(k.stop)
	return k
}

// finished runs a command and returns its output.
func finished(do func(func() error) error, cmd *exec.Cmd) (stdout, stderr []byte, status int) {
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if exit, err := (*exec.ExitError)(nil), do(cmd.Run); err != nil && !errors.As(err, &exit) {
		return nil, []byte(err.Error()), 1
	}
	return []byte(out.String()), []byte(errs.String()), cmd.ProcessState.ExitCode()
}

// inPod returns the command of a container with the resolv.conf of pods, unprivileged as in its specification.
func (k *kubelets) inPod(command []string) *exec.Cmd {
	const script = `mount --bind "$0" /etc/resolv.conf && exec setpriv --reuid=65532 --regid=65532 --clear-groups --bounding-set=-all --no-new-privs "$@"`
	return exec.Command("unshare", append([]string{"--mount", "sh", "-c", script, k.resolv, k.ctl}, command[1:]...)...)
}

// changed follows a change of a client.
func (k *kubelets) changed(verb, resource string, o kubetest.Object) {
	meta, _ := o["metadata"].(kubetest.Object)
	namespace, _ := meta["namespace"].(string)
	name, _ := meta["name"].(string)
	if k.on != nil {
		k.on(verb, resource, name)
	}
	var err error
	switch verb + " " + resource {
	case "create namespaces", "create networkpolicies":
		var text []byte
		if text, err = json.Marshal(o); err == nil {
			err = k.cluster.Manifests.Put(resource+"-"+name, string(text))
		}
	case "delete networkpolicies":
		err = k.cluster.Manifests.Drop(resource + "-" + name)
	case "create pods":
		go k.start(namespace, name, o)
	case "create services":
		err = k.serve(namespace, name)
	case "delete namespaces":
		err = k.remove(name)
	}
	if err != nil {
		k.t.Errorf("%s %s %s: %v", verb, resource, name, err)
	}
}

// start attaches a pod and runs its command.
func (k *kubelets) start(namespace, name string, o kubetest.Object) {
	text, err := json.Marshal(o)
	var typed corev1.Pod
	if err = errors.Join(err, json.Unmarshal(text, &typed)); err != nil {
		k.t.Error(err)
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	pod := &model.Pod{PodID: model.PodID{Namespace: namespace, Name: name}, Node: typed.Spec.NodeName, Labels: model.MakeLabels(typed.Labels)}
	if err := k.cluster.Manifests.WritePod(pod); err != nil {
		k.t.Error(err)
		return
	}
	attached, _, err := k.cluster.Attach(context.Background(), pod)
	if err != nil {
		k.t.Error(err)
		return
	}
	p := &kubeletPod{attached, k.inPod(typed.Spec.Containers[0].Command)}
	p.probe.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.NS.Do(p.probe.Start); err != nil {
		k.t.Error(err)
		return
	}
	k.pods[namespace+"/"+name] = p
	if k.services && strings.HasPrefix(name, "server") {
		k.translate(name, p.IPs)
	}
	k.api.Change("pods", namespace, func(all map[string]kubetest.Object) {
		if all[name] == nil {
			return // deleted meanwhile
		}
		ips := []any{}
		for _, a := range p.IPs {
			ips = append(ips, kubetest.Object{"ip": a.String()})
		}
		all[name]["status"] = kubetest.Object{"phase": "Running", "podIP": p.IPs[0].String(), "podIPs": ips,
			"containerStatuses": []any{kubetest.Object{"name": "probe", "state": kubetest.Object{"running": kubetest.Object{}}}}}
	})
}

// addresses are the addresses of the Service of a server.
func addresses(name string) []netip.Addr {
	n := strings.TrimPrefix(name, "server-")
	return []netip.Addr{netip.MustParseAddr("10.96.7." + n), netip.MustParseAddr("fd96::7:" + n)}
}

// serve gives a Service its addresses, or makes it headless.
func (k *kubelets) serve(namespace, name string) error {
	k.api.Change("services", namespace, func(all map[string]kubetest.Object) {
		spec, _ := all[name]["spec"].(kubetest.Object)
		spec["clusterIP"], spec["clusterIPs"] = "None", []any{"None"}
		if k.services {
			own := addresses(name)
			spec["clusterIP"], spec["clusterIPs"] = own[0].String(), []any{own[0].String(), own[1].String()}
		}
	})
	return nil
}

// translate writes rules as kube-proxy does, on all nodes.
func (k *kubelets) translate(name string, to []netip.Addr) {
	for _, n := range k.cluster.Nodes {
		for i, a := range addresses(name) {
			family := []string{"ip", "ip6"}[i]
			rules := fmt.Sprintf("add table %[1]s services\nadd chain %[1]s services pre { type nat hook prerouting priority dstnat; }\n", family)
			for _, protocol := range []string{"tcp", "udp"} {
				rules += fmt.Sprintf("add rule %[1]s services pre %[1]s daddr %[2]s %[3]s dport 7000 dnat to %[4]s\n", family, a, protocol, to[i])
			}
			cmd := exec.Command("nft", "-f", "-")
			cmd.Stdin = strings.NewReader(rules)
			if _, errs, status := finished(n.NS.Do, cmd); status != 0 {
				k.t.Errorf("nft on %s: %s", n.Name, errs)
			}
		}
	}
}

// remove ends the pods of a namespace and drops what the agents read of it.
func (k *kubelets) remove(namespace string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	var errs []error
	for id, p := range k.pods {
		if p.Namespace != namespace {
			continue
		}
		_ = syscall.Kill(-p.probe.Process.Pid, syscall.SIGKILL) // an error means that it has ended
		_ = p.probe.Wait()
		errs = append(errs, k.cluster.Detach(context.Background(), p.Pod), k.cluster.Manifests.RemovePod(p.PodID))
		delete(k.pods, id)
	}
	for _, name := range []string{"deny-ingress", "allow-ingress", "deny-egress", "allow-egress", "other"} {
		if err := k.cluster.Manifests.Drop("networkpolicies-" + name); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	for _, n := range k.cluster.Nodes {
		for _, family := range []string{"ip", "ip6"} {
			finished(n.NS.Do, exec.Command("nft", "delete", "table", family, "services")) // if there is one
		}
	}
	return errors.Join(append(errs, k.cluster.Manifests.Drop("namespaces-"+namespace))...)
}

// stop ends all commands in pods.
func (k *kubelets) stop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.pods {
		_ = syscall.Kill(-p.probe.Process.Pid, syscall.SIGKILL)
		_ = p.probe.Wait()
	}
}

// namespaces returns the namespaces that tests of connectivity have left.
func (k *kubelets) namespaces() (names []string) {
	k.api.Change("namespaces", "", func(all map[string]kubetest.Object) {
		for name := range all {
			names = append(names, name)
		}
	})
	return names
}

// resolve starts a DNS server outside of the nodes, and writes the resolv.conf of pods.
func (k *kubelets) resolve() {
	k.resolv = filepath.Join(k.t.TempDir(), "resolv.conf")
	_, outside := k.cluster.Outside()
	text := fmt.Sprintf("nameserver %s\nsearch svc.cluster.local\noptions timeout:1 attempts:1\n", outside[0])
	if err := os.WriteFile(k.resolv, []byte(text), 0o644); err != nil {
		k.t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(k.resolv), 0o755); err != nil {
		k.t.Fatal(err)
	}
	k.startDNS(outside[0])
}

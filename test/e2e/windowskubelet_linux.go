// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/isthmus-net/isthmus/test/netns"
)

// windowsPod is a pod of the Windows node.
type windowsPod struct {
	namespace, name, uid string
	ns                   *netns.NS
	// hcn is the GUID of its HCN namespace.
	hcn string
	// addresses is the JSON form of podIPs, and address the first of them.
	addresses, address string
}

func (p *windowsPod) key() string { return p.namespace + "/" + p.name }

// pod returns the pod with this namespace and name; nil if it does not run.
func (n *windowsNode) pod(key string) *windowsPod {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.pods[key]
}

// setPod records that a pod runs, or with nil that it has ended.
func (n *windowsNode) setPod(key string, p *windowsPod) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if p == nil {
		delete(n.pods, key)
	} else {
		n.pods[key] = p
	}
}

// startKubelet starts pods that are bound to the node, ends deleted ones, and sends heartbeats.
func (n *windowsNode) startKubelet(ctx context.Context) {
	ctx, n.stop = context.WithCancel(ctx)
	n.done = make(chan struct{})
	go func() {
		defer close(n.done)
		for beaten := time.Now(); ctx.Err() == nil; time.Sleep(300 * time.Millisecond) {
			if time.Since(beaten) > 4*time.Second {
				beaten = time.Now()
				if err := n.beat(); err != nil {
					say("%s: %v", n.name, err)
				}
			}
			if err := n.sync(ctx); err != nil && ctx.Err() == nil {
				say("%s: %v", n.name, err) // retried at the next turn
			}
		}
	}()
}

// sync reconciles the node's pods with the API server.
func (n *windowsNode) sync(ctx context.Context) error {
	out, err := n.lab.kubectl("get", "pods", "-A", "--field-selector=spec.nodeName="+n.name, "-o", "json")
	if err != nil {
		return err
	}
	var list struct{ Items []podItem }
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return fmt.Errorf("read pods: %w", err)
	}
	var errs []error
	for _, item := range list.Items {
		m := item.Metadata
		running := n.pod(m.Namespace + "/" + m.Name)
		switch {
		case item.Spec.HostNetwork: // the agent is the only such pod
			errs = append(errs, n.syncAgent(item))
		case m.DeletionTimestamp == nil && running == nil:
			errs = append(errs, n.run(ctx, &windowsPod{namespace: m.Namespace, name: m.Name, uid: m.UID}))
		case m.DeletionTimestamp != nil:
			if running != nil {
				errs = append(errs, n.detach(running))
			}
			_, err := n.lab.kubectl("-n", m.Namespace, "delete", "pod", m.Name, "--force", "--grace-period=0", "--ignore-not-found")
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// run makes the pod's namespaces, attaches the pod, starts its container in HNS, and reports it ready.
func (n *windowsNode) run(ctx context.Context, p *windowsPod) (err error) {
	if p.ns, err = netns.Prepared(n.namespaceOf(p.namespace, p.name).Path()); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.detach(p))
		}
	}()
	if p.hcn, err = n.machine.Control("/namespace", url.Values{"netns": {p.ns.Path()}}); err != nil {
		return err
	}
	if err := n.attach(ctx, p); err != nil {
		return err
	}
	if _, err := n.machine.Control("/container", url.Values{"namespace": {p.hcn}, "id": {p.uid}}); err != nil {
		return err
	}
	now := time.Now().UTC().Format(time.RFC3339)
	_, err = n.lab.kubectl("-n", p.namespace, "patch", "pod", p.name, "--subresource=status", "--type=merge", "-p", fmt.Sprintf(
		`{"status": {"phase": "Running", "hostIP": "%s", "podIP": %q, "podIPs": [%s], "startTime": %q,
"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": %q}]}}`, n.lab.primary().windows().Addr(), p.address, p.addresses, now, now))
	if err == nil {
		n.setPod(p.key(), p)
	}
	return err
}

// attach calls CNI ADD with the plugin and the configuration that the agent has installed, and sets the pod's
// addresses.
func (n *windowsNode) attach(ctx context.Context, p *windowsPod) error {
	list, err := n.network()
	if err != nil {
		return err
	}
	added, err := n.plugins().AddNetworkList(ctx, list, p.runtime())
	if err != nil {
		return fmt.Errorf("CNI ADD of %s: %w", p.key(), err)
	}
	result, err := types100.GetResult(added)
	if err != nil || len(result.IPs) == 0 {
		return fmt.Errorf("CNI ADD of %s gave no address: %v: %w", p.key(), added, err)
	}
	var all []string
	for _, ip := range result.IPs {
		all = append(all, fmt.Sprintf(`{"ip": %q}`, ip.Address.IP))
	}
	p.address, p.addresses = result.IPs[0].Address.IP.String(), strings.Join(all, ", ")
	return nil
}

// installed is the parent of containerd's directories for CNI, to which the chart's settings refer.
func (n *windowsNode) installed() string {
	return filepath.Join(n.machine.Drive(), "Program Files", "containerd", "cni")
}

func (n *windowsNode) network() (*libcni.NetworkConfigList, error) {
	return libcni.ConfListFromFile(filepath.Join(n.installed(), "conf", "05-isthmus.conflist"))
}

func (n *windowsNode) plugins() *libcni.CNIConfig {
	return n.machine.Plugins(filepath.Join(n.installed(), "bin"))
}

// runtime returns the arguments of containerd for a pod with the dnsPolicy ClusterFirst.
func (p *windowsPod) runtime() *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: p.uid, NetNS: p.hcn, IfName: "eth0",
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", p.namespace}, {"K8S_POD_NAME", p.name},
			{"K8S_POD_INFRA_CONTAINER_ID", p.uid}, {"K8S_POD_UID", p.uid}},
		CapabilityArgs: map[string]any{"dns": map[string][]string{"servers": {ipv4.dns.String()}, "options": {"ndots:5"},
			"searches": {p.namespace + ".svc.cluster.local", "svc.cluster.local", "cluster.local"}}}}
}

// namespaceOf returns the network namespace of a pod.
func (n *windowsNode) namespaceOf(namespace, name string) *netns.NS {
	return netns.At(filepath.Join(n.dir, namespace+"-"+name+".ns"))
}

// detach detaches a pod and removes its namespaces.
func (n *windowsNode) detach(p *windowsPod) error {
	n.setPod(p.key(), nil)
	var errs []error
	if p.hcn != "" { // the container ends before DEL, if it ever started
		_, err := n.machine.Control("/container", url.Values{"namespace": {p.hcn}, "id": {p.uid}, "gone": {"true"}})
		errs = append(errs, err)
	}
	list, err := n.network()
	if err == nil && p.hcn != "" {
		err = n.plugins().DelNetworkList(context.Background(), list, p.runtime())
	}
	if err != nil {
		errs = append(errs, fmt.Errorf("CNI DEL of %s: %w", p.key(), err))
	}
	if p.hcn != "" {
		_, err := n.machine.Control("/namespace/remove", url.Values{"id": {p.hcn}})
		errs = append(errs, err)
	}
	return errors.Join(append(errs, p.ns.Close())...)
}

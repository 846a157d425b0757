// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/test/netns"
)

// windowsPod is a pod of the emulated node.
type windowsPod struct {
	namespace, name, uid string
	ns                   *netns.NS
	// hcn is the GUID of its HCN namespace.
	hcn, address string
}

func (p *windowsPod) key() string { return p.namespace + "/" + p.name }

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
			if err := n.sync(); err != nil {
				say("%s: %v", n.name, err) // retried at the next turn
			}
		}
	}()
}

// sync reconciles the node's pods with the API server.
func (n *windowsNode) sync() error {
	out, err := n.lab.kubectl("get", "pods", "-A", "--field-selector=spec.nodeName="+n.name, "-o", "json")
	if err != nil {
		return err
	}
	var list struct {
		Items []struct {
			Metadata struct {
				Namespace, Name, UID string
				DeletionTimestamp    *string
			}
			Spec struct{ HostNetwork bool }
		}
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return fmt.Errorf("read pods: %w", err)
	}
	var errs []error
	for _, item := range list.Items {
		m := item.Metadata
		running := n.pods[m.Namespace+"/"+m.Name]
		switch {
		case item.Spec.HostNetwork: // not in the pod network
		case m.DeletionTimestamp == nil && running == nil:
			errs = append(errs, n.run(&windowsPod{namespace: m.Namespace, name: m.Name, uid: m.UID}))
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

// run makes the pod's namespaces, attaches the pod, and reports it ready.
func (n *windowsNode) run(p *windowsPod) (err error) {
	if p.ns, err = netns.New(n.namespaceOf(p.namespace, p.name).Path()); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.detach(p))
		}
	}()
	if p.hcn, err = n.ask("/namespace?netns=" + p.ns.Path()); err != nil {
		return err
	}
	out, err := n.call("ADD", p)
	if err != nil {
		return err
	}
	var result struct{ IPs []struct{ Address string } }
	if err := json.Unmarshal([]byte(out), &result); err != nil || len(result.IPs) == 0 {
		return fmt.Errorf("CNI ADD of %s gave no address: %q: %w", p.key(), out, err)
	}
	p.address, _, _ = strings.Cut(result.IPs[0].Address, "/")
	now := time.Now().UTC().Format(time.RFC3339)
	_, err = n.lab.kubectl("-n", p.namespace, "patch", "pod", p.name, "--subresource=status", "--type=merge", "-p", fmt.Sprintf(
		`{"status": {"phase": "Running", "hostIP": %q, "podIP": %q, "podIPs": [{"ip": %q}], "startTime": %q,
"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": %q}]}}`, windowsAddress, p.address, p.address, now, now))
	if err == nil {
		n.pods[p.key()] = p
	}
	return err
}

// call calls the plugin as a container runtime does.
func (n *windowsNode) call(command string, p *windowsPod) (string, error) {
	cmd := exec.Command(filepath.Join(n.dir, "isthmus-cni"))
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+command, "CNI_CONTAINERID="+p.uid, "CNI_NETNS="+p.hcn, "CNI_IFNAME=eth0", "CNI_PATH="+n.dir,
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE="+p.namespace+";K8S_POD_NAME="+p.name+";K8S_POD_INFRA_CONTAINER_ID="+p.uid+";K8S_POD_UID="+p.uid)
	cmd.Stdin = strings.NewReader(fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "isthmus", "type": "isthmus-cni", "socket": %q, "runtimeConfig": {"dns":
		{"servers": [%q], "searches": ["%s.svc.cluster.local", "svc.cluster.local", "cluster.local"], "options": ["ndots:5"]}}}`, n.socket(), dnsAddress, p.namespace))
	out, err := output(cmd)
	if err != nil {
		return "", fmt.Errorf("CNI %s of %s: %w: %s", command, p.key(), err, strings.TrimSpace(out))
	}
	return out, nil
}

// namespaceOf returns the network namespace of a pod.
func (n *windowsNode) namespaceOf(namespace, name string) *netns.NS {
	return netns.At(filepath.Join(n.dir, namespace+"-"+name+".ns"))
}

// detach detaches a pod and removes its namespaces.
func (n *windowsNode) detach(p *windowsPod) error {
	delete(n.pods, p.key())
	_, err := n.call("DEL", p)
	if p.hcn != "" {
		_, removeErr := n.ask("/namespace/remove?id=" + p.hcn)
		err = errors.Join(err, removeErr)
	}
	return errors.Join(err, p.ns.Close())
}

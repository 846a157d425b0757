// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/isthmus-net/isthmus/test/hostprocess"
)

// podItem is a pod of the API server, as far as the kubelet of a windowsNode needs it.
type podItem struct {
	Metadata struct {
		Namespace, Name, UID string
		DeletionTimestamp    *string
	}
	Spec struct {
		HostNetwork        bool
		ServiceAccountName string
		NodeName           string
		Containers         []struct {
			Command, Args []string
			Env           []struct {
				Name, Value string
				ValueFrom   struct{ FieldRef struct{ FieldPath string } }
			}
			VolumeMounts []struct{ Name, MountPath string }
		}
		Volumes []struct {
			Name      string
			Projected struct{ Sources []projection }
		}
	}
}

// projection is what becomes a file of a projected volume: the token of the service account, or the certificate of the
// API server.
type projection struct {
	ServiceAccountToken struct{ Path string }
	ConfigMap           struct {
		Name  string
		Items []struct{ Key, Path string }
	}
}

// hostProcess is the HostProcess container of an agent.
type hostProcess struct {
	uid   string
	cmd   *exec.Cmd
	ready bool
}

// kill ends the process. It may be called for an agent that did not start.
func (p *hostProcess) kill() {
	if p != nil {
		p.cmd.Process.Kill()
		p.cmd.Wait() // it was killed
	}
}

// runAgent runs a pod of the chart's DaemonSet as containerd runs a HostProcess container, by the command, arguments
// and environment of the pod. It adds --kubeconfig, because Wine takes /var/run for a directory of this machine.
func (n *windowsNode) runAgent(pod podItem) error {
	if err := n.unpackImage(); err != nil {
		return err
	}
	c := pod.Spec.Containers[0]
	// A kubelet sets the first two in every container.
	env := map[string]string{"KUBERNETES_SERVICE_HOST": n.lab.primary().kubernetes.String(), "KUBERNETES_SERVICE_PORT": "443"}
	for _, e := range c.Env {
		switch e.ValueFrom.FieldRef.FieldPath {
		case "":
			env[e.Name] = e.Value
		case "spec.nodeName":
			env[e.Name] = pod.Spec.NodeName
		default:
			return fmt.Errorf("pod %s: variable %s: the field %s is not known here", pod.Metadata.Name, e.Name, e.ValueFrom.FieldRef.FieldPath)
		}
	}
	words := hostprocess.Expand(append(c.Command, c.Args...), env, hostprocess.Mount)
	if err := n.mountVolumes(pod); err != nil {
		return err
	}
	cmd := n.machine.Command(context.Background(), words[0], words[1:]...)
	for name, value := range hostprocess.Environment(env, hostprocess.Mount) {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	cmd.Dir = n.image()
	process, err := n.lab.launchCommand(n.ns, n.name+"-agent", 0, cmd)
	if err != nil {
		return err
	}
	n.agent = &hostProcess{uid: pod.Metadata.UID, cmd: process}
	return nil
}

// image is the directory with the files of the image.
func (n *windowsNode) image() string {
	return filepath.Join(n.machine.Drive(), strings.TrimPrefix(hostprocess.Mount, `C:\`))
}

// unpackImage makes the files of the image for Windows.
func (n *windowsNode) unpackImage() error {
	for _, name := range []string{"isthmus-agent.exe", "isthmus-cni.exe", "isthmusctl.exe"} {
		if err := copyFile(filepath.Join(n.bin(), name), filepath.Join(n.image(), name)); err != nil {
			return err
		}
	}
	return nil
}

// mountVolumes writes the files of a pod's projected volumes where hcsshim has them on every Windows: below the directory of the image.
func (n *windowsNode) mountVolumes(pod podItem) error {
	for _, mount := range pod.Spec.Containers[0].VolumeMounts {
		for _, v := range pod.Spec.Volumes {
			if v.Name != mount.Name {
				continue
			}
			for _, source := range v.Projected.Sources {
				if err := n.project(pod, source, filepath.Join(n.image(), mount.MountPath)); err != nil {
					return fmt.Errorf("volume %s: %w", v.Name, err)
				}
			}
		}
	}
	return nil
}

// project writes the files of a projection. A token is bound to the pod, as those of kubelets are, and so names the node.
func (n *windowsNode) project(pod podItem, source projection, dir string) error {
	m := pod.Metadata
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if path := source.ServiceAccountToken.Path; path != "" {
		token, err := n.lab.kubectl("-n", m.Namespace, "create", "token", pod.Spec.ServiceAccountName, "--duration=1h",
			"--bound-object-kind=Pod", "--bound-object-name="+m.Name, "--bound-object-uid="+m.UID)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, path), []byte(strings.TrimSpace(token)), 0o600)
	}
	for _, item := range source.ConfigMap.Items {
		text, err := n.lab.kubectl("-n", m.Namespace, "get", "configmap", source.ConfigMap.Name, "-o", "jsonpath={.data."+strings.ReplaceAll(item.Key, ".", `\.`)+"}")
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, item.Path), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// syncAgent starts and ends the agent's pod, and reports it ready when its readiness probe succeeds.
func (n *windowsNode) syncAgent(pod podItem) error {
	m := pod.Metadata
	mine := n.agent != nil && n.agent.uid == m.UID
	switch {
	case m.DeletionTimestamp != nil:
		if mine {
			n.agent.kill()
			n.agent = nil
		}
		_, err := n.lab.kubectl("-n", m.Namespace, "delete", "pod", m.Name, "--force", "--grace-period=0", "--ignore-not-found")
		return err
	case n.agent == nil:
		return n.runAgent(pod)
	case !mine || n.agent.ready:
		return nil
	}
	if _, err := n.machine.Get("/readyz"); err != nil {
		return nil // not yet; joined says so if it lasts
	}
	now := time.Now().UTC().Format(time.RFC3339)
	_, err := n.lab.kubectl("-n", m.Namespace, "patch", "pod", m.Name, "--subresource=status", "--type=merge", "-p", fmt.Sprintf(
		`{"status": {"phase": "Running", "hostIP": "%[1]s", "podIP": "%[1]s", "podIPs": [{"ip": "%[1]s"}], "startTime": %[2]q,
"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": %[2]q}]}}`, n.lab.primary().windows().Addr(), now))
	n.agent.ready = err == nil
	return err
}

// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/isthmus-net/isthmus/linux/fabric"
	"github.com/isthmus-net/isthmus/linux/foreign"
	"github.com/isthmus-net/isthmus/linux/hostport"
	"github.com/isthmus-net/isthmus/linux/link"
)

// Leave removes what mode full added to the node besides interfaces of pods, and records for the agent of mode
// policy that the pods return to the bridge.
func (h *Host) Leave(p *Plan, stateDir string) error {
	mac, err := net.ParseMAC(p.Bridge.MAC)
	if err != nil {
		return fmt.Errorf("MAC of %s: %w", p.Bridge.Name, err)
	}
	registry, err := foreign.Open(stateDir)
	if err != nil {
		return err
	}
	for i := range p.Pods {
		pod := &p.Pods[i]
		podMAC, err := net.ParseMAC(pod.MAC)
		if err != nil {
			return fmt.Errorf("MAC of pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
		if port, err := h.port(p, pod); err != nil || port == nil {
			if err = errors.Join(err, registry.Remove(pod.Was.ID())); err != nil {
				return err
			}
			continue
		}
		end := foreign.HostEnd{Name: pod.Port, Index: pod.Index, PeerIndex: pod.PeerIndex, PodMAC: podMAC, Bridge: p.Bridge.Index, HostMAC: mac,
			Addresses: pod.Was.IPs, Return: foreign.ReturnRequested}
		if err := registry.Put(pod.Was.ID(), end); err != nil {
			return err
		}
	}
	entries, err := os.ReadDir(h.links)
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // no agent has run since the node restarted
		return fmt.Errorf("list pinned links: %w", err)
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), "-from_node") {
			if err := os.Remove(filepath.Join(h.links, e.Name())); err != nil {
				return fmt.Errorf("remove the program from devices to other nodes: %w", err)
			}
		}
	}
	return errors.Join(link.DropNodeClassifiers(nil), fabric.Cleanup(), hostport.Remove())
}

// Awaits returns an interface whose pod the agent of mode policy has not attached yet; "" if it has attached all.
func (h *Host) Awaits(p *Plan, stateDir string) (name string, err error) {
	registry, err := foreign.Read(stateDir)
	if err != nil {
		return "", err
	}
	for i := range p.Pods {
		pod := &p.Pods[i]
		port, err := h.port(p, pod)
		if err != nil {
			return "", err
		}
		if end, ok := registry.Get(pod.Was.ID()); port != nil && ok && end.Return == foreign.ReturnRequested {
			return pod.Port, nil
		}
	}
	return "", nil
}

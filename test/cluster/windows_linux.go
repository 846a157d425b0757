// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/test/hnsemu/fault"
	"github.com/isthmus-net/isthmus/windows"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// control is the socket on which a Windows node serves calls that a container runtime and the network would make
// to Windows itself (test/cluster/winnode, test/hnsemu).
func (n *Node) control() string {
	if n.machine != nil {
		return n.machine.ControlSocket()
	}
	return filepath.Join(n.Dir, "control.sock")
}

// hostFlags configure the emulated HNS.
func (n *Node) hostFlags() []string {
	mac := strings.ToUpper(strings.ReplaceAll(n.Hardware().String(), ":", "-"))
	return []string{"--management-ip", n.Addresses()[0].String(), "--management-mac", mac}
}

// networkFlags are the flags of every agent on Windows.
func (n *Node) networkFlags() []string {
	if n.cluster.cfg.OtherCNI != "" {
		return append(n.cniFlags(), n.cluster.cfg.WindowsFlags...)
	}
	mode := windows.L2Bridge
	if n.cluster.cfg.Overlay {
		mode = windows.Overlay
	}
	return append([]string{"--hns-mode", string(mode)}, n.cluster.cfg.WindowsFlags...)
}

// windowsFlags are the flags of winnode.
func (n *Node) windowsFlags() []string {
	return slices.Concat([]string{"--control", n.control()}, n.hostFlags(), n.networkFlags())
}

// ask calls the control socket of a Windows node.
func (n *Node) ask(ctx context.Context, path string, query url.Values) (string, error) {
	return n.send(ctx, path, query, nil)
}

// send is ask with a body.
func (n *Node) send(ctx context.Context, path string, query url.Values, body []byte) (string, error) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", n.control())
		}}}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://winnode"+path+"?"+query.Encode(), bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	answer, err := client.Do(r)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	said, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s of %s: %s", path, n.Name, strings.TrimSpace(string(said)))
	}
	return strings.TrimSpace(string(said)), err
}

// Fault makes calls to the node's HNS fail, or wait.
func (n *Node) Fault(ctx context.Context, f fault.Fault) error {
	text, err := json.Marshal(f)
	if err == nil {
		_, err = n.send(ctx, "/fault", nil, text)
	}
	return err
}

// EndFaults ends all faults of the node's HNS.
func (n *Node) EndFaults(ctx context.Context) error {
	_, err := n.ask(ctx, "/fault/clear", nil)
	return err
}

// makeHCNNamespace does what containerd does before CNI ADD. A network namespace represents the HCN namespace.
func (n *Node) makeHCNNamespace(ctx context.Context, netns string) (string, error) {
	return n.ask(ctx, "/namespace", url.Values{"netns": {netns}})
}

// startContainer does what containerd does after CNI ADD: HNS connects an endpoint once a container runs in its
// HCN namespace.
func (p *Pod) startContainer(ctx context.Context) error {
	if p.Node.OS != model.Windows {
		return nil
	}
	_, err := p.Node.ask(ctx, "/container", url.Values{"namespace": {p.netnsPath}, "id": {p.containerID}})
	p.running = err == nil
	return err
}

// endContainer does what containerd does before CNI DEL.
func (p *Pod) endContainer(ctx context.Context) error {
	if !p.running {
		return nil
	}
	_, err := p.Node.ask(ctx, "/container", url.Values{"namespace": {p.netnsPath}, "id": {p.containerID}, "gone": {"true"}})
	p.running = err != nil
	return err
}

// MakeNetwork makes a network in the HNS of a Windows node, as a script of another CNI does. With an endpoint it also
// attaches the host to it. It adds some policies once the network exists, as flannel adds routes to other nodes.
func (n *Node) MakeNetwork(ctx context.Context, network hns.Network, host *hns.Endpoint, added ...hns.Policy) error {
	text, err := json.Marshal(map[string]any{"Network": network, "Host": host, "Added": added})
	if err == nil {
		_, err = n.ask(ctx, "/network", url.Values{"objects": {string(text)}})
	}
	return err
}

// BlockByACL replaces the ACLs of an endpoint of a Windows node, as another process would.
func (n *Node) BlockByACL(ctx context.Context, address netip.Addr) error {
	_, err := n.ask(ctx, "/acl", url.Values{"address": {address.String()}})
	return err
}

// Balancers returns the load balancers of the node's HNS, one port per line.
func (n *Node) Balancers(ctx context.Context) ([]string, error) {
	text, err := n.ask(ctx, "/balancers", nil)
	return strings.FieldsFunc(text, func(r rune) bool { return r == '\n' }), err
}

// HNS returns the objects of the node's HNS, and the packets that it decided last, as text.
func (n *Node) HNS(ctx context.Context) (objects, packets string, err error) {
	if objects, err = n.ask(ctx, "/dump", nil); err == nil {
		packets, err = n.ask(ctx, "/trace", nil)
	}
	return objects, packets, err
}

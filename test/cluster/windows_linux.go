// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/acl"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// control is where a Windows node answers what a container runtime and the
// network would ask of Windows itself (test/cluster/winnode).
func (n *Node) control() string { return filepath.Join(n.Dir, "control.sock") }

// ask calls the control service of a Windows node.
func (n *Node) ask(ctx context.Context, path string, query url.Values) (string, error) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", n.control())
		}}}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://winnode"+path+"?"+query.Encode(), nil)
	if err != nil {
		return "", err
	}
	answer, err := client.Do(r)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s of %s: %s", path, n.Name, strings.TrimSpace(string(body)))
	}
	return strings.TrimSpace(string(body)), err
}

// makeHCNNamespace does what containerd does before CNI ADD.
func (n *Node) makeHCNNamespace(ctx context.Context) (string, error) {
	return n.ask(ctx, "/namespace", nil)
}

// decide asks the ACLs that are programmed on a pod's HNS endpoint.
func (n *Node) decide(ctx context.Context, p *Pod, d model.Direction, remote netip.Addr, proto model.Protocol, port uint16) (model.Verdict, error) {
	answer, err := n.ask(ctx, "/decide", url.Values{
		"endpoint": {p.containerID + "_eth0_isthmus"}, "direction": {string(acl.PacketDirection(d))}, "remote": {remote.String()},
		"protocol": {strconv.Itoa(int(proto))}, "port": {strconv.Itoa(int(port))},
	})
	switch {
	case err != nil:
		return model.Deny, err
	case answer == string(hns.Allow):
		return model.Allow, nil
	case answer == string(hns.Block):
		return model.Deny, nil
	}
	return model.Deny, fmt.Errorf("decide on %s: answered %q", n.Name, answer)
}

// HNS returns what the node's HNS holds, as text.
func (n *Node) HNS(ctx context.Context) (string, error) { return n.ask(ctx, "/dump", nil) }

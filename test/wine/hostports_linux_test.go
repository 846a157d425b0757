// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"context"
	"net/url"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/test/netns"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// TestHostPortOfTheNode checks that a pod does not get a host port on which a process of the host listens, here the agent
// itself. Nor does it get the NodePort of a Service, or a port at the address of one. It gets another one.
func TestHostPortOfTheNode(t *testing.T) {
	m := machine(t)
	logs(t, m)
	if err := m.StartEmulator(hns.Server2022); err != nil {
		t.Fatal(err)
	}
	if err := m.StartAgent("win1", string(newManifests(t, "web")), "--http-address", "0.0.0.0:9470"); err != nil {
		t.Fatal(err)
	}
	id, err := m.Control("/namespace", url.Values{"netns": {netns.ForTest(t).Path()}})
	if err != nil {
		t.Fatal(err)
	}
	p := Pod{Namespace: "shop", Name: "web", Container: "sandbox-web", NetNS: id, HostPort: 9470}
	const want = "host port TCP 9470 of pod shop/web: a process of node win1 listens on TCP 9470"
	if _, err := m.Add(context.Background(), p); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("ADD: %v, want %q", err, want)
	}
	if _, err := m.Control("/balancer", url.Values{"nodeport": {"30080"}}); err != nil {
		t.Fatal(err)
	}
	p.HostPort = 30080
	const ofService = "host port TCP 30080 of pod shop/web: a Service has TCP 0.0.0.0:30080 on node win1"
	if _, err := m.Add(context.Background(), p); err == nil || !strings.Contains(err.Error(), ofService) {
		t.Errorf("ADD: %v, want %q", err, ofService)
	}
	p.HostPort, p.HostIP = 443, "10.96.0.1"
	const elsewhere = "host port TCP 10.96.0.1:443: it is not an address of the node"
	if _, err := m.Add(context.Background(), p); err == nil || !strings.Contains(err.Error(), elsewhere) {
		t.Errorf("ADD: %v, want %q", err, elsewhere)
	}
	p.HostPort, p.HostIP = 9471, ""
	_, err = m.Add(context.Background(), p)
	counted(t, "ADD", err)
	counted(t, "DEL", m.Delete(context.Background(), p))
}

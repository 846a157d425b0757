// SPDX-License-Identifier: Apache-2.0

package hostport

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/model"
)

// TestProblemNamesPod: a socket of the node on a host port is a problem that names the pod, until the pod is
// removed. Before the first write nothing touches the system, because endpoints of an earlier agent may
// not be adopted yet.
func TestProblemNamesPod(t *testing.T) {
	h := &HostPorts{fromNode: FromNodeAll, forwards: make(map[model.EndpointID][]forward), pods: make(map[model.EndpointID]model.PodID)}
	port := model.HostPort{Number: 8080, Protocol: model.TCP, Port: 80}
	h.EndpointAdded(dataplane.EndpointSpec{ID: "web:eth0", Pod: model.PodID{Namespace: "shop", Name: "web"},
		IPs: []netip.Addr{netip.MustParseAddr("10.1.0.5")}, HostPorts: []model.HostPort{port}})
	h.sockets = []model.HostPort{{Number: 8080, Protocol: model.TCP, Address: netip.MustParseAddr("0.0.0.0")}, {Number: 9090, Protocol: model.TCP}}
	if p := h.Problems(); len(p) != 1 || !strings.Contains(p[0], "pod shop/web: a process of the node also listens on TCP 0.0.0.0:8080 ") {
		t.Errorf("problems %q", p)
	}
	if err := h.Sync(context.Background(), time.Now()); err != nil {
		t.Errorf("before the first write: %v", err)
	}
	if err := h.RemoveEndpoint("web:eth0"); err != nil || len(h.Problems()) > 0 || len(h.pods) > 0 {
		t.Errorf("after the removal: %v, %q, %v", err, h.Problems(), h.pods)
	}
}

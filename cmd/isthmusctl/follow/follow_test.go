// SPDX-License-Identifier: Apache-2.0

package follow_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/isthmus-net/isthmus/cmd/isthmusctl/follow"
	"github.com/isthmus-net/isthmus/common/analysis/service"
	"github.com/isthmus-net/isthmus/common/kube/agents"
	"github.com/isthmus-net/isthmus/common/kube/kubetest"
	"github.com/isthmus-net/isthmus/common/kube/watch"
	"github.com/isthmus-net/isthmus/common/model"
)

// objects are two nodes. shop/near and shop/web are on n1, and shop/db, which has a host port, on n2. Service shop/db leads to
// the latter two.
func objects() (*model.Snapshot, *service.Services) {
	addr := netip.MustParseAddr
	pod := func(name, node, ip, app string) *model.Pod {
		return &model.Pod{PodID: model.PodID{Namespace: "shop", Name: name}, Node: node, IPs: []netip.Addr{addr(ip)}, Labels: model.MakeLabels(map[string]string{"app": app})}
	}
	db := pod("db", "n2", "10.0.2.2", "db")
	db.HostPorts = []model.HostPort{{Number: 8100, Protocol: model.TCP, Port: 5432}}
	s := model.MakeSnapshot(nil, []*model.Node{{Name: "n1", Addresses: []netip.Addr{addr("172.30.0.11")}}, {Name: "n2", Addresses: []netip.Addr{addr("172.30.0.12")}}},
		[]*model.Pod{pod("near", "n1", "10.0.1.2", "near"), pod("web", "n1", "10.0.1.3", "db"), db}, nil)
	list := []*model.Service{{Namespace: "shop", Name: "db", Selects: true, Pods: model.MakeSelector(model.Requirement{Key: "app", Operator: model.In, Values: []string{"db"}}),
		Ports: []model.ServicePort{{Protocol: model.TCP, Port: 80, Target: 5432, Node: 30080}}, Addresses: []netip.Addr{addr("10.96.0.1")}, ClusterIPs: 1}}
	return s, service.New(s, list, nil)
}

// TestTargets names ends as users do. The text of a flow is what the source calls and, after >, what the destination gets.
func TestTargets(t *testing.T) {
	s, services := objects()
	for _, c := range []struct {
		from, to, port string
		flows, step    string
	}{
		{"shop/near", "shop/db", "80", "10.0.1.2->10.0.2.2:80", ""},
		{"shop/near", "svc/shop/db", "80", "10.0.1.2->10.0.2.2:5432 10.0.1.2->10.0.1.3:5432", "the source's node replaces 10.96.0.1:80 by one of 2 backends"},
		{"shop/near", "node:n1", "30080", "10.0.1.2->10.0.2.2:5432>172.30.0.11 10.0.1.2->10.0.1.3:5432", "the node with the address replaces 172.30.0.11:30080 by one of 2 backends"},
		{"shop/near", "172.30.0.12", "30080", "10.0.1.2->172.30.0.12:30080>10.0.1.2->10.0.2.2:5432 10.0.1.2->172.30.0.12:30080>172.30.0.12->10.0.1.3:5432", "at the backend, and at the source about 172.30.0.12"},
		{"shop/near", "node:n2", "8100", "10.0.1.2->172.30.0.12:8100>10.0.1.2->10.0.2.2:5432", "the node with the address replaces TCP 172.30.0.12:8100 by 10.0.2.2:5432, and keeps the address of the client"},
		{"192.0.2.1", "node:n2", "8100", "192.0.2.1->172.30.0.12:8100>192.0.2.1->10.0.2.2:5432", "host port"},
		{"shop/near", "node:n2", "8101", "10.0.1.2->172.30.0.12:8101", ""},
	} {
		all, err := follow.Named{From: c.from, To: c.to, Protocol: "tcp", Port: c.port}.Targets(s, services)
		if err != nil {
			t.Errorf("%+v: %v", c, err)
			continue
		}
		var flows, steps []string
		for _, one := range all {
			text := fmt.Sprintf("%s->%s:%d", one.Egress.Src, one.Egress.Dst, one.Egress.Port)
			switch {
			case one.Egress.Dst != one.Ingress.Dst:
				text += fmt.Sprintf(">%s->%s:%d", one.Ingress.Src, one.Ingress.Dst, one.Ingress.Port)
			case one.Egress != one.Ingress:
				text += ">" + one.Ingress.Src.String()
			}
			flows = append(flows, text)
			if one.Step != nil {
				steps = append(steps, one.Step.What+": "+one.Step.Text)
			}
		}
		if got := strings.Join(flows, " "); got != c.flows || !strings.Contains(strings.Join(steps, "\n"), c.step) || (c.step == "") != (len(steps) == 0) {
			t.Errorf("%s -> %s %s: %s, steps %q", c.from, c.to, c.port, got, steps)
		}
	}
}

// The node of the source traces what the source calls, that of the backend what it gets.
func TestTraceOfForwarded(t *testing.T) {
	s, services := objects()
	var mutex sync.Mutex
	var asked []string
	server := kubetest.NewExecServer(t, []corev1.Node{kubetest.ClusterNode("n1", "linux"), kubetest.ClusterNode("n2", "linux")},
		[]corev1.Pod{kubetest.AgentPod("n1", "n1", "agent-linux"), kubetest.AgentPod("n2", "n2", "agent-linux")},
		func(pod string, command []string) ([]byte, []byte, int) {
			mutex.Lock()
			defer mutex.Unlock()
			asked = append(asked, pod+" "+strings.Join(command[4:], " "))
			if pod == "isthmus-system/n1" {
				return []byte(`{"node":"n1","intended":"allow","installed":"allow","steps":[{"what":"egress policy","intended":"allow","installed":"allow"},{"what":"path"}]}`), nil, 0
			}
			return []byte(`{"node":"n2","to":{"address":"10.0.2.2"},"port":5432,"intended":"deny","installed":"deny","steps":[{"what":"egress policy","intended":"deny","installed":"unknown"},{"what":"path"},{"what":"attachment"},{"what":"ingress policy","intended":"allow","installed":"allow"}]}`), nil, 1
		})
	c, err := agents.New(watch.DefaultAPIConfig(server.Kubeconfig(t)), "isthmus-system")
	if err != nil {
		t.Fatal(err)
	}
	list, err := c.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	all, err := follow.Named{From: "shop/near", To: "node:n2", Protocol: "tcp", Port: "8100"}.Targets(s, services)
	if err != nil {
		t.Fatal(err)
	}
	reports, err := follow.Trace(t.Context(), c, list, 10*time.Second, s, all)
	if err != nil || len(reports) != 1 {
		t.Fatal(reports, err)
	}
	if r := reports[0]; r.Intended != "allow" || r.Installed != "allow" || r.Node != "n1, n2" || r.Port != 5432 || len(r.Steps) != 6 || r.Steps[0].What != "host port" {
		t.Errorf("%+v", r)
	}
	slices.Sort(asked)
	want := []string{"isthmus-system/n1 --from 10.0.1.2 --to 172.30.0.12 --protocol tcp --port 8100", "isthmus-system/n2 --from 10.0.1.2 --to 10.0.2.2 --protocol tcp --port 5432"}
	if !slices.Equal(asked, want) {
		t.Errorf("asked %q, want %q", asked, want)
	}
}

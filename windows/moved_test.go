// SPDX-License-Identifier: Apache-2.0

package windows_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// wantProblems checks that exactly these endpoints are reported as not enforced, each with a text.
func (n *node) wantProblems(what string, want map[model.EndpointID]string) {
	n.t.Helper()
	list, err := n.backend.Endpoints(ctx)
	if err != nil || len(list) != 2 {
		n.t.Fatalf("%s: endpoints %+v, %v", what, list, err)
	}
	for _, i := range list {
		text, bad := want[i.ID]
		if found := strings.Join(i.Problems, "; "); i.Unenforced != bad || !bad && found != "" || !strings.Contains(found, text) {
			n.t.Errorf("%s: endpoint %s: unenforced %t, problems %q, want %q", what, i.ID, i.Unenforced, found, text)
		}
	}
}

// TestEndpointIsMoved moves the endpoint of a pod to the namespace of another one, which could then send by the policy of the first.
// Both are reported, and the audit's ADD moves it back.
func TestEndpointIsMoved(t *testing.T) {
	n, first, second := two(t, hns.Server2022, bridgeConfig())
	s := both(first, second)
	n.apply(s)
	n.wantProblems("in their places", nil)
	id := n.hnsID(first.ID)
	if err := n.fake.DetachEndpoint(ctx, first.NetNS, id); err != nil {
		t.Fatal(err)
	}
	n.wantProblems("detached", map[model.EndpointID]string{first.ID: "not attached to a namespace"})
	if err := n.fake.AttachEndpoint(ctx, second.NetNS, id); err != nil {
		t.Fatal(err)
	}
	n.wantProblems("moved", map[model.EndpointID]string{
		first.ID:  "is in namespace " + second.NetNS + ", not in that of its pod",
		second.ID: "hns endpoint " + strings.ToLower(id) + " is in its namespace too, and under the policy of another pod",
	})
	n.add(first)
	n.add(second)
	n.apply(s)
	n.wantProblems("repaired", nil)
	if err := n.backend.DeleteEndpoint(ctx, first.ID); err != nil {
		t.Fatal(err)
	}
	first.NetNS = n.fake.AddNamespace() // the pod starts again
	n.add(first)
	n.apply(s)
	n.wantProblems("in another namespace", nil)
}

// TestTwoEndpointsOfAPod checks that a pod may have two attachments in its namespace.
func TestTwoEndpointsOfAPod(t *testing.T) {
	n, first, second := two(t, hns.Server2022, bridgeConfig())
	if err := n.backend.DeleteEndpoint(ctx, second.ID); err != nil {
		t.Fatal(err)
	}
	second.Pod, second.NetNS, second.IfName = first.Pod, first.NetNS, "net1"
	second.ID = model.MakeEndpointID(first.ContainerID, "net1")
	n.add(second)
	n.apply(both(first, second))
	n.wantProblems("side by side", nil)
}

// TestEndpointHasAnotherAddress recreates the endpoint of a pod with the address of no or of another pod, as other nodes know it.
func TestEndpointHasAnotherAddress(t *testing.T) {
	for name, change := range map[string]func(*hns.Endpoint){
		"another address": func(e *hns.Endpoint) {
			e.IPConfigurations[0].IPAddress, e.MACAddress = "10.0.1.99", "0E-2A-0A-00-01-63"
		},
		"a further address": func(e *hns.Endpoint) {
			e.IPConfigurations = append(e.IPConfigurations, hns.IPConfig{IPAddress: "fd00:1::99", PrefixLength: 64})
		},
	} {
		n, first, second := two(t, hns.Server2022, dualConfig())
		s := both(first, second)
		n.apply(s)
		e := n.stored(first.ID)
		if err := n.fake.DeleteEndpoint(ctx, e.ID); err != nil {
			t.Fatal(err)
		}
		change(&e)
		e.HostComputeNamespace = ""
		e.Policies = slices.DeleteFunc(e.Policies, func(p hns.Policy) bool { return p.Is(hns.TypeL2Driver) })
		made, err := n.fake.CreateEndpoint(ctx, e)
		if err == nil {
			err = n.fake.AttachEndpoint(ctx, first.NetNS, made.ID)
		}
		if err != nil {
			t.Fatal(err)
		}
		n.wantProblems(name, map[model.EndpointID]string{first.ID: "has the addresses "})
		n.add(first)
		n.apply(s)
		n.wantProblems("repaired", nil)
	}
}

// SPDX-License-Identifier: Apache-2.0

package windows_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/windows/hns"
)

// TestHostIsDetached: if the host's endpoint leaves the host, pods have no next hop. The audit finds that, and Apply attaches it again.
func TestHostIsDetached(t *testing.T) {
	for _, stated := range []hns.State{hns.StateNone, hns.StateDetached} { // else the one that follows from what is attached
		n := newNode(t, hns.Server2022, bridgeConfig())
		spec := n.spec("c1", "10.0.1.7")
		n.add(spec)
		s := peerState(spec, "10.0.3.3")
		n.apply(s)
		audit := func() string {
			t.Helper()
			if _, err := n.backend.Endpoints(ctx); err != nil {
				t.Fatal(err)
			}
			found, err := n.backend.Audit(ctx, s)
			if err != nil {
				t.Fatal(err)
			}
			return fmt.Sprint(found)
		}
		if got := audit(); got != "[]" {
			t.Errorf("drifts %s", got)
		}
		host := n.hostEndpoint()
		if err := n.fake.DetachEndpoint(ctx, hns.HostNamespace, host); err != nil {
			t.Fatal(err)
		}
		if err := n.fake.SetState(host, stated); err != nil {
			t.Fatal(err)
		}
		if got := audit(); got != "[{host endpoint  false the host's endpoint is not attached to the host}]" {
			t.Errorf("state %s: drifts %s", stated, got)
		}
		if err := n.fake.SetState(host, hns.StateNone); err != nil {
			t.Fatal(err)
		}
		n.apply(s)
		if got := audit(); got != "[]" || !n.fake.OnHost(n.hostEndpoint()) {
			t.Errorf("state %s: on the host %t, drifts %s", stated, n.fake.OnHost(n.hostEndpoint()), got)
		}
		calls := n.count("AttachEndpoint")
		n.apply(s)
		audit()
		n.apply(s)
		if more := n.count("AttachEndpoint") - calls; more > 0 {
			t.Errorf("%d more calls", more)
		}
	}
}

// TestHostWithoutState: an HNS that shows other states of the host's endpoint, or none, is believed.
func TestHostWithoutState(t *testing.T) {
	for _, state := range []hns.State{hns.StateCreated, 9} {
		n := newNode(t, hns.Server2022, bridgeConfig())
		calls := n.count("AttachEndpoint")
		if err := n.fake.SetState(n.hostEndpoint(), state); err != nil {
			t.Fatal(err)
		}
		if _, err := n.backend.Endpoints(ctx); err != nil {
			t.Fatal(err)
		}
		n.apply(peerState(n.spec("c1", "10.0.1.7")))
		if more := n.count("AttachEndpoint") - calls; more > 0 {
			t.Errorf("state %s: %d more calls", state, more)
		}
	}
}

// hostEndpoint is the GUID of the host's endpoint.
func (n *node) hostEndpoint() string {
	n.t.Helper()
	list, err := n.fake.AllEndpoints(ctx)
	if err != nil {
		n.t.Fatal(err)
	}
	for _, e := range list {
		if e.Name == "isthmus_ep" {
			return e.ID
		}
	}
	n.t.Fatal("the host has no endpoint")
	return ""
}

// TestPolicyWithoutTheHost: while HNS refuses to attach the host's endpoint, policy of pods still comes into force. Apply reports the
// endpoint, and no pod is attached.
func TestPolicyWithoutTheHost(t *testing.T) {
	n, first, second := two(t, hns.Server2022, bridgeConfig())
	n.apply(both(first, second, "10.0.3.3"))
	if _, err := n.backend.Endpoints(ctx); err != nil { // HNS shows the host as attached
		t.Fatal(err)
	}
	host := n.hostEndpoint()
	if err := n.fake.DetachEndpoint(ctx, hns.HostNamespace, host); err != nil {
		t.Fatal(err)
	}
	if _, err := n.backend.Endpoints(ctx); err != nil {
		t.Fatal(err)
	}
	n.failing(func(op, id string) bool { return op == "AttachEndpoint" && id == host }, hns.CodeUnexpected)
	_, err := n.backend.Apply(ctx, both(first, second, "10.0.4.4"))
	if err == nil || !strings.Contains(err.Error(), "attach the host to network") {
		t.Errorf("error %v", err)
	}
	if n.passes(first.ID, "10.0.3.3") || n.passes(second.ID, "10.0.3.3") || !n.passes(first.ID, "10.0.4.4") {
		t.Error("the former policy is in force")
	}
	if _, err := n.backend.AddEndpoint(ctx, n.spec("c3", "10.0.1.9")); err == nil {
		t.Error("a pod was attached that has no next hop")
	}
	n.fake.Before(nil)
	n.apply(both(first, second, "10.0.4.4"))
	if !n.fake.OnHost(n.hostEndpoint()) {
		t.Error("the host's endpoint is not on the host")
	}
}

// SPDX-License-Identifier: Apache-2.0

package windows_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/isthmus-net/isthmus/common/dataplane"
	"github.com/isthmus-net/isthmus/common/dataplane/dataplanetest"
	"github.com/isthmus-net/isthmus/common/model"
	"github.com/isthmus-net/isthmus/windows/hns"
)

// TestComponentInTheList checks that a component takes part in everything as soon as it is in the list.
func TestComponentInTheList(t *testing.T) {
	n, e := newNode(t, hns.Server2022, bridgeConfig()), &dataplanetest.Component{Drifted: true}
	n.backend.AddComponent(e)
	spec := n.spec("c1", "10.0.1.7")
	n.add(spec)
	s := &model.State{Node: "node1"}
	unsupported, err := n.backend.Apply(ctx, s)
	if err != nil || len(unsupported) != 1 || unsupported[0].Construct != "example" || unsupported[0].OS != model.Windows || unsupported[0].Platform == "" {
		t.Errorf("Apply returns %v, %v", unsupported, err)
	}
	e.Failed = errors.New("no example today")
	if _, err := n.backend.Apply(ctx, s); err == nil || !strings.Contains(err.Error(), "no example today") {
		t.Errorf("Apply returns %v", err)
	}
	if all := n.backend.Faults(); !slices.Contains(all, "example: out of order") {
		t.Errorf("faults %q", all)
	}
	if found, err := n.backend.Audit(ctx, s); err != nil || !slices.Contains(found, dataplane.Drift{Object: "example"}) {
		t.Errorf("the audit finds %v, %v", found, err)
	}
	c, err := n.backend.Counters(ctx)
	if err != nil || c.Drops["example"] != 7 || !slices.Contains(c.PathModes, dataplanetest.ExampleMode) {
		t.Errorf("counters %+v, %v", c, err)
	}
	if _, err := n.backend.Idle(ctx); err != nil {
		t.Error(err)
	}
	if err := errors.Join(n.backend.DeleteEndpoint(ctx, spec.ID), n.backend.Close()); err != nil {
		t.Error(err)
	}
	if want := []string{"added c1:eth0", "apply node1", "apply node1", "sync", "remove c1:eth0", "close"}; !slices.Equal(e.Calls, want) {
		t.Errorf("calls %q, want %q", e.Calls, want)
	}
}

// TestKubeProxyWithoutDSR checks that Faults names a kube-proxy without DSR, also on an HNS that has none, and is
// silent about one with DSR.
func TestKubeProxyWithoutDSR(t *testing.T) {
	for _, c := range []struct {
		version hns.Version
		flags   uint32
		want    string
	}{{hns.Server2022, 0, "winkernel.enableDSR: true"}, {hns.Server2022, hns.DSRFlag, ""}, {hns.Version{Major: 9, Minor: 2}, 0, "update Windows"}} {
		n := newNode(t, c.version, bridgeConfig())
		n.fake.Balancers = []hns.LoadBalancer{{FrontendVIPs: []string{"10.96.0.1"}, Flags: c.flags}}
		if _, err := n.backend.Idle(ctx); err != nil {
			t.Fatal(err)
		}
		all := strings.Join(n.backend.Faults(), "\n")
		if found := strings.Contains(all, "without direct server return"); found != (c.want != "") || !strings.Contains(all, c.want) {
			t.Errorf("HNS %s, flags %d: faults %q", c.version, c.flags, all)
		}
		counters, err := n.backend.Counters(ctx)
		if err != nil || !slices.ContainsFunc(counters.Facts, func(f string) bool { return strings.HasPrefix(f, "load balancers: ") && strings.Contains(f, " of 1 ") }) {
			t.Errorf("facts %q, %v", counters.Facts, err)
		}
	}
}
